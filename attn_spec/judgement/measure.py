"""Measured errors: in ulps, relative, and as a ratio to the bound, against the oracle's enclosure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.attention.enclosure import Enclosed, Truth
from attn_spec.bounds.backward.gradient_bounds import GradientBound
from attn_spec.bounds.forward.bounds import ForwardBound
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.readings import gradient_readings_of, readings_of
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, stands, term
from attn_spec.judgement.analysis import Analysis, analysis_of, gradient_analysis_of
from attn_spec.judgement.best_reading import best
from attn_spec.numbers import bits
from attn_spec.problem.conventions import DEFAULTS, OPEN, Conventions
from attn_spec.problem.problem import Problem
from attn_spec.problem.used_places import used_places


@dataclass(frozen=True)
class Measurement:
    """Errors of one quantity of one answer; arrays have the quantity's shape, with NaN where nothing is measured."""

    #: Name of the quantity in ``problem.quantities``.
    name: str
    #: Format whose ulp is the unit of ``ulps``.
    dtype: str
    got: np.ndarray
    truth: Enclosed
    #: Largest error the contract allows, for each element.
    allowed: np.ndarray
    #: Upper bound on |got - truth|.
    error: np.ndarray
    #: True for elements outside their bound for certain: even the nearest point of the enclosure is too far away.
    outside: np.ndarray
    #: True for elements that the bound covers: visible rows without overflow, and empty rows that a convention decides.
    measured: np.ndarray
    #: True for elements that some contract may cover: all except rows whose answer no convention decides.
    asked: np.ndarray
    #: Factor of stored numbers: the scale of an output, else 1.
    unit: float = 1.0

    @property
    def silent(self) -> int:
        """Number of elements that the bound is silent about, though another bound may cover them."""
        return int((self.asked & ~self.measured).sum())

    @property
    @np.errstate(all="ignore")
    def ulps(self) -> np.ndarray:
        """Error in units of the spacing of ``dtype`` at the truth."""
        return self.error / (self.unit * bits.spacing(self.truth.value / self.unit, self.dtype))

    @property
    @np.errstate(all="ignore")
    def relative(self) -> np.ndarray:
        """Error relative to the truth; NaN where the truth is 0."""
        return np.where(self.truth.value == 0, np.nan, self.error / np.abs(self.truth.value))

    @property
    @np.errstate(all="ignore")
    def ratios(self) -> np.ndarray:
        """Error over allowed error; 0 where both are 0, NaN where nothing is measured."""
        ratio = np.where(self.error == 0, 0.0, self.error / self.allowed)
        return np.where(self.measured, np.where(np.isnan(ratio), np.inf, ratio), np.nan)

    @property
    def ratio(self) -> float:
        """Largest ratio of error to allowed error; 0.0 when nothing was measured."""
        return float(np.max(self.ratios, where=self.measured, initial=0.0))

    @property
    def worst(self) -> tuple[int, ...]:
        """Index of the element with the largest ratio, among those outside their bound for certain if there are any."""
        if not self.measured.any():
            return (0,) * self.got.ndim
        candidates = self.outside if self.outside.any() else self.measured
        ratios = np.where(candidates, self.ratios, -1.0)
        return tuple(int(n) for n in np.unravel_index(int(np.argmax(ratios)), ratios.shape))


@dataclass(frozen=True)
class Judgement:
    """Verdict on one answer."""

    problem: Problem
    #: Reading of the declared contract that explains the answer best.
    contract: ResolvedContract
    measurements: tuple[Measurement, ...]
    #: True if the declared contract has other readings.
    chosen: bool = False

    @property
    def refuted(self) -> bool:
        """True if some element is outside its bound for certain."""
        return any(measurement.outside.any() for measurement in self.measurements)

    @property
    def ratio(self) -> float:
        """Largest ratio of error to allowed error over all quantities."""
        return max((measurement.ratio for measurement in self.measurements), default=0.0)

    @property
    def exercised(self) -> bool:
        """True if any element was measured."""
        return any(measurement.measured.any() for measurement in self.measurements)

    @property
    def silent(self) -> int:
        """Number of elements that the reading is silent about, though another reading may cover them."""
        return sum(measurement.silent for measurement in self.measurements)

    def of_rows_with_keys(self) -> Judgement:
        """Return this judgement of output and LSE restricted to rows that see at least one key."""
        sees = {"lse": ~self.problem.blind_queries, "output": ~self._blind_somewhere()[..., None]}
        left = (
            (measurement, np.broadcast_to(sees[measurement.name], measurement.got.shape))
            for measurement in self.measurements
        )
        return replace(self, measurements=tuple(_at(measurement, places) for measurement, places in left))

    def _blind_somewhere(self) -> np.ndarray:
        """Return the output rows [B, 1 or Hq, Sq] that see no key; in a layer, those in which any head sees none."""
        empty = self.problem.blind_queries
        return np.any(empty, axis=1, keepdims=True) if self.problem.projects else empty

    @property
    def worst(self) -> Measurement:
        """Measurement of the quantity with the worst element."""
        return max(self.measurements, key=lambda measurement: (bool(measurement.outside.any()), measurement.ratio))


def _at(measurement: Measurement, places: np.ndarray) -> Measurement:
    """Return a measurement of the elements at some places, bool that broadcasts to its shape."""
    fields = {name: getattr(measurement, name) & places for name in ("measured", "outside", "asked")}
    return replace(measurement, **fields)


@np.errstate(all="ignore")
def judge(
    problem: Problem | Analysis,
    contract: ResolvedContract,
    *,
    output: np.ndarray | None = None,
    lse: np.ndarray | None = None,
    conventions: Conventions = DEFAULTS,
) -> Judgement:
    """Compare exact values of O [B, Hq, Sq, Dv] and LSE [B, Hq, Sq] with the truth, under a resolved contract.

    ``problem`` may be an analysis of the problem, whose results are then reused. Neither quantity is required.

    A convention that is left open leaves rows without keys, or rows behind their sequence, unmeasured. If the contract
    leaves a choice open ("either"), one choice has to explain output and LSE together.
    """
    known = problem if isinstance(problem, Analysis) else analysis_of(problem)
    choices = readings_of(contract, known.problem)
    return _best(lambda reading: _judge(known, reading, output, lse, conventions), choices)


def _best(judge: Callable[[ResolvedContract], Judgement], choices: Sequence[ResolvedContract]) -> Judgement:
    """Return the judgement under the reading that explains the answer best; ``chosen`` says whether others exist."""
    return replace(best(judge, choices), chosen=len(choices) > 1)


def _judge(
    known: Analysis,
    contract: ResolvedContract,
    output: np.ndarray | None,
    lse: np.ndarray | None,
    conventions: Conventions,
) -> Judgement:
    """Judge an answer as :func:`judge` does, under a contract without alternatives."""
    problem, measurements = known.problem, []
    truth, bound = known.truth_and_bound(contract)
    there = problem.there
    if output is not None:
        expected, allowed, inside = _with_empty_rows(known, contract, truth["output"], bound, conventions)
        decided = there | guard("rows behind their sequence are not measured", conventions.unused_rows == "zero", True)
        # Arithmetic of a row that is not there may spread NaN as that of one that sees no key.
        behind = bound.domain_of("output") if problem.projects else bound.empty_in_domain
        behind = decided & guard("hidden scores of rows behind their sequence", behind, True)
        inside, allowed = np.where(there, inside, behind), np.where(there[..., None], allowed, 0.0)
        measured = np.broadcast_to(
            guard("rows outside the domain are not measured", inside[..., None], True), output.shape
        )
        asked = np.where(there, decided, behind) & ~_undecided(problem, conventions)
        asked = np.broadcast_to(asked[..., None], output.shape)
        one = _measure(
            "output", contract.output, output, truth=expected, allowed=allowed, measured=measured, asked=asked
        )
        measurements.append(replace(one, unit=problem.output_unit))
    if lse is not None:
        if not conventions.sink_in_lse:
            known = known.without_sinks
            truth, bound = known.truth_and_bound(contract)
        empty = known.problem.empty_rows
        expected, allowed, fits = _in_base(truth["lse"], bound.allowed["lse"], conventions.lse_base, contract)
        decided = conventions.empty_lse != OPEN
        value = float(conventions.empty_lse) if decided else np.nan
        expected = replace(expected, value=np.where(empty, value, expected.value))
        allowed = np.where(empty, 0.0, allowed)
        measured, asked = (
            fits & term("a log-sum-exp that overflows is not measured", bound.domain_of("lse"), bound.in_domain)
            | (bound.empty_in_domain & guard("an undeclared log-sum-exp of no keys is not measured", decided, True)),
            ~empty | guard("rows whose log-sum-exp no convention decides are not asked for", decided, True),
        )
        measured, asked = measured & there, asked & there
        measurements.append(
            _measure("lse", contract.lse, lse, truth=expected, allowed=allowed, measured=measured, asked=asked)
        )
    return Judgement(problem, contract, tuple(measurements))


@np.errstate(all="ignore")
def judge_gradients(
    problem: Problem,
    contract: ResolvedContract,
    cotangent: np.ndarray,
    found: Mapping[str, np.ndarray],
    lse_cotangent: np.ndarray | None = None,
    *,
    conventions: Conventions = DEFAULTS,
) -> Judgement:
    """Compare exact values of "dq", "dk", "dv", "dbias" with the truth for dO = ``cotangent``, dL = ``lse_cotangent``.

    Queries that see no key are constants, by the convention "zero". Under another convention the caller must avoid
    them. Gradients of queries and keys that are not there are measured if the convention ``unused_rows`` is "zero".
    """
    known = gradient_analysis_of(problem, cotangent, lse_cotangent)
    is_open = problem.has_lengths and conventions.unused_rows == OPEN
    used = {name: used_places(problem, name, x.shape) for name, x in found.items()} if is_open else {}

    def judged(reading: ResolvedContract) -> Judgement:
        of_all = measured_gradients(problem, reading, found, *known.truth_and_bound(reading, *found))
        parts = tuple(_at(one, used[one.name]) if one.name in used else one for one in of_all.measurements)
        return replace(of_all, measurements=parts)

    return _best(judged, gradient_readings_of(contract, problem))


@np.errstate(all="ignore")
def measured_gradients(
    problem: Problem, reading: ResolvedContract, found: Mapping[str, np.ndarray], truth: Truth, bound: GradientBound
) -> Judgement:
    """Measure the kernel's gradients against their truth and their bounds."""
    measurements = [
        _measure(
            name,
            dtype,
            got,
            truth=truth[name],
            allowed=bound.allowed[name],
            measured=inside,
            asked=np.ones(got.shape, dtype=bool),
        )
        for name, got in found.items()
        for inside in (
            np.broadcast_to(
                guard("gradients outside the domain are not measured", bound.domain_of(name), True), got.shape
            ),
        )
        for dtype in (problem.dtype_of(name[1:], reading.gradients),)
    ]
    return Judgement(problem, reading, tuple(measurements))


def _with_empty_rows(
    known: Analysis, contract: ResolvedContract, truth: Enclosed, bound: ForwardBound, conventions: Conventions
) -> tuple[Enclosed, np.ndarray, np.ndarray]:
    """Return truth, allowed error and domain [B, Hq, Sq], with the convention's answer in rows that see no key."""
    problem = known.problem
    if problem.projects:
        return _with_empty_heads(known, contract, truth, bound, conventions)
    blind = conventions.blind_queries(problem)
    constant, mean = (blind["zero"] | blind["nan"])[..., None], blind["mean_of_v"]
    # A sink that holds all of the weight has the value 0, and no product is formed.
    allowed = np.where(problem.sink_alone[..., None] | constant, 0.0, bound.allowed["output"])
    truth = replace(truth, value=np.where(blind["nan"][..., None], np.nan, truth.value))
    empty = bound.empty_in_domain & ~(mean | blind[OPEN])
    inside = bound.in_domain | guard("rows that see no key are measured", empty, False)
    if not mean.any():
        return truth, allowed, inside
    of_mean, mean_bound = known.of_equal_scores.truth_and_bound(contract)
    decided = mean_bound.in_domain & bound.empty_in_domain & ~_undecided(problem, conventions)
    inside = np.where(mean, guard("a mean of V in such rows is measured", decided, False), inside)
    of_mean_allowed = term("a mean of V has a bound", mean_bound.allowed["output"])
    mean = mean[..., None]
    return _replaced(truth, of_mean["output"], mean), np.where(mean, of_mean_allowed, allowed), inside


def _replaced(truth: Enclosed, other: Enclosed, rows: np.ndarray) -> Enclosed:
    """Return an enclosure that is the other one in some rows."""
    names = ("value", "low", "radius")
    return Enclosed(**{name: np.where(rows, getattr(other, name), getattr(truth, name)) for name in names})


def _with_empty_heads(
    known: Analysis, contract: ResolvedContract, truth: Enclosed, bound: ForwardBound, conventions: Conventions
) -> tuple[Enclosed, np.ndarray, np.ndarray]:
    """Return truth, allowed error and domain of a layer, [B, 1, Sq], with the convention's answer of heads without a
    key.

    The head adds 0 or NaN to the output. Rows are not measured in which some head has an output that is open, or is a
    mean of V beside heads whose output is not.
    """
    allowed, inside = bound.allowed["output"], bound.domain_of("output")
    blind = conventions.blind_queries(known.problem)
    some = {choice: np.any(rows, axis=1, keepdims=True) for choice, rows in blind.items()}
    means = np.all(blind["mean_of_v"], axis=1, keepdims=True)
    if means.any():
        mean, mean_bound = known.of_equal_scores.truth_and_bound(contract)
        truth = _replaced(truth, mean["output"], means[..., None])
        allowed = np.where(means[..., None], mean_bound.allowed["output"], allowed)
        inside = np.where(means, inside & mean_bound.domain_of("output"), inside)
    wide = some["nan"][..., None]
    truth, allowed = replace(truth, value=np.where(wide, np.nan, truth.value)), np.where(wide, 0.0, allowed)
    return truth, allowed, (inside | some["nan"]) & ~_undecided(known.problem, conventions)


def _in_base(
    truth: Enclosed, allowed: np.ndarray, base: str, contract: ResolvedContract
) -> tuple[Enclosed, np.ndarray, np.ndarray]:
    """Return the LSE as a logarithm of another base, its allowed error, and where it fits its formats, [B, Hq, Sq].

    Base 2 costs one more product with a rounded constant, in the format that the logarithm is found in or stored in.
    And log2 may overflow where the natural logarithm does not.
    """
    if base == "e":
        return truth, allowed, np.ones(allowed.shape, dtype=bool)
    value = truth.value / np.log(2.0)
    tiny = np.where(np.isfinite(value), np.abs(value), 0.0) * 2.0**-50
    stages = contract.stages.lse, contract.stages.softmax
    allowed = allowed / np.log(2.0) * (1 + 2.0**-40)
    size = np.where(np.isfinite(value), np.abs(value), 0.0) + allowed
    extra = gamma((max(one.u for one in stages), 3)) * size + max(one.eta for one in stages)
    converted = Enclosed(value, truth.low / np.log(2.0), truth.radius * 1.5 + tiny)
    allowed = allowed + term("roundings of a logarithm of base 2", extra)
    held = np.where(np.isfinite(value), np.abs(value), 0.0) + allowed <= contract.largest("lse", "softmax")
    return converted, allowed, guard("a log-sum-exp of base 2 that overflows is not measured", held, True)


def _undecided(problem: Problem, conventions: Conventions) -> np.ndarray:
    """Return the output rows [B, 1 or Hq, Sq] whose answer no convention decides; in a layer a row counts for any head.

    The mean of a layer's head cannot be separated from the output of the heads that see keys. A mean of V may be that
    of the sequence's keys or of all keys of the tensor, if these differ.
    """
    blind = conventions.blind_queries(problem)
    has_others, mean = (~problem.keys_there).any(axis=-1, keepdims=True), blind["mean_of_v"]
    if not problem.projects:
        undecided = guard("rows whose output no convention decides are not asked for", blind[OPEN], False)
        return (mean & has_others) | undecided
    every = np.all(mean, axis=1, keepdims=True)
    some = {choice: np.any(rows, axis=1, keepdims=True) for choice, rows in blind.items()}
    return some[OPEN] | (some["mean_of_v"] & (~every | has_others))


def _measure(
    name: str,
    dtype: str,
    got: np.ndarray,
    *,
    truth: Enclosed,
    allowed: np.ndarray,
    measured: np.ndarray,
    asked: np.ndarray,
) -> Measurement:
    distance = np.abs((got - truth.value) - truth.low)
    same = bits.identical(got, truth.value) | (got == truth.value)
    exact = guard("another infinity is an error", same, True) & ~np.isfinite(truth.value)
    distance = np.where(
        exact & stands("the same infinity is no error"),
        0.0,
        term("NaN is as far away as can be", np.where(np.isfinite(distance), distance, np.inf), distance),
    )
    error = distance + term(
        "an error is counted from the far end of an enclosure", np.where(np.isfinite(truth.value), truth.radius, 0.0)
    )
    measured = measured & guard("an element without a bound is not measured", np.isfinite(allowed), True)
    outside = measured & (distance - term("what an enclosure leaves open refutes nothing", truth.radius) > allowed)
    return Measurement(
        name, dtype, got, truth, allowed, np.where(measured, error, np.nan), outside, measured, asked & np.ones(1, bool)
    )
