"""The choices of a user between a process of its own for a kernel and this one."""

from __future__ import annotations

#: Choices of isolation: kernels outside the package only, all kernels, or no kernel.
ISOLATE = ("auto", "always", "never")


def isolate_word(chosen: bool | None) -> str:
    """Return the element of ``ISOLATE`` that --isolate (True), --no-isolate (False) or neither (None) means."""
    return ISOLATE[0] if chosen is None else ISOLATE[1] if chosen else ISOLATE[2]
