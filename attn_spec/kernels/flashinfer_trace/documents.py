"""Names of documents of the FlashInfer Trace schema, apart from those of kernels, and the error of an unusable one.

What reads documents imports pydantic; most kernels are no documents, and their processes import this file alone.
"""

from __future__ import annotations

from attn_spec.kernels.kernel import KernelError

#: Ending of the file names of definitions and solutions.
ENDING = ".json"


class DocumentError(KernelError):
    """A document that cannot be read, or that attn-spec does not support: names the file, the field and what to do."""


def is_document(spec: str) -> bool:
    """Return whether a kernel's name is that of a document."""
    return spec.endswith(ENDING)
