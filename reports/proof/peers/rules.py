"""The accept rules of other test suites: the reference an answer is compared with, and the error allowed.

A rule sees one tensor at a time, in the formats in which its suite subtracts. So its rounding, and its treatment of
NaN, are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.kernels.frameworks.torch import TORCH

from .references import FLOAT32, FLOAT64, HIGHER_MATH, MATH, Reference, gradients, tensors

if TYPE_CHECKING:
    import torch

    from attn_spec.problem.problem import Problem

#: (problem, answer, high-precision reference, low-precision reference) -> accepted; the same tensor of each.
Comparison = Callable[["Problem", "torch.Tensor", "torch.Tensor", "torch.Tensor"], bool]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One suite's comparison of each tensor with its references."""

    #: Reference with which the answer is compared.
    against: Reference
    #: The reference whose own error sets the measure; None where the rule needs none.
    measure: Reference | None = None
    #: By tensor: "output", "lse", "dq", "dk", "dv", "dbias"; what is not named is not compared.
    compare: Mapping[str, Comparison] = field(repr=False)

    def accepts(self, problem: Problem, output: np.ndarray, lse: np.ndarray | None = None) -> bool:
        """Return whether the suite accepts the output [B, Hq, Sq, Dv] and natural log-sum-exp [B, Hq, Sq]."""
        high = self._outputs(self.against, problem)
        low = high if self.measure is None else self._outputs(self.measure, problem)
        answer = {"output": TORCH.give(output, problem.dtype)}
        if lse is not None:
            answer["lse"] = TORCH.give(lse, "float32")
        return self._all(problem, answer, high, low)

    def accepts_gradients(self, problem: Problem, cotangent: np.ndarray, found: Mapping[str, np.ndarray]) -> bool:
        """Return whether the suite accepts the gradients dq, dk, dv, dbias for the cotangent dO [B, Hq, Sq, Dv]."""
        high = gradients(self.against, problem, cotangent)
        low = high if self.measure is None else gradients(self.measure, problem, cotangent)
        answer = {name: TORCH.give(values, problem.dtype) for name, values in found.items()}
        return self._all(problem, answer, high, low)

    def _outputs(self, reference: Reference, problem: Problem) -> dict[str, torch.Tensor]:
        out, lse = reference(problem, tensors(problem))
        return {"output": out, "lse": lse}

    def _all(self, problem: Problem, answer: dict[str, Any], high: dict[str, Any], low: dict[str, Any]) -> bool:
        names = [name for name in self.compare if name in answer and name in high]
        return all(self.compare[name](problem, answer[name], high[name], low[name]) for name in names)


def _worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item() if a.numel() else 0.0


def multiple(factor: float, slack: float = 0.0) -> Comparison:
    """Return a rule: the largest error is at most ``factor`` times the low-precision reference's, plus ``slack``."""
    return lambda _, x, high, low: _worst(x, high) <= factor * _worst(low, high) + slack


def multiple_and_rounding(*, softcap_slack: float = 0.0) -> Comparison:
    """Return a rule: 2 x the low-precision error (3 x with a softcap), plus twice the error of + 0.3 - 0.3."""

    def compare(problem: Problem, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> bool:
        capped = problem.softcap is not None
        slack = 2 * _worst(high + 0.3 - 0.3, high) + softcap_slack * capped
        return _worst(x, high) <= (3 if capped else 2) * _worst(low, high) + slack

    return compare


def fudge(plain: float, with_bias: float | None = None) -> Comparison:
    """Return a rule: the largest error is at most max(1e-5, F x the low-precision one); a NaN there passes all."""

    def compare(problem: Problem, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> bool:
        error, measure = _worst(high, x), _worst(high, low)
        if np.isnan(error) and not np.isnan(measure):
            return False
        factor = plain if with_bias is None or problem.bias is None else with_bias
        threshold = max(1e-5, measure * factor)  # 1e-5 when the measure is NaN
        return not error > threshold

    return compare


def mean_multiple(half: float, single: float) -> Comparison:
    """Return a rule: the mean error is at most a factor times the low-precision one; NaN in either is refused."""

    def compare(problem: Problem, x: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> bool:
        error, measure = ((high - y).abs().mean().item() for y in (x, low))
        return error <= measure * (single if problem.dtype == "float32" else half)

    return compare


def close(by_dtype: Mapping[str, tuple[float, float]], *, equal_nan: bool = False, wide: bool = False) -> Comparison:
    """Return a rule: |x - reference| <= atol + rtol |reference| for every element, with (atol, rtol) of the dtype.

    ``wide`` subtracts in the reference's format, otherwise in the answer's.
    """
    import torch

    def compare(problem: Problem, x: torch.Tensor, high: torch.Tensor, _: torch.Tensor) -> bool:
        atol, rtol = by_dtype[problem.dtype]
        x, high = (x.to(high.dtype), high) if wide else (x, high.to(x.dtype))
        return torch.allclose(x, high, atol=atol, rtol=rtol, equal_nan=equal_nan)

    return compare


def abs_and_rel(limit: float, unit: float = 1.0) -> Comparison:
    """Return a rule that refuses an element off by more than ``limit`` both absolutely and relatively, or not finite.

    The suite states the tensor in terms of ``unit``.
    """

    def compare(_p: Problem, x: torch.Tensor, high: torch.Tensor, _: torch.Tensor) -> bool:
        x, high = x.float() / unit, high.float() / unit
        error = (x - high).abs()
        exceeds = (error > limit) & (error / (high.abs() + 1e-8) > limit)
        return bool(x.isfinite().all() and not exceeds.any())

    return compare


def every(atol: float, rtol: float) -> dict[str, tuple[float, float]]:
    """Return one tolerance for every dtype."""
    return dict.fromkeys(("float32", "float16", "bfloat16"), (atol, rtol))


def gradients_by(comparison: Comparison, *, bias: bool = False) -> dict[str, Comparison]:
    """Return one comparison for dq, dk and dv, and for dbias if asked."""
    return dict.fromkeys(("dq", "dk", "dv", "dbias") if bias else ("dq", "dk", "dv"), comparison)


_LOW = Reference(scale_on="key")
_XFORMERS = Reference(scores="float32", softmax="float32", weights="float32", result="float32", scale_on="query")
_CUTLASS_BACKWARD = {"float32": (9e-4, 1e-4), "float16": (0.2, 2e-2), "bfloat16": (0.9, 0.1)}
_CUTLASS_FORWARD = {"float32": (3e-4, 2e-5), "float16": (4e-3, 4e-4), "bfloat16": (2e-2, 5e-3)}
_ASSERT_CLOSE = {"float32": (1e-5, 1.3e-6), "float16": (1e-5, 1e-3), "bfloat16": (1e-5, 1.6e-2)}
_TE = {"float16": (1e-3, 1e-3), "bfloat16": (1.5e-2, 1.5e-2)}
_KERNEL_BENCH = {"float32": (1e-4, 1e-4), "float16": (1e-2, 1e-2), "bfloat16": (1e-2, 1e-2)}
_HALF_WEIGHTS = Reference(scores="float32", softmax="float32")

FLASH_ATTENTION_2 = Rule(
    against=FLOAT32, measure=_LOW, compare={"output": multiple(2, 1e-5), **gradients_by(multiple(3, 1e-5))}
)
FLASH_ATTENTION_3 = Rule(
    against=FLOAT32,
    measure=_LOW,
    compare={"output": multiple_and_rounding(), **gradients_by(multiple_and_rounding(softcap_slack=3e-4))},
)
TORCH_SDPA = Rule(
    against=HIGHER_MATH,
    measure=MATH,
    compare={"output": fudge(4), "dq": fudge(180, 160), "dk": fudge(16, 25), "dv": fudge(8), "dbias": fudge(45)},
)
FLEX_ATTENTION = Rule(
    against=FLOAT64,
    measure=_HALF_WEIGHTS,
    compare={"output": mean_multiple(1.1, 10), "lse": mean_multiple(20, 20), **gradients_by(mean_multiple(1.1, 10))},
)
XFORMERS = Rule(
    against=_XFORMERS,
    compare={
        "output": close(_CUTLASS_FORWARD, wide=True),
        "lse": close(every(2e-4, 1e-5), wide=True),
        **gradients_by(close(_CUTLASS_BACKWARD), bias=True),
    },
)
JAX_NN = Rule(
    against=_HALF_WEIGHTS,
    compare={
        "output": close(every(1e-2, 1e-2), equal_nan=True),
        **gradients_by(close(every(2e-2, 2e-2), equal_nan=True), bias=True),
        "dv": close(every(1e-2, 1e-2), equal_nan=True),
    },
)
TRITON_TUTORIAL = Rule(
    against=Reference(softmax="float32"),
    compare={"output": close(every(1e-2, 0.0)), **gradients_by(close(every(1e-2, 0.0)))},
)
KERNEL_BENCH = Rule(against=MATH, compare={"output": close(_KERNEL_BENCH)})
FLASHINFER_BENCH = Rule(
    against=FLOAT32, compare={"output": abs_and_rel(1e-2), "lse": abs_and_rel(1e-2, unit=math.log(2))}
)
FLASHINFER = Rule(against=Reference(softmax="float32"), compare={"output": close(every(1e-3, 1e-3))})
TRANSFORMER_ENGINE = Rule(against=FLOAT64, compare={"output": close(_TE), **gradients_by(close(_TE))})
BACKEND_BENCH = Rule(against=MATH, compare={"output": close(every(1e-2, 1e-2), equal_nan=True)})
ASSERT_CLOSE = Rule(against=MATH, compare={"output": close(_ASSERT_CLOSE), **gradients_by(close(_ASSERT_CLOSE))})
