"""The properties as tests of a user's own test file: one test for each property and dtype.

    from attn_spec import parametrize

    @parametrize(attention)
    def test_attention(search, property_, subject):
        search(property_, subject)

``search`` is a fixture of the pytest plugin. The plugin's options, such as ``--attn-profile ci``, set the profile, the
seed, the call limit and the known defects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from attn_spec.kernels.by_hand import in_hand
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.search.preflight import preflight
from attn_spec.search.property import Property, load_all
from attn_spec.sessions.selection import named


def parametrize(
    kernel: Kernel | str | Callable[..., Any],
    *,
    properties: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    device: str = "cpu",
    **declared: Any,
) -> pytest.MarkDecorator:
    """Return a mark that runs a test with arguments ``property_`` and ``subject`` for each property and dtype.

    ``kernel`` is a declared kernel, or any argument by which ``attn-spec certify`` finds one. In the second case
    ``declared`` are declarations for a callable without any. ``properties`` are parts of the ids of wanted properties,
    by default all; ``dtypes`` are by default all that the kernel declares. The kernel is called once for each dtype, to
    check that it runs. Raises :class:`KernelError`.
    """
    if isinstance(kernel, Kernel) and declared:
        raise KernelError(f"{kernel.name} declares itself with @kernel; drop {', '.join(sorted(declared))}")
    found = in_hand(kernel, declared)
    subjects = preflight(replace(found, spec=found.spec or _spec_of(found)), dtypes, device).subjects
    chosen = _properties(properties)
    return pytest.mark.parametrize(
        ("property_", "subject"),
        [(property_, subject) for property_ in chosen for subject in subjects],
        ids=[f"{property_.id}-{subject.dtype}" for property_ in chosen for subject in subjects],
    )


def _properties(parts: Sequence[str]) -> list[Property]:
    """Return the properties whose ids contain one of the parts. Raises :class:`KernelError` for an unknown part."""
    every = load_all()
    return [every[name] for name in sorted(named(parts, every))]


def _spec_of(kernel: Kernel) -> str:
    """Return the name by which a stored case finds the kernel, file and name; empty for one made in a function."""
    name = getattr(kernel.function, "__name__", "")
    module = sys.modules.get(kernel.module)
    file = getattr(module, "__file__", None)
    return f"{os.path.relpath(file)}:{name}" if file and hasattr(module, name) else ""
