"""Special values: the ends of the range, and the NaN that must not disappear."""

from functools import partial

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.contract.readings import readings
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_scores, changes_weights, replaces_score, ties_values
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property

IEEE = "IEEE 754-2019, sections 6.2 and 7: NaN propagates through sums and products"


def of(*regimes: str, subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of these regimes with at least one query and one key."""
    return problems(subject, without=("empty",), regimes=regimes)


def rows_that_see(problem: Problem, b: int, g: int, j: int) -> np.ndarray:
    """Return True for each row [B, Hq, Sq] that sees key j of kv head g of batch entry b."""
    of_head = np.arange(problem.query_heads) // problem.group == g
    sees = np.zeros(problem.visible.shape[:3], dtype=bool)
    sees[b, of_head] = problem.visible[b, of_head][..., j]
    return sees


@attention_property(
    source="gradual underflow is an absolute error below the smallest normal number, which the bound contains",
    hunts="a division by a flushed quantity, a scale applied to operands that underflow",
    problems=lambda subject: of("tiny", "subnormal", "normal+v_tiny", "tiny+v_tiny", "rising+v_tiny", subject=subject),
    each_call=True,
)
def test_subnormal_numbers_are_handled(subject: Subject, problem: Problem) -> None:
    """Scores and values at the lower end of the range cost no more than the bound's underflow terms."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="the bound's overflow domain: the sums of the declared arithmetic stay below the largest number",
    hunts="accumulators narrower than declared, sums taken before the division when their range does not allow it",
    problems=lambda subject: of("normal+v_huge", "uniform+v_huge", "one_hot+v_huge", "ties+v_wide", subject=subject),
    each_call=True,
)
def test_huge_values_do_not_overflow(subject: Subject, problem: Problem) -> None:
    """Values whose sum over the keys stays below an eighth of the largest number give finite, accurate outputs."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="the scaled score is in range; float16 holds no intermediate q.k above 65504",
    hunts="q.k accumulated or stored in float16 before the scale",
    problems=lambda subject: of("overflow_float16", "normal+v_one", "activations", subject=subject),
    each_call=True,
)
def test_dot_products_beyond_float16_do_not_overflow(subject: Subject, problem: Problem) -> None:
    """abs(q.k) = 76800 is no reason for Inf or NaN in a kernel that declares that it accumulates scores in float32."""
    assert_within_bound(subject, problem, subject(problem))


def without_nan(name: str, own: Subject) -> str:
    """Return why a property of numbers that are not finite in k or v does not apply; empty if it does."""
    dtype = dtype_of(own.dtypes, name)
    return f"no {dtype} in {name} is NaN" if FORMATS[dtype].is_integer else ""


@attention_property(
    source=IEEE,
    hunts="NaN laundered into numbers (nan_to_num, maximum with a constant), NaN spread to columns it has no part in",
    not_applicable=partial(without_nan, "v"),
    problems=lambda subject: problems(
        subject,
        without=("empty", adds_to_scores, replaces_score, changes_weights, ties_values),
        regimes=["uniform"],
        shift=st.just(0.0),
    ),
)
def test_a_nan_in_v_reaches_its_column_of_the_rows_that_see_it(subject: Subject, problem: Problem) -> None:
    """NaN in one entry of V makes that column NaN for the queries that see the key, and no other column.

    Scores are zero, so the key's weight is 1/n, never 0. Queries that do not see the key keep their numbers in
    kernels that declare masked_nonfinite = "excluded"; other kernels declare nothing about them.
    """
    rng = randomness(problem)
    b, g, j, c = (int(rng.integers(n)) for n in problem.v.shape)
    v = problem.v.copy()
    v[b, g, j, c] = np.nan
    found = np.isnan(subject(problem.replace(v=v))["output"])
    sees = rows_that_see(problem, b, g, j)
    if (sees & ~found[..., c]).any():
        raise Refutation(f"v[{b}, {g}, {j}, {c}] is NaN, but {int((sees & ~found[..., c]).sum())} queries see a number")
    excluded = subject.conventions.masked_nonfinite == "excluded"
    spared = ~problem.empty_rows & (~sees if excluded else np.zeros_like(sees))
    wrong = (sees[..., None] & np.delete(found, c, axis=-1)).any() or (found & spared[..., None]).any()
    if wrong:
        raise Refutation(f"the NaN of v[{b}, {g}, {j}, {c}] spread to columns or queries it has no part in")


def subtracts_no_maximum(subject: Subject) -> str:
    """Return why an infinite score may leave a number; an empty text if the contract subtracts a row's maximum."""
    ways = readings(subject.contract)
    if all(contract.reference != "maximum" for contract in ways):
        return f"its contract subtracts no maximum, reference={ways[0].reference!r}"
    if all(contract.lse_merges and contract.merging == "difference" for contract in ways):
        return 'its weights are found from differences of scores and log-sum-exps, merging="difference"'
    return ""


@attention_property(
    source=IEEE + "; inf - inf, the score less the maximum of its row, is NaN",
    hunts="scores clipped to finite numbers, a guard against a maximum of -inf that takes +inf too",
    not_applicable=lambda subject: without_nan("k", subject) or subtracts_no_maximum(subject),
    problems=lambda subject: problems(
        subject,
        without=("empty", "scale", "softcap", "rotary", adds_to_scores, replaces_score, changes_weights, ties_values),
        regimes=["normal", "integers"],
        shift=st.just(0.0),
    ),
)
def test_an_infinite_score_gives_no_number(subject: Subject, problem: Problem) -> None:
    """An infinite entry of k, where queries are positive, makes the rows NaN that see the key and another one.

    The softmax of one score is 1 whatever it is, and no score need be computed. In a dtype without infinities the entry
    is NaN, as what it makes of numbers that are too large.
    Other rows are the subject of ``a_nan_in_v_reaches_its_column_of_the_rows_that_see_it``.
    """
    rng = randomness(problem)
    b, g, j, c = (int(rng.integers(n)) for n in problem.k.shape)
    q, k = problem.q.copy(), problem.k.copy()
    q[..., c] = np.maximum(np.abs(q[..., c]), 1.0)
    k[b, g, j, c] = bits.nearest(np.array(np.inf), problem.dtype_of("k"))
    found = np.isnan(subject(problem.replace(q=q, k=k))["output"])
    sees = rows_that_see(problem, b, g, j) & (problem.visible.sum(-1) > 1)
    if rows := int((sees[..., None] & ~found).any(-1).sum()):
        raise Refutation(
            f"k[{b}, {g}, {j}, {c}] is {k[b, g, j, c]} and its scores are, but {rows} rows that see it hold numbers; a "
            "kernel that subtracts no maximum of a row says so by the contract field reference, or merging"
        )
