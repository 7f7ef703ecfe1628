"""Tests of a kernel's errors against random roundings: too large together, or of a common sign.

A worst-case bound must allow every rounding its largest error with the worst sign. Sound kernels that round to nearest
stay far below it, and what lies between shows truncation, wider roundings and wrong exponentials. A test that fails
makes a kernel *suspect*, no more: it has a chance to fail for a sound kernel, at most FALSE_ALARM for one problem
under the model of ``rounding_model``.

Size. Let z be the error of a row, [Dv], over the root of the sum of its variance proxies. The z of R rows are together
a linear map of sub-Gaussian roundings whose covariance proxy has trace R and norm at most N, so by Hsu, Kakade and
Zhang (2012, Electron. Commun. Probab. 17, Theorem 1), with t = log(1/FALSE_ALARM),

    P( sum |z|^2 > R + 2 sqrt(N R t) + 2 N t ) <= exp(-t).

Rows share no rounding but those of k and v, so N is at most 1 plus the sum of the shared parts of the variances over
the rows that read one kv head, of one column where v is rounded.

Bias. A weighted sum of all errors, sum a e, is one linear map, with the variance proxy V of
``rounding_model.variance_of_sum``: it exceeds sqrt(2 V log(2/p)) with probability at most p. Three weightings share
FALSE_ALARM: towards zero (truncated results), up (rounding down or up), and along the derivative by a common relative
change of the scores (truncated q.k, a scale or an exponential that is slightly off).

What may be systematic is added to the thresholds as it stands. The tests are valid where :func:`valid_rows` says so.
The log-sum-exp is left out: the contract's error of the logarithm, of either sign, is larger than its roundings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.chance.rounding_model import (
    Roundings,
    Systematic,
    cut_sums,
    log_weight_variance,
    roundings,
    shared_variances,
    systematic,
    systematic_sum,
    temperature,
    variance,
    variance_of_sum,
)
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.readings import readings, readings_of
from attn_spec.numbers.formats import EIGHT_BITS
from attn_spec.problem.handled import not_handled

#: Options of problems that the tests are valid for, see ``problem.handled``.
HANDLES = ("scale", "feature_epsilon")
#: Largest probability that one problem makes a sound kernel fail one of the two tests.
FALSE_ALARM = 1e-9

#: Fewest rows for a test, and fewest visible keys for a row of them: averages over orders need many terms.
FEWEST_ROWS = 64
FEWEST_KEYS = 32
#: Largest n u of an accumulator, and largest deviation of the logarithm of a weight, for the first order to suffice.
LARGEST_GROWTH = 0.05
LARGEST_DEVIATION = 0.1
#: Weights below this have no influence to speak of.
SIGNIFICANT = 1e-6


@dataclass(frozen=True)
class Statistic:
    """One test of one answer: it fails when ``value`` exceeds ``threshold``."""

    #: Name of the measured quantity, as a sentence has it.
    name: str
    value: float
    threshold: float

    @property
    def ratio(self) -> float:
        """value / threshold; inf where the value is not a number."""
        ratio = self.value / self.threshold
        return math.inf if math.isnan(ratio) else ratio


def outside_model(contract: ResolvedContract) -> str:
    """Return why the model does not describe a resolved contract or a reading of it, as a clause; empty if it does."""
    return next(filter(None, map(_outside_model, readings(contract))), "")


def _outside_model(contract: ResolvedContract) -> str:
    if contract.rounding != "nearest":
        return "its contract does not round to nearest, so its errors have a sign"
    if (
        contract.direction("multiplicands") != "nearest"
        and contract.stages.multiplicands.format.precision < contract.stages.softmax.format.precision
    ):
        return "its contract cuts operands, so its errors have a sign"
    if contract.lse_merges or contract.normalize == "by_lse":
        return "its contract weighs by log-sum-exps, whose errors a row has in common"
    # Weights and row sum are computed apart.
    apart = contract.normalize == "before_product" and contract.kv_tile is not None
    unknown = contract.multiplicand_pieces > 1 or contract.products or contract.inner_accumulation
    unknown = unknown or contract.normalize == "every_tile" or apart
    unknown = unknown or contract.probability_scale != 1 or contract.output in EIGHT_BITS
    if unknown or contract.reference != "maximum":
        return "its contract has roundings that the model does not know"
    if most_terms(contract) < FEWEST_KEYS:
        return "its contract accumulates in a format too narrow for a first-order model"
    return ""


@np.errstate(all="ignore")
def valid_rows(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [B, Hq, Sq] where the tests are valid under a resolved contract, for generic inputs.

    No bias, no softcap, no dropout; enough keys; to first order; no weight is subnormal. Generic (independent and
    symmetric, no ties) is a matter of how the problem was drawn, see ``regimes.Regime.generic``.
    """
    if outside_model(contract) or not_handled(forward.problem, HANDLES):
        return np.zeros(forward.O.shape[:-1], dtype=bool)
    valid = forward_bound(forward, contract).in_domain & (forward.keys[..., 0] >= FEWEST_KEYS)
    weights = np.exp(np.where(forward.visible, forward.s, np.inf).min(axis=-1, initial=np.inf) - forward.M[..., 0])
    for reading in readings_of(contract, forward.problem):
        deviation = log_weight_variance(forward, roundings(forward, reading), systematic(forward, reading))
        significant = np.where(forward.P > SIGNIFICANT, deviation, 0.0).max(axis=-1, initial=0.0)
        valid &= significant < LARGEST_DEVIATION**2
        valid &= np.maximum(forward.keys[..., 0], forward.problem.head_dim) <= most_terms(reading)
        valid &= weights >= smallest_weight(reading)
    return valid


def smallest_weight(contract: ResolvedContract) -> float:
    """Return the smallest exp(s - M) that no format of weights rounds to a subnormal, under a resolved contract."""
    return max(contract.format(stage).smallest_normal for stage in ("softmax", "probabilities"))


def most_terms(contract: ResolvedContract) -> float:
    """Return the largest number of terms for whose sum the tests are valid, under a resolved contract."""
    stages = ("output_accumulation", "row_sum", "score_accumulation")
    return LARGEST_GROWTH / max(contract.stage(stage).u for stage in stages)


def enough(rows: np.ndarray) -> bool:
    """Return whether there are enough valid rows for a test."""
    return int(rows.sum()) >= FEWEST_ROWS


def deviation(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """sigma: root of the variance proxy of each output [.., Sq, Dv], in the reading where it is smallest."""
    return np.sqrt(
        np.minimum.reduce([_model(forward, reading)[2] for reading in readings_of(contract, forward.problem)])
    )


@np.errstate(all="ignore")
def size(forward: Intermediates, contract: ResolvedContract, error: np.ndarray, rows: np.ndarray) -> Statistic:
    """Root mean square of the errors [.., Sq, Dv] of ``rows``, in the reading of the contract that explains it best.

    An error of unknown size is to be given at its smallest.
    """
    tests = (_size(forward, reading, error, rows) for reading in readings_of(contract, forward.problem))
    return min(tests, key=lambda test: test.ratio)


@np.errstate(all="ignore")
def bias(
    forward: Intermediates,
    contract: ResolvedContract,
    error: np.ndarray,
    rows: np.ndarray,
    radius: np.ndarray | float = 0.0,
) -> Statistic:
    """Return the largest weighted sum of the errors, in the reading of the contract that explains it best.

    Each error is known to +- ``radius``.
    """
    radius = np.broadcast_to(radius, error.shape)
    tests = (
        max(_biases(forward, reading, error, rows, radius), key=lambda test: test.ratio)
        for reading in readings_of(contract, forward.problem)
    )
    return min(tests, key=lambda test: test.ratio)


def _size(forward: Intermediates, contract: ResolvedContract, error: np.ndarray, rows: np.ndarray) -> Statistic:
    squared, bounded, proxy = _model(forward, contract)
    total = np.where(rows, proxy.sum(axis=-1), 1.0)
    R, t = int(rows.sum()), math.log(1 / FALSE_ALARM)
    keys, values = (
        np.where(rows[..., None], part / total[..., None], 0.0) for part in shared_variances(forward, squared)
    )
    # Roundings of different columns of v meet in no output.
    norm = 1 + float(
        (forward.over_group(keys).sum(axis=(-1, -2)) + forward.over_group(values).sum(axis=-2).max(axis=-1)).max()
    )
    constants = bounded.constants**2 * np.where(rows, (temperature(forward) ** 2).sum(axis=-1) / total, 0.0).sum()
    cuts = np.where(rows, (cut_sums(forward, contract) ** 2).sum(axis=-1) / total, 0.0).sum()
    value = np.where(rows, (error**2).sum(axis=-1) / total, 0.0).sum()
    random = 1 + 2 * math.sqrt(norm * t / R) + 2 * norm * t / R
    threshold = math.sqrt(random) + math.sqrt(constants / R) + math.sqrt(cuts / R)
    return Statistic("root mean square of error / sigma", math.sqrt(value / R), threshold)


def _biases(
    forward: Intermediates, contract: ResolvedContract, error: np.ndarray, rows: np.ndarray, radius: np.ndarray
) -> Iterator[Statistic]:
    squared, bounded, proxy = _model(forward, contract)
    log_weight = log_weight_variance(forward, squared, bounded)
    known = np.where(rows[..., None], radius + cut_sums(forward, contract), 0.0)
    weightings = {
        "bias of the errors towards zero / sigma": forward.O / proxy,
        "bias of the errors upwards / sigma": 1 / np.sqrt(proxy),
        "bias of the errors along a change of all scores / sigma": temperature(forward) / proxy,
    }
    limit = math.sqrt(2 * math.log(2 * len(weightings) / FALSE_ALARM))
    for name, weighting in weightings.items():
        a = np.where(rows[..., None], weighting, 0.0)
        deviation = math.sqrt(variance_of_sum(forward, squared, a))
        if not deviation:  # equal scores: no change of all of them changes the output
            continue
        value = abs(np.where(rows[..., None], a * error, 0.0).sum()) / deviation
        allowed = systematic_sum(forward, bounded, log_weight, a) + float((np.abs(a) * known).sum())
        yield Statistic(name, float(value), limit + allowed / deviation)


def _model(forward: Intermediates, contract: ResolvedContract) -> tuple[Roundings, Systematic, np.ndarray]:
    """Return the roundings, the systematic errors and the variance proxy of each output."""
    squared, bounded = roundings(forward, contract), systematic(forward, contract)
    return squared, bounded, variance(forward, squared, log_weight_variance(forward, squared, bounded))
