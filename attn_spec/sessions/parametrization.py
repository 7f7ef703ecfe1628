"""The properties in somebody's own test file, one test for each of them and each dtype.

    from attn_spec import parametrize

    @parametrize(attention)
    def test_attention(search, property_, subject):
        search(property_, subject)

``search`` is the fixture of the pytest plugin: profile, seed, device's call limit and known defects are those of its
options, ``--attn-profile ci``.
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
    """Run a test with the arguments ``property_`` and ``subject`` once for each property and dtype.

    ``kernel`` is a declared one, or what ``attn-spec certify`` is given to find one; ``declared`` are then
    declarations for a callable that has none. ``properties`` are parts of the ids of those wanted, all without one;
    ``dtypes`` are all that the kernel declares without one. The kernel is called once for each dtype, to see that it
    runs. Raises :class:`KernelError`.
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
    """The properties whose ids contain one of the parts. Raises :class:`KernelError` for a part that none contains."""
    every = load_all()
    return [every[name] for name in sorted(named(parts, every))]


def _spec_of(kernel: Kernel) -> str:
    """By what name a stored case finds the kernel again: its file and its own; empty for one made inside a function."""
    name = getattr(kernel.function, "__name__", "")
    module = sys.modules.get(kernel.module)
    file = getattr(module, "__file__", None)
    return f"{os.path.relpath(file)}:{name}" if file and hasattr(module, name) else ""
