"""Results that are no answer: of another type, shape, dtype or device than an answer has."""

from __future__ import annotations

from typing import Any

from attn_spec.first_look import readings
from attn_spec.first_look.failed_calls import explain_class
from attn_spec.first_look.misfit import MisfitError, declaring
from attn_spec.first_look.plain_look import Look, is_right
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.table import PRESENTATIONS


def explain(seen: Look) -> None:
    """Say what is wrong with the result of a call, and what to return instead. Raises :class:`MisfitError`.

    Returns without an error for a kernel that changed its inputs: its result is an answer, and the properties refute
    it.
    """
    kernel, result, lse = seen.subject.kernel, seen.returned[-1], seen.subject.supports("lse")
    if kernel.of_class and type(result).__name__ == kernel.function.__name__:
        explain_class(kernel)
    tensors = result if isinstance(result, tuple) else (result,)
    if len(tensors) not in ((2,) if lse else (1, 2)):
        returns = "(out, lse), or take 'lse' out of supports" if lse else "out alone, or (out, lse)"
        raise MisfitError(kernel, str(seen.error), f"return {returns}")
    for name, tensor in zip(("out", "lse") if lse else ("out",), tensors, strict=False):
        if remedy := _remedy(seen, name, tensor, tensors[0]):
            raise MisfitError(kernel, str(seen.error), remedy)


def _remedy(seen: Look, name: str, tensor: Any, out: Any) -> str | None:
    """Return the remedy for a tensor that is no answer; None for a valid one. Raises :class:`MisfitError`."""
    subject, own = seen.subject, seen.subject.framework
    if not own.is_own(tensor):
        return _of_framework(subject.kernel, tensor)
    if tuple(tensor.shape) != (shape := _shape(seen, name)):
        _explain_order(seen, out)
        if name == "lse":  # the properties refute it, also if it shows at some lengths only
            return None
        return f"return {name} in the shape {shape} for these inputs"
    if name == "out" and (dtype := own.dtype_of(tensor)) != subject.contract.output:
        return f"cast it to that, or declare contract=Contract(output={dtype!r}, ...) if it is meant to be {dtype}"
    if own.device_of(tensor) != subject.device.partition(":")[0]:
        return "return it on the device of q"
    return None


def _shape(seen: Look, name: str) -> tuple[int, ...]:
    """Return the shape that the kernel must return in one call."""
    shown = seen.subject.presentation
    part = next(shown.parts(seen.problem))
    return shown.shape(part, "output" if name == "out" else name)


def _explain_order(seen: Look, out: Any) -> None:
    """Test whether an output is right in another order of axes. Raises :class:`MisfitError` if it is."""
    subject, problem, own = seen.subject, seen.problem, seen.subject.presentation
    others = readings.alike(subject.kernel)
    if not others or out.ndim != 4:
        return
    values = subject.framework.take(out)
    if tuple(out.shape) == own.shape(problem, "output"):  # the log-sum-exp has another shape than it must have
        readings.explain_swap(subject, problem, own.taken(problem, "output", values))
        return
    for name in others:
        other = PRESENTATIONS[name]
        if tuple(out.shape) == other.shape(problem, "output"):
            output = other.taken(problem, "output", values)
            if is_right(subject, problem, {"output": output}):
                says = f"it is right as {name}, and must be [{own.layout}] as q is"
                cause = f"its output has its axes in another order: {says}"
                raise MisfitError(subject.kernel, cause, f"return {other.turned(own)}")


def _of_framework(kernel: Kernel, tensor: Any) -> str:
    """Return the remedy for a tensor of another framework, or for a value that is no tensor."""
    own = frameworks.framework(kernel.framework)
    try:
        other = frameworks.of(tensor).name
    except frameworks.FrameworkError:
        return f"return out, a {own.tensor_type.__name__} of the shape of q, or (out, lse)"
    if other == kernel.framework:
        return f"return a plain {own.tensor_type.__name__}"
    if kernel.declared:
        return f"declare framework={other!r}, or return a {own.tensor_type.__name__}"
    return f"examine it with --framework {other}, or {declaring(kernel, framework=other)}"
