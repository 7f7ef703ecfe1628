"""Online rescaling: softmax computed tile by tile equals softmax computed at once, wherever the maximum moves."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.attention.enclosure import Enclosed
from attn_spec.contract.readings import readings
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import Measurement
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import (
    adds_to_row_sum,
    adds_to_values,
    bends_scores,
    changes_scores,
    positional,
    projects,
    ties_values,
)
from attn_spec.search.assertions import (
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    decided_rows,
    judged,
    rows_in_domain,
)
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.shapes import TILE_EDGES
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property, observe

ONLINE = "Milakov and Gimelshein, Online normalizer calculation for softmax (arXiv 1805.02867), theorem 1"
SIGNS = "rounding to nearest, and toward zero, commute with negation"


def moving_maxima(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose running maximum moves by 1, 25 or 100, at lengths beside tile edges."""
    step = subject.kernel.limits.step("K")
    scores = ("rising", "rising_25", "rising_100", "falling", "falling_100", "first_key_dominates", "one_hot")
    regimes = [name + values for values in ("", "+v_counterweight", "+v_wide") for name in scores]
    lengths = st.sampled_from([length * step for length in TILE_EDGES])
    return problems(subject, without=("empty",), regimes=regimes, key_length=lengths)


def splittable(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose keys can be split into parts, of the fewest queries if each part must have as many keys."""
    limits = subject.kernel.limits
    step = limits.step("K")
    fewest: dict[str, Any] = {}
    if limits.keys_reach_queries:
        fewest = {"query_length": min(limits.query_lengths or (limits.step("Q"),))}
    lengths = st.sampled_from([length * step for length in (2, 3, 5, 17, 33, 64, 65, 129)])
    regimes = ("normal", "large", "rising", "rising_100", "falling_100", "one_hot", "ties", "rising_25+v_counterweight")
    return problems(
        subject,
        without=("empty", positional, adds_to_row_sum, projects),
        regimes=regimes,
        shift=st.sampled_from((0.0, 100.0, -100.0)),
        key_length=lengths,
        **fewest,
    )


@attention_property(
    source=ONLINE,
    hunts="a rescale forgotten, applied twice, kept in float16, flushed too early, or overflowing; a stale maximum",
    problems=moving_maxima,
    each_call=True,
)
def test_the_maximum_may_move_anywhere(subject: Subject, problem: Problem) -> None:
    """Maxima that rise or fall by 1, 25 or 100, by key or by tile, at any length beside a tile edge, cost nothing.

    Values grow as weights shrink in some of the problems, so that a weight of e^-100 still decides the output.
    """
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="softmax over a union is the mean of the softmaxes over the parts, weighted by exp(LSE_part - LSE): "
    "Dao, FlashDecoding; Juravsky et al., Hydragen (arXiv 2402.05099), section 3.1",
    hunts="base-2 or unscaled log-sum-exp, +inf or 0 for a part without keys, log(1 + exp(b - a)) that overflows",
    needs=("lse", "cross"),
    problems=splittable,
)
def test_parts_merge_into_the_whole_through_the_log_sum_exp(subject: Subject, problem: Problem) -> None:
    """Answers for any parts of the keys, merged by their log-sum-exps, are the answer for all keys.

    Parts are neighbours or scattered; one without keys changes nothing. With errors E_t of their outputs and at most e
    of their log-sum-exps, merged weights w_t are off by factors within exp(+-2e), so the merged output is off by at
    most sum_t w_t e^2e E_t + (e^2e - 1) sum_t w_t |o_t - o|.
    """
    parts = [problem.take("K", keys) for keys in partition(subject, problem)]
    if any(p.empty_rows.any() for p in parts) and subject.conventions.empty_lse != "-inf":
        return
    truth, _ = analysis_of(problem).truth_and_bound(readings(subject.contract)[0])
    assert_merged(truth["output"], [judged(subject, p, subject(p)).measurements for p in parts], subject)


def partition(subject: Subject, problem: Problem) -> list[np.ndarray]:
    """Split the keys into two to four parts, two for a compiled kernel; empty parts only if the kernel takes them."""
    rng, step = randomness(problem), subject.kernel.limits.step("K")
    blocks = np.arange(problem.key_length).reshape(-1, step)
    count = 2 if subject.kernel.signatures is not None else int(rng.integers(2, 5))
    part_of = rng.integers(count, size=len(blocks))
    part_of = np.sort(part_of) if rng.random() < 0.5 else part_of
    parts = [blocks[part_of == part].ravel() for part in range(count)]
    return [keys for keys in parts if len(keys) or subject.supports("empty")]


def assert_merged(truth: Enclosed, parts: list[tuple[Measurement, ...]], subject: Subject) -> None:
    """Merge the parts' answers in float64 and raise :class:`Refutation` if they miss the truth of the whole."""
    o, radius = truth.value, truth.radius + np.abs(truth.low)
    base = subject.conventions.lse_unit
    outputs, lses = ([quantities[n] for quantities in parts] for n in (0, 1))
    w = merge_weights([m.got * base for m in lses])
    e = np.maximum.reduce([np.where(np.isfinite(m.truth.value), m.allowed, 0.0) * base for m in lses])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        grow = np.exp(2 * e)[..., None] * (1 + 2.0**-40)  # the factor covers the float64 arithmetic of this merge
        merged, allowed = np.zeros(o.shape), 2.0**-48 * np.abs(o) + radius
        for x, m in zip(w, outputs, strict=True):
            merged = merged + np.where(x == 0, 0.0, x * m.got)
            error = grow * (m.allowed + (grow - 1) * (np.abs(m.truth.value - o) + radius))
            allowed = allowed + np.where(x == 0, 0.0, x * error)
        gap = np.abs(merged - o)
        measured = [m.measured & n.measured[..., None] for m, n in zip(outputs, lses, strict=True)]
        speaks = np.logical_and.reduce(measured) & np.isfinite(allowed)
        observe(float(np.max(gap / allowed, where=speaks & (gap > 0), initial=0.0)), "merge error / bound")
    wrong = speaks & ~(gap <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        text = f"parts merged through their log-sum-exps give output{list(at)} = {merged[at]:.9g}"
        raise Refutation(f"{text}; the truth is {o[at]:.9g}, allowed error {allowed[at]:.3g}")


def merge_weights(L: list[np.ndarray]) -> list[np.ndarray]:
    """Return exp(L_t - LSE) of parts, each [B, Hq, Sq, 1]; all 0 where no part has a visible key."""
    top = np.maximum.reduce(L)
    with np.errstate(invalid="ignore", over="ignore"):
        raised = [np.exp(x - np.where(np.isneginf(top), 0.0, top))[..., None] for x in L]
        total = sum(raised)
        return [x / np.where(total == 0, 1.0, total) for x in raised]


def assert_output_scaled(
    subject: Subject, problem: Problem, changed: Problem, factor: float, what: str, *, rows: np.ndarray | None = None
) -> None:
    """Raise :class:`Refutation` unless the changed problem has exactly ``factor`` times the output and the same LSE.

    Outputs that are stored below the smallest normal number, or above the largest when they are scaled, are left out
    then. ``rows`` are compared; None is all. Rows that the subject's conventions leave open are not compared.
    """
    before, after = subject(problem), subject(changed)
    if not compares_bits(subject):
        assert_within_bound(subject, changed, after)
        return
    stored, unit = subject.contract.format("output"), problem.output_unit
    old, new = before["output"], after["output"]
    # A number below the smallest normal one, where the grid is coarser for its size, may be rounded to that.
    normal = (np.abs(old) > unit * stored.smallest_normal) & (np.abs(factor * old) < unit * stored.largest)
    speaks = normal | np.isnan(old) | (abs(factor) == 1)
    expected, got = (np.where(speaks, x, 0.0) for x in (factor * old, new))
    decided = decided_rows(subject, problem)
    compared = decided if rows is None else rows & decided
    assert_unchanged(before | {"output": expected}, after | {"output": got}, what, compared)


@attention_property(
    source=SIGNS,
    hunts="values clipped on one side, an accumulator that does not start at zero",
    problems=lambda subject: problems(subject, without=("empty", adds_to_values, ties_values)),
)
def test_negating_v_negates_the_output(subject: Subject, problem: Problem) -> None:
    """-V gives -O bit for bit, and the same log-sum-exp: no operation on V depends on its sign."""
    assert_output_scaled(subject, problem, problem.replace(v=-problem.v), -1.0, "after V was negated")


@attention_property(
    source="(-q).(-k) = q.k term by term",
    hunts="an initial maximum of 0, absolute values or means of q and k used for scaling, one-sided quantization",
    problems=lambda subject: problems(subject, without=("empty", bends_scores, ties_values)),
)
def test_negating_q_and_k_changes_nothing(subject: Subject, problem: Problem) -> None:
    """-q and -k give the same output and log-sum-exp bit for bit: every product is the same number."""
    changed = problem.replace(q=-problem.q, k=-problem.k)
    assert_output_scaled(subject, problem, changed, 1.0, "after q and k were negated")


@attention_property(
    source="scaling by a power of two is exact in binary arithmetic away from the ends of the range",
    hunts="an absolute epsilon or threshold on values, values stored in fixed point",
    problems=lambda subject: problems(
        subject,
        without=("empty", changes_scores, projects, ties_values),
        regimes=("uniform+v_one_hot", "integers", "ties+v_one", "normal+v_one"),
    ),
)
def test_scaling_v_by_a_power_of_two_scales_the_output(subject: Subject, problem: Problem) -> None:
    """8 V gives 8 O bit for bit, and the same log-sum-exp, wherever O is a normal number.

    Values are integers, so that neither they nor the pieces they enter in underflow, nor products with a weight that
    matters. Rows are compared in which nothing may overflow, with V or with 8 V. In a dtype without 8 V, V is an eighth
    as large, rounded; toward 0 in a dtype of integers, whose largest number is no multiple of 8.
    """
    if not bits.is_representable(8 * problem.v, dtype := problem.dtype_of("v")):
        eighth = problem.v / 8
        problem = problem.replace(v=bits.nearest(np.trunc(eighth) if FORMATS[dtype].is_integer else eighth, dtype))
    changed = problem.replace(v=8 * problem.v)
    accumulators = {(c.products, c.output_accumulation, c.inner_accumulation) for c in readings(subject.contract)}
    if "float16" in set().union(*accumulators):  # whose sums of small products are not normal numbers
        assert_within_bound(subject, changed, subject(changed))
    else:
        rows = rows_in_domain(subject, problem) & rows_in_domain(subject, changed)
        assert_output_scaled(subject, problem, changed, 8.0, "after V was multiplied by 8", rows=rows)
