"""Analysis of one problem, made once: intermediates, bounds, and the truth as sharp as any caller asked for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property

import numpy as np

from attn_spec.attention.enclosure import Enclosed, Truth
from attn_spec.bounds.backward.gradient_bounds import GradientBound
from attn_spec.bounds.forward.bounds import ForwardBound
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, gradient_intermediates, intermediates
from attn_spec.bounds.replay import Replayed, replayed
from attn_spec.bounds.theorems import forward_bound, gradient_bound, gradient_evaluation_error
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import remembered, state, term
from attn_spec.judgement.oracle import GradientOracle, Oracle
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import CHOICE, OUTPUT, WEIGHT
from attn_spec.problem.problem import Problem

#: Fraction of the allowed error below which the oracle's radius stays.
ORACLE_FRACTION = 2.0**-10
#: Number of analyses in the cache: a property asks more than once about the one or two problems that it compares.
KEPT = 4

#: Bytes and shape of a float64 array.
_Frozen = tuple[bytes, tuple[int, ...]]


class Analysis:
    """Analysis of the forward pass of a problem, for any contract."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._found: dict[ResolvedContract, tuple[Truth, ForwardBound]] = {}
        self._replays: dict[Hashable, Analysis] = {}

    @cached_property
    def intermediates(self) -> Intermediates:
        """Intermediates of the forward pass in float64."""
        return intermediates(self.problem)

    @cached_property
    def oracle(self) -> Oracle:
        """Oracle of output and LSE, which refines the truth on demand."""
        return Oracle(self.intermediates)

    @cached_property
    def of_equal_scores(self) -> Analysis:
        """Analysis of the problem with every score 0, so that attention is the mean of the visible values.

        No option but dropout is used. A layer stays a layer, without the bias that would make its queries other than 0.
        """
        stay = {name for name, row in OPTIONS.items() if OPTIONS.get(row.of, row).kind in (CHOICE, OUTPUT, WEIGHT)}
        stay |= {name for name, row in OPTIONS.items() if row.projects_values} - {"query_projection_bias"}
        plain = {name: row.off for name, row in OPTIONS.items() if name not in stay}
        return Analysis(self.problem.replace(q=np.zeros(self.problem.q.shape), **plain))

    @cached_property
    def without_sinks(self) -> Analysis:
        """Analysis of the problem without sinks; a new one even where it has none."""
        return Analysis(self.problem.without_sinks())

    @np.errstate(all="ignore")
    def truth_and_bound(self, contract: ResolvedContract) -> tuple[Truth, ForwardBound]:
        """Return the truth and the bound under a contract, the truth sharp enough for the bound."""
        if (known := self.replay(contract)) is not self:
            return known.truth_and_bound(contract)
        if contract not in self._found:
            self._found[contract] = self._truth_and_bound(contract)
        return self._found[contract]

    def replay(self, contract: ResolvedContract) -> Analysis:
        """Return the analysis of what the quantisers of a contract leave of the problem; this one if it has none."""
        if not contract.quantisers or isinstance(self.problem, Replayed):
            return self
        key = (state(), contract.quantisers, contract.score_accumulation)
        if key not in self._replays:
            self._replays[key] = Analysis(replayed(self.problem, contract))
        return self._replays[key]

    def _truth_and_bound(self, contract: ResolvedContract) -> tuple[Truth, ForwardBound]:
        first = self.oracle.first["output"]
        finite = np.where(np.isfinite(first.radius), first.radius, 0.0)
        bound = forward_bound(self.intermediates, contract, first.value, finite)
        truth = self.oracle(**{name: ORACLE_FRACTION * allowed for name, allowed in bound.allowed.items()})
        if truth is not self.oracle.first:
            o = truth["output"]
            sharp = np.where(np.isfinite(o.radius), o.radius, 0.0) + np.abs(o.low)
            bound = forward_bound(self.intermediates, contract, o.value, sharp)
        if isinstance(self.problem, Replayed) and self.problem.lse_shift is not None:
            return with_mean_of_keys(self.problem, contract, truth, bound)
        return truth, bound


@np.errstate(all="ignore")
def with_mean_of_keys(
    problem: Replayed, contract: ResolvedContract, truth: Truth, bound: ForwardBound
) -> tuple[Truth, ForwardBound]:
    """Return truth and bound of the log-sum-exp of keys that have their mean again, and those of the output unchanged.

    The query's product with the mean is added, and the sum is rounded once. Float64 finds the product to 2^-40 of its
    error in float32, which is counted there.
    """
    assert problem.lse_shift is not None
    assert problem.lse_shift_error is not None
    L, final = truth["lse"], contract.stages.lse
    value = L.value + problem.lse_shift
    size = np.where(np.isfinite(value), np.abs(value), 0.0)
    of_sum = gamma((final.u, 1)) * (size + bound.allowed["lse"] + problem.lse_shift_error) + final.eta
    allowed = (
        bound.allowed["lse"]
        + problem.lse_shift_error
        + term("the sum of a log-sum-exp and a product with the mean", of_sum)
    )
    held = size + allowed <= contract.largest("lse", "softmax", "score_accumulation")
    found = Enclosed(value, L.low, L.radius + 2.0**-52 * size)
    domain = bound.domain_of("lse") & (held | problem.empty_rows)
    return {**truth, "lse": found}, replace(bound, allowed={**bound.allowed, "lse": allowed}, lse_domain=domain)


class GradientAnalysis:
    """Analysis of the backward pass for the cotangents dO [B, Hq, Sq, Dv] and dL [B, Hq, Sq]; dL = None is 0."""

    def __init__(self, problem: Problem, cotangent: np.ndarray, lse_cotangent: np.ndarray | None = None) -> None:
        self.problem = problem
        self.forward = analysis_of(problem).intermediates
        self.backward: GradientIntermediates = gradient_intermediates(self.forward, cotangent, lse_cotangent)
        self._found: dict[ResolvedContract, GradientBound] = {}

    @cached_property
    def oracle(self) -> GradientOracle:
        """Oracle of the gradients, which refines the truth on demand."""
        return GradientOracle(self.forward, self.backward)

    def bound(self, contract: ResolvedContract) -> GradientBound:
        """Return the bound of the gradients under one reading of a contract."""
        if contract not in self._found:
            self._found[contract] = gradient_bound(self.forward, self.backward, contract, self._evaluation)
        return self._found[contract]

    @cached_property
    def _evaluation(self) -> GradientBound:
        return gradient_evaluation_error(self.forward, self.backward)

    def truth_and_bound(self, contract: ResolvedContract, *names: str) -> tuple[Truth, GradientBound]:
        """Return the bound under one reading of a contract, and the truth sharp enough for the named gradients."""
        bound = self.bound(contract)
        return self.oracle(**{name: ORACLE_FRACTION * bound.allowed[name] for name in names}), bound


@remembered(KEPT)
def analysis_of(problem: Problem) -> Analysis:
    """Return the analysis of a problem from a small cache. Callers must not change its arrays."""
    return Analysis(problem)


def gradient_analysis_of(
    problem: Problem, cotangent: np.ndarray, lse_cotangent: np.ndarray | None = None
) -> GradientAnalysis:
    """Return the analysis of the backward pass, made once for equal cotangents."""
    return _gradient_analysis(problem, _frozen(cotangent), None if lse_cotangent is None else _frozen(lse_cotangent))


@remembered(KEPT)
def _gradient_analysis(problem: Problem, cotangent: _Frozen, lse_cotangent: _Frozen | None) -> GradientAnalysis:
    dL = None if lse_cotangent is None else _array(lse_cotangent)
    return GradientAnalysis(problem, _array(cotangent), dL)


def _frozen(x: np.ndarray) -> _Frozen:
    return np.asarray(x, dtype=np.float64).tobytes(), x.shape


def _array(frozen: _Frozen) -> np.ndarray:
    return np.frombuffer(frozen[0]).reshape(frozen[1])
