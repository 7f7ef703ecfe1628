"""Scaling: the factor on q.k, read from the kernel's own outputs, is 1/sqrt(D) or the scale that was asked for."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import all_but
from attn_spec.search.assertions import assert_within_bound, judged
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property

VASWANI = "Vaswani et al. (arXiv 1706.03762), section 3.2.1: scores have variance 1 after division by sqrt(D)"
#: Scores read for one estimate of their variance.
SAMPLES = 640


def of_equal_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in which all keys are equal, so that the log-sum-exp is the score plus log Sk."""
    return problems(subject, without=("empty", all_but("scale")), regimes=["constant_keys"])


def of_two_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of one key at even places, zero at odd ones, V = 1 and 0: outputs are logistic in the score."""
    lengths = st.sampled_from([n * subject.kernel.limits.step("K") for n in (2, 3, 16, 17, 64)])
    plain = problems(subject, without=("empty", all_but("scale")), regimes=["constant_keys"], key_length=lengths)

    def alternate(problem: Problem) -> Problem:
        even = (np.arange(problem.key_length) % 2 == 0)[:, None]
        return problem.replace(k=problem.k * even, v=even * np.ones(problem.v.shape))

    return plain.map(alternate)


def of_random_signs(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with q and k of independent signs, D >= 16, and SAMPLES scores, each shared by a query's keys."""
    limits = subject.kernel.limits
    step = limits.step("QK")
    length = step * max(16 // step, 1)
    queries, heads = max(limits.query_lengths or (length,)), max(limits.query_heads or (8,))
    pairs = -(-SAMPLES // queries)
    dims = limits.equal_dims or (16, 63, 64, 72, 128)
    wide = [dim for dim in dims if dim >= 16] or dims
    shape: dict[str, Any] = {"batch": -(-pairs // heads), "query_heads": heads, "kv_heads": heads}
    lengths: dict[str, Any] = {"query_length": queries, "key_length": max(queries, length)}
    plain = problems(
        subject,
        without=("empty", "dv", "cross", "gqa", all_but()),
        regimes=["constant_keys"],
        head_dim=st.sampled_from(wide),
        **shape,
        **lengths,
    )

    def signs(problem: Problem) -> Problem:
        q, k = (np.where(x < 0, -1.0, 1.0) for x in (problem.q, problem.k))
        v = np.zeros(problem.v.shape)
        return problem.replace(q=q, k=k, v=v)

    return plain.map(signs)


def applied_scale(dot: np.ndarray, score: np.ndarray) -> float:
    """Fit score = scale * dot by least squares over all queries; both [B, Hq, Sq]."""
    return float((dot * score).sum() / max((dot * dot).sum(), 1e-300))


def with_scale(problem: Problem, applied: float, error: Refutation) -> Refutation:
    """Return the refutation with the scale that the kernel seems to have applied."""
    asked = (
        f"1/sqrt({problem.head_dim}) = {problem.scale_value:.6g}" if problem.scale is None else f"{problem.scale:.6g}"
    )
    text = f"the kernel applied a scale of {applied:.6g} where {asked} was asked; {error}"
    return Refutation(text, error.measurement)


def first_dot(problem: Problem) -> np.ndarray:
    """Return q.k of every query with the first key, [B, Hq, Sq]."""
    first = np.repeat(problem.k[:, :, 0], problem.group, axis=1)
    return np.einsum("bhid,bhd->bhi", problem.q, first)


@attention_property(
    source=VASWANI,
    hunts="no scale, 1/D, 1/sqrt(Hq), 1/sqrt of a padded D, a scale argument that is ignored or applied twice",
    needs=("lse",),
    problems=of_equal_keys,
    each_call=True,
)
def test_the_scale_read_from_the_log_sum_exp_is_the_one_asked_for(subject: Subject, problem: Problem) -> None:
    """With equal keys the log-sum-exp is scale * q.k + log Sk, which exposes the scale the kernel applied."""
    answer = subject(problem)
    try:
        assert_within_bound(subject, problem, answer, "lse")
    except Refutation as error:
        base = subject.conventions.lse_unit
        score = answer["lse"] * base - np.log(problem.key_length)
        raise with_scale(problem, applied_scale(first_dot(problem), score), error) from error


@attention_property(
    source=VASWANI,
    hunts="the same, in kernels that return no log-sum-exp",
    problems=of_two_keys,
    each_call=True,
)
def test_the_scale_read_from_the_weights_is_the_one_asked_for(subject: Subject, problem: Problem) -> None:
    """With one key repeated at even places and zero keys at odd ones, V = 1 and 0, the output is logistic in the score.

    O = a e^s / (a e^s + b) for a even and b odd places, so s = log(O / (1 - O)) + log(b / a).
    """
    answer = subject(problem)
    try:
        assert_within_bound(subject, problem, answer, "output")
    except Refutation as error:
        odd = problem.key_length // 2
        weight = np.clip(answer["output"][..., 0], 1e-6, 1 - 1e-6)
        score = np.log(weight / (1 - weight)) + np.log(odd / (problem.key_length - odd))
        moderate = np.abs(score) < 5
        applied = applied_scale(first_dot(problem) * moderate, score * moderate)
        raise with_scale(problem, applied, error) from error


@attention_property(
    source="Achlioptas, Database-friendly random projections (2003), Theorem 1.1 and Lemma 5.1; " + VASWANI,
    hunts="scores whose spread grows or shrinks with D: no scale, 1/D, 1/sqrt(Hq)",
    needs=("lse",),
    problems=of_random_signs,
)
def test_scaled_scores_of_unit_variance_inputs_have_variance_one(subject: Subject, problem: Problem) -> None:
    """The mean square of 640 scores of random signs, read from the log-sum-exp, is between 1/2 and 3/2.

    A score is a sum of D independent signs over sqrt(D), so its variance is exactly 1. For N such scores the mean
    square leaves 1 +- e with probability at most 2 exp(-N (e^2/4 - e^3/6)), whatever D is: 2.6e-11 for N = 640 and
    e = 0.48, which leaves 0.02 for the rounding of the log-sum-exp. A kernel that applies c instead of 1/sqrt(D)
    multiplies the mean square by c^2 D, and is refuted with at least the complementary probability once c^2 D is
    below 0.33 or above 3: always for no scale and for 1/D, as D >= 16. No knowledge of the single scores enters, so
    this holds the oracle to account as well; but where the contract says nothing of an answer, neither does this.
    """
    if problem.batch * problem.query_heads * problem.query_length < SAMPLES:
        raise NotTaken(f"it takes too few queries for {SAMPLES} scores that are independent")
    answer = subject(problem)
    if not all(measured.measured.all() for measured in judged(subject, problem, answer).measurements):
        return
    base = subject.conventions.lse_unit
    lse = answer["lse"]
    scores = lse.ravel() * base - np.log(problem.key_length)
    spread = float(np.mean(scores[:SAMPLES] ** 2))
    if not 0.5 <= spread <= 1.5:
        applied = applied_scale(first_dot(problem), scores.reshape(lse.shape))
        raise Refutation(
            f"{SAMPLES} scaled scores of D = {problem.head_dim} signs have mean square {spread:.4g}, not 1; "
            f"the kernel seems to apply {applied:.6g} for 1/sqrt(D) = {problem.head_dim**-0.5:.6g}"
        )
