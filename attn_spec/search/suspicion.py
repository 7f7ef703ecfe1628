"""Statistical properties: draw generic problems, measure their errors, and raise Suspicion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from attn_spec.bounds.intermediates import Intermediates, intermediates
from attn_spec.chance import error_statistics
from attn_spec.judgement.oracle import Oracle
from attn_spec.search.drawing import strategies
from attn_spec.search.drawing.regimes import REGIMES, Recipe
from attn_spec.search.property import Suspicion, observe

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attn_spec.chance.error_statistics import Statistic
    from attn_spec.contract.contract import ResolvedContract
    from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import all_but

#: Fraction of an error's standard deviation below which the oracle's radius stays.
ORACLE_FRACTION = 2.0**-16
#: Approximate size of the smallest weights of offset queries.
SPREAD = 2.0**-40
#: Number of heads of a problem, and of rows of a problem for a kernel that takes few queries; some rows are outside the
#: model.
HEADS, ROWS = 4, 3 * error_statistics.FEWEST_ROWS // 2
#: Number of keys of a problem for an accumulator that allows no more.
FEWEST = 64


@dataclass(frozen=True)
class Errors:
    """Signed errors of one answer."""

    intermediates: Intermediates
    contract: ResolvedContract
    #: Errors, [B, Hq, Sq, Dv], each known to +- ``radius``.
    error: np.ndarray
    radius: np.ndarray
    #: Rows in which the statistics are valid: bool [B, Hq, Sq].
    rows: np.ndarray

    def size(self) -> Statistic:
        """Return the test of the errors' sizes."""
        least = np.maximum(np.abs(self.error) - self.radius, 0.0)
        return error_statistics.size(self.intermediates, self.contract, least, self.rows)

    def bias(self) -> Statistic:
        """Return the test of the errors' signs."""
        return error_statistics.bias(self.intermediates, self.contract, self.error, self.rows, self.radius)


def is_generic(problem: Problem) -> bool:
    """Return whether the problem was drawn from generic regimes only, without a shift."""
    recipe = problem.recipe
    if not isinstance(recipe, Recipe) or recipe.shift:
        return False
    return all(REGIMES[name].generic for name in recipe.regime.split("+"))


def generic_problems(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems on which statistics are valid, each large enough for averages: 64 rows or more.

    Problems are smaller for slow kernels and for float64.
    """
    costly = subject.dtype == "float64" or subject.kernel.slowness > 1
    terms, dims = (64, 65) if costly else (128, 129, 256), (16, 64) if costly else (64, 128)
    queries = (16,) if costly else (32, 33)
    most = error_statistics.most_terms(subject.contract)
    lengths = [n for n in terms if n <= most] or [FEWEST]
    allowed = sorted(subject.kernel.limits.equal_dims or dims)
    D = st.shared(st.sampled_from([dim for dim in dims if dim in allowed and dim <= most] or allowed), key="head_dim")
    return strategies.problems(
        subject,
        without=("gqa", "dv", "empty", all_but()),
        regimes=["normal", "offset_q"] if error_statistics.smallest_weight(subject.contract) < SPREAD else ["normal"],
        batch=_batch(subject, min(queries)),
        query_heads=HEADS,
        kv_heads=HEADS,
        query_length=st.sampled_from(queries),
        key_length=st.sampled_from(lengths),
        head_dim=D,
        value_dim=D,
    )


def _batch(subject: Subject, queries: int) -> int:
    """Return the number of batch entries: one, or enough for ``ROWS`` if the kernel takes fewer queries than
    ``queries``.
    """
    taken = subject.kernel.limits.query_lengths
    return 1 if taken is None else max(math.ceil(ROWS / (HEADS * min(queries, max(taken)))), 1)


def not_applicable(subject: Subject) -> str:
    """Return why statistics of rounding errors do not apply to a subject; an empty text if they do."""
    if reason := error_statistics.outside_model(subject.contract):
        return reason
    plain = Recipe(dtypes=subject.dtype, query_length=FEWEST, key_length=FEWEST, head_dim=16, value_dim=1).problem()
    if not error_statistics.enough(error_statistics.valid_rows(intermediates(plain), subject.contract)):
        return "its contract rounds scores too coarsely for a first-order model"
    return ""


def errors(subject: Subject, problem: Problem) -> Errors:
    """Return the errors of the subject's answer. Raises ``UnsatisfiedAssumption`` if statistics are not valid."""
    if not is_generic(problem):
        raise UnsatisfiedAssumption("the problem was not drawn from generic regimes")
    forward, contract = intermediates(problem), subject.contract
    rows = error_statistics.valid_rows(forward, contract)
    if not error_statistics.enough(rows):
        raise UnsatisfiedAssumption("too few rows are inside the model")
    wanted = ORACLE_FRACTION * error_statistics.deviation(forward, contract)
    truth = Oracle(forward)(output=wanted, lse=np.full(rows.shape, np.inf))["output"]
    error = (subject(problem)["output"] - truth.value) - truth.low
    return Errors(forward, contract, error, np.where(np.isfinite(truth.radius), truth.radius, 0.0), rows)


def assert_below_threshold(statistic: Statistic, rows: np.ndarray) -> None:
    """Raise :class:`Suspicion` if the statistic of these rows exceeds its threshold."""
    observe(statistic.ratio, statistic.name)
    if statistic.ratio > 1:
        raise Suspicion(
            f"the {statistic.name} is {statistic.value:.3g} over {int(rows.sum())} rows; roundings to nearest "
            f"stay below {statistic.threshold:.3g}"
        )
