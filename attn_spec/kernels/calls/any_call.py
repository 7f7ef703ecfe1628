"""One call of attention in a test, in any presentation: one that is named, or one that the words of the call mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.calls.call import Call, call
from attn_spec.kernels.calls.packed_call import packed_call
from attn_spec.kernels.calls.sequence_arguments import packed_rows, recognised


def presentation_of(q: Any, presentation: str | None, words: Mapping[str, Any]) -> str:
    """Return the presentation of a call: the one that is named, or else the packed one that ``words`` mean, or "BHSD".

    Words such as ``cu_seqlens_q`` and ``block_table`` mean a packed one. Raises :class:`CallError`.
    """
    return presentation or recognised(words, len(getattr(q, "shape", ()))) or "BHSD"


def any_call(q: Any, k: Any, v: Any, *, presentation: str, **words: Any) -> Call:
    """Read a call of attention, see :func:`call.call` and :func:`packed_call.packed_call`. Raises
    :class:`CallError`.
    """
    read = packed_call if presentation in packed_rows() else call
    return read(q, k, v, presentation=presentation, **words)
