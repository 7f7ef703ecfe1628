"""Mutants inside the bound on ordinary problems, but less accurate than they declare: suspect, not refuted.

Each executes the contract it declares but for one arithmetic defect.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE
from attn_spec.search.verdict import Verdict

from .mutants import mutant

SIZE = "statistics.errors_are_together_no_larger_than_independent_roundings_make_them"
BIAS = "statistics.errors_have_no_common_sign"

#: The dtype at which a defect is one.
FLOAT32: dict[str, Any] = {"dtype": "float32", "dtypes": ("float32",)}
BFLOAT16: dict[str, Any] = {"dtype": "bfloat16", "dtypes": ("bfloat16",)}

suspect = partial(mutant, verdict=Verdict.SUSPECT)


class Truncating(TiledAttention):
    """The unchanged kernel, but results of some stages are rounded toward zero."""

    #: Stages of the contract.
    stages: tuple[str, ...] = ()

    def round(self, x: object, stage: str) -> np.ndarray:
        towards = "toward_zero" if stage in self.stages else self.c.rounding
        return rounded(np.asarray(x, np.float64), getattr(self.c, stage), towards)


class Narrowing(TiledAttention):
    """The unchanged kernel, but results of some stages keep fewer bits, rounded to nearest."""

    stages: tuple[str, ...] = ()
    precision = 24

    def round(self, x: object, stage: str) -> np.ndarray:
        if stage not in self.stages:
            return super().round(x, stage)
        significand, exponent = np.frexp(np.asarray(x, np.float64))
        return np.ldexp(np.rint(np.ldexp(significand, self.precision)), exponent - self.precision)


@suspect(
    source="made up: tensor cores truncate (Fasi, Higham, Mikaitis and Pranesh, 2021)",
    named_by=BIAS,
    **FLOAT32,
)
class AccumulatorsTruncate(Truncating):
    """q.k and p.v are accumulated in float32, but truncated."""

    stages = ("score_accumulation", "output_accumulation")


@suspect(source="made up: one of two products on a truncating unit", named_by=BIAS, **FLOAT32)
class OutputAccumulatorTruncates(Truncating):
    """p.v is accumulated in float32, but truncated."""

    stages = ("output_accumulation",)


@suspect(source="made up: the other product on a truncating unit", named_by=BIAS, contract=PRECISE, **FLOAT32)
class ScoreAccumulatorTruncates(Truncating):
    """q.k is accumulated in float32, but truncated, so that scores shrink."""

    stages = ("score_accumulation",)


@suspect(
    source="made up: a cast that drops the lower half of a float32",
    named_by=BIAS,
    **BFLOAT16,
)
class ProbabilitiesTruncate(Truncating):
    """Weights are truncated to bfloat16, declared to be rounded."""

    stages = ("probabilities",)


@suspect(
    source="made up: a store that drops the lower half of a float32",
    named_by=BIAS,
    **BFLOAT16,
)
class OutputTruncates(Truncating):
    """Outputs are truncated to bfloat16, declared to be rounded."""

    stages = ("output",)


@suspect(
    source="arXiv 2412.19437 (section 3.3.2: accumulators of fewer bits than float32)",
    named_by=SIZE,
    **FLOAT32,
)
class ScoreAccumulatorOfFewerBits(Narrowing):
    """q.k is accumulated in 21 bits instead of 24."""

    stages = ("score_accumulation",)
    precision = 21


@suspect(
    source="made up: log2(e) kept in too few bits",
    named_by=BIAS,
    **dict(BFLOAT16, contract=replace(FUSED, matrix_rounding=None)),
    lacks=("lse",),
)
class ExponentialSlopes(TiledAttention):
    """Arguments of the exponential are too large by 2^-10, in a kernel that returns no log-sum-exp."""

    def exponential(self, x: np.ndarray) -> np.ndarray:
        return super().exponential(x * (1 + 2.0**-10))
