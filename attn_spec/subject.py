"""A subject is a kernel at one dtype on one device: give it a problem, get exact values and checked manners.

Every call hands the kernel fresh tensors, under a time limit, and refuses an answer that no attention kernel may
give: an exception, a wrong type, shape, dtype or device, inputs changed in place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np

from attn_spec import bits, layouts
from attn_spec.contract import Contract
from attn_spec.kernels import KEYWORDS, Conventions, Kernel
from attn_spec.problem import Problem

Guard = Callable[[float], AbstractContextManager[Any]]
#: Gives a tensor another layout in memory, see ``layouts``.
Arrange = Callable[[Any], Any]

#: Seconds one kernel call may take, compilation included.
CALL_LIMIT = 60.0
#: Seconds past its limit at which a call that hangs outside Python ends the process, see :func:`last_resort`.
GRACE = 5.0


#: Results whose heads and lengths are swapped in the layout BSHD.
BHSD_RESULTS = ("out", "dq", "dk", "dv")


class Misbehaviour(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A call that did not produce an attention output at all; the text says what came back instead."""


class CallFailed(Misbehaviour):
    """A call that raised, or did not return in time."""


class OutOfTime(BaseException):
    """Raised inside a call that ran past its time limit; a BaseException so that kernels do not swallow it."""


@dataclass(frozen=True)
class Answer:
    """What a kernel returned, as exact values."""

    #: [B, Hq, Sq, Dv]
    output: bits.Values
    #: [B, Hq, Sq], or None when the kernel returns none.
    lse: bits.Values | None


@dataclass(frozen=True)
class Subject:
    """A kernel at one dtype on one device. Raises :class:`Misbehaviour`."""

    kernel: Kernel
    dtype: str
    device: str = "cpu"
    call_limit: float = CALL_LIMIT
    #: Entered around every call, with the seconds it may take; a search puts :func:`last_resort` here.
    guard: Guard = contextlib.nullcontext

    @property
    def contract(self) -> Contract:
        """The contract for this dtype, every stage a format."""
        return self.kernel.contract_for(self.dtype)

    @property
    def conventions(self) -> Conventions:
        return self.kernel.conventions

    def axes(self, names: str) -> tuple[int, ...]:
        """Where the axes named by letters of BHSD lie in the tensors that the kernel is given, for an ``arrange``."""
        return tuple(self.kernel.layout.index(name) for name in names)

    def supports(self, *options: str) -> bool:
        """Whether the kernel declares every one of ``options``."""
        return self.kernel.supports.issuperset(options)

    def __call__(
        self, problem: Problem, *, arrange: Arrange = layouts.unchanged, arrange_options: Arrange = layouts.unchanged
    ) -> Answer:
        """Run the kernel on a problem.

        ``arrange`` may re-lay each of q, k, v in memory, ``arrange_options`` the mask and the bias, values unchanged;
        it is given the kernel's own tensors, whose heads and lengths lie where :meth:`axes` says.
        """
        tensors = {name: arrange(self._tensor(getattr(problem, name))) for name in ("q", "k", "v")}
        options = self._options(problem, arrange_options)
        returned = self._call(tensors, options)
        out, lse = returned if isinstance(returned, tuple) else (returned, None)
        if not self.supports("lse"):
            lse = None  # a second result may be anything, weights for instance
        elif lse is None:
            raise Misbehaviour("the kernel declares lse but returned no (out, lse) pair")
        self._check_inputs_untouched(problem, tensors, options)
        shape = (problem.batch, problem.query_heads, problem.query_length)
        output = self._values("out", out, (*shape, problem.value_dim), self.dtype)
        return Answer(output, None if lse is None else self._values("lse", lse, shape, None))

    def gradients(
        self,
        problem: Problem,
        cotangent: np.ndarray,
        *,
        lse_cotangent: np.ndarray | None = None,
        wrt: tuple[str, ...] = ("q", "k", "v", "bias"),
        arrange: Arrange = layouts.unchanged,
        arrange_inputs: Arrange = layouts.unchanged,
    ) -> dict[str, bits.Values]:
        """dQ, dK, dV and, when the problem has one, dBias, for the cotangents dO [B, Hq, Sq, Dv] and dL [B, Hq, Sq].

        ``wrt`` names the inputs that require a gradient; ``arrange`` may re-lay dO in memory, ``arrange_inputs`` each
        of q, k, v, values unchanged.
        """
        tensors = {name: arrange_inputs(self._tensor(getattr(problem, name))) for name in ("q", "k", "v")}
        options = self._options(problem)
        inputs = dict(tensors)
        if problem.bias is not None:
            inputs["bias"] = options[self.kernel.keyword("bias")]
        cotangents = [arrange(self._tensor(cotangent))]
        if lse_cotangent is not None:
            cotangents.append(self._tensor(lse_cotangent, swap=False, dtype=self.contract.lse))
        if self.kernel.backward_function is None:
            for name in set(wrt) & set(inputs):
                inputs[name].requires_grad_()
            found = self._by_autograd(tensors, options, inputs, cotangents)
        else:
            found = self._by_function(tensors, options, cotangents)
        shapes = {name: getattr(problem, name).shape for name in inputs if name in wrt}
        return {f"d{n}": self._gradient(n, found.get(n), shape) for n, shape in shapes.items()}

    def _by_autograd(
        self, tensors: dict[str, Any], options: dict[str, Any], inputs: dict[str, Any], cotangents: list[Any]
    ) -> dict[str, Any]:
        import torch

        returned = self._call(tensors, options)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        pairs = [pair for pair in zip(outputs, cotangents, strict=False) if pair[0].requires_grad]
        if pairs:  # an output that depends on no input has gradients of zero
            with self._guarded("backward"):
                torch.autograd.backward([output for output, _ in pairs], [cotangent for _, cotangent in pairs])
                self._wait()
        return {name: tensor.grad for name, tensor in inputs.items()}

    def _by_function(self, tensors: dict[str, Any], options: dict[str, Any], cotangents: list[Any]) -> dict[str, Any]:
        returned = self._call(tensors, options)
        out, lse = returned if isinstance(returned, tuple) else (returned, None)
        extra = {"dlse": cotangents[1]} if len(cotangents) > 1 else {}
        backward = self.kernel.backward_function
        with self._guarded("backward"):
            found = backward(cotangents[0], *tensors.values(), out, lse, **options, **extra)  # type: ignore[misc]
            self._wait()
        return dict(zip(("q", "k", "v", "bias"), found, strict=False))

    def _gradient(self, name: str, tensor: Any, shape: tuple[int, ...]) -> bits.Values:
        """The values of a gradient; torch leaves None where an input has no influence."""
        return np.zeros(shape) if tensor is None else self._values(f"d{name}", tensor, shape, self.dtype)

    def _call(self, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
        with self._guarded("call"):
            returned = self.kernel(*tensors.values(), **options)
            self._wait()
            return returned

    def _wait(self) -> None:
        """Wait for the GPU, so that what goes wrong there is reported by the call that started it."""
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            with self.guard(self.call_limit), time_limit(self.call_limit), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning is no failure, whatever the user's pytest makes of it
                yield
        except OutOfTime as error:
            raise CallFailed(f"the kernel's {what} did not return within {self.call_limit:g} s") from error
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            raise CallFailed(f"the kernel's {what} raised {text} ({where.filename}:{where.lineno})") from error

    def _options(self, problem: Problem, arrange: Arrange = layouts.unchanged) -> dict[str, Any]:
        """The keyword arguments that differ from their defaults, under the callable's own spellings."""
        supported = self.kernel.supports
        values = {name: getattr(problem, name) for name in KEYWORDS}
        active = {n: v for n, v in values.items() if n in supported and v is not None and v is not False}
        if problem.causal_alignment == self.conventions.causal_alignment:
            active.pop("causal_alignment", None)
        for name in {"mask", "bias"} & set(active):
            active[name] = arrange(self._tensor(active[name], swap=False))
        return {self.kernel.keyword(name): value for name, value in active.items()} | self._gqa_flag(problem)

    def _gqa_flag(self, problem: Problem) -> dict[str, bool]:
        named = "enable_gqa" in inspect.signature(self.kernel.function).parameters
        return {"enable_gqa": True} if named and problem.group != 1 else {}

    def _tensor(self, values: np.ndarray, *, swap: bool = True, dtype: str | None = None) -> Any:
        if self.kernel.layout == "BSHD" and swap:
            values = values.swapaxes(1, 2)
        if self.kernel.framework == "torch":
            return bits.to_torch(values, dtype or self.dtype, self.device)
        return np.array(values) if values.dtype == np.bool_ else bits.to_numpy(values, dtype or self.dtype)

    def _values(self, name: str, tensor: Any, shape: tuple[int, ...], dtype: str | None) -> bits.Values:
        wanted = np.ndarray if self.kernel.framework == "numpy" else _torch_tensor_type()
        if type(tensor) is not wanted:
            raise Misbehaviour(f"{name} is a {type(tensor).__name__}; it must be a {wanted.__name__}")
        if name in BHSD_RESULTS and self.kernel.layout == "BSHD":
            tensor = tensor.swapaxes(1, 2)
        if tuple(tensor.shape) != shape:
            raise Misbehaviour(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
        if dtype is not None and bits.dtype_name(tensor) != dtype:
            raise Misbehaviour(f"{name} has dtype {bits.dtype_name(tensor)}; it must be {dtype}, the inputs' dtype")
        device = getattr(tensor.device, "type", "cpu") if self.kernel.framework == "torch" else "cpu"
        if device != self.device.partition(":")[0]:
            raise Misbehaviour(f"{name} is on device {device}; it must be on {self.device}, the inputs' device")
        return bits.values_of(tensor)

    def _check_inputs_untouched(self, problem: Problem, tensors: dict[str, Any], options: dict[str, Any]) -> None:
        given = {name: (tensor, getattr(problem, name)) for name, tensor in tensors.items()}
        given |= {n: (options[n], getattr(problem, n)) for n in ("mask", "bias") if n in options}
        for name, (tensor, original) in given.items():
            now = bits.values_of(tensor)
            before = original.swapaxes(1, 2) if self.kernel.layout == "BSHD" and name in "qkv" else original
            if now.shape != before.shape or not bits.identical(now, before.astype(np.float64)).all():
                raise Misbehaviour(f"the kernel changed its input {name} in place; it must leave its inputs alone")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the block after ``seconds``; no limit outside the main thread or on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def last_resort(seconds: float, stderr: int = 2) -> Iterator[None]:
    """End the process, with the stack on ``stderr``, when the block hangs where no Python signal reaches it."""
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _torch_tensor_type() -> type:
    import torch

    return torch.Tensor
