"""Calls that raise on every input, for a known reason."""

from __future__ import annotations

from collections.abc import Iterable

from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.kernel import Kernel

#: Message of Triton when it finds no GPU.
NO_DRIVER = "0 active drivers"


def explain(kernel: Kernel, reasons: Iterable[str]) -> None:
    """Explain failed calls by their messages. Raises :class:`MisfitError` if the reason is known."""
    if any(NO_DRIVER in reason for reason in reasons):
        remedy = "set TRITON_INTERPRET=1 to interpret it on the CPU, or examine it with --device cuda"
        raise MisfitError(kernel, "Triton finds no driver of a GPU", remedy)


def explain_class(kernel: Kernel) -> None:
    """Explain why calls of a class did not compute attention. Raises :class:`MisfitError` for a class."""
    if kernel.of_class:
        name = kernel.function.__name__
        applied = f"write a function that calls {name}.apply"
        instance = f"make an instance in its file, mine = {name}(...), and examine that"
        remedy = applied if kernel.of_class == "autograd" else instance
        raise MisfitError(kernel, "it is a class: calling it makes an instance", remedy)
