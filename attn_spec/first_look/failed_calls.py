"""Calls that raise on every input, for a known reason."""

from __future__ import annotations

from collections.abc import Iterable

from attn_spec.first_look.misfit import MisfitError, declaring
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.argument_names import of_calls
from attn_spec.kernels.presentations.table import PRESENTATIONS

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


def explain_places(kernel: Kernel) -> None:
    """Explain why no plain call is right of a callable whose parameters are those of a packed call or of a merge.

    Raises :class:`MisfitError` if there are such parameters.
    """
    rows = {name: row.recognised_by for name, row in PRESENTATIONS.items() if row.recognised_by}
    found, own = of_calls(kernel.parameters, rows)
    if not found:
        return
    if own is not None:
        cause = (
            f"its parameters {', '.join(found)} are those of the presentation {own}, in which a plain call is not right"
        )
        raise MisfitError(kernel, cause, declaring(kernel, presentation=own))
    cause = f"its parameters {', '.join(found)} look like those of a packed call that no presentation says"
    known = "; ".join(f"{name}: {', '.join(arguments)}" for name, arguments in rows.items())
    raise MisfitError(kernel, cause, f"wrap it in a function of the arguments of one of these: {known}")
