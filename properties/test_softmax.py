"""Softmax: invariant under shifts, weights that sum to one, averages that stay inside the hull of the values."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import changes_weights, projects
from attn_spec.search.assertions import assert_within_bound, measured_within_bound
from attn_spec.search.drawing.regimes import SHIFTS
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import Refutation, attention_property


def shifted(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose scores are all moved by the same constant, from 30 to 6e4 either way."""
    regimes = ("normal", "one_hot", "rising", "falling", "ties", "normal+v_one", "normal+v_one_hot")
    shifts = st.sampled_from(SHIFTS[1:])
    return problems(subject, without=("softcap", "empty"), regimes=regimes, shift=shifts)


def constant_values(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with V = 1."""
    scores = ("uniform", "normal", "large", "huge", "ties", "rising", "falling", "falling_100", "activations")
    return problems(subject, without=("empty", changes_weights), regimes=[f"{name}+v_one" for name in scores])


@attention_property(
    source="softmax(s + c) = softmax(s); log sum exp(s + c) = c + log sum exp(s)",
    hunts="padded columns of score 0 in the maximum, fill values of -1e4 or -5e4, exp without the maximum, +-88 limits",
    problems=shifted,
    each_call=True,
)
def test_a_constant_added_to_all_scores_changes_nothing(subject: Subject, problem: Problem) -> None:
    """Scores moved by a constant, up to +-6e4, give the same output, and a log-sum-exp moved by it.

    One direction of K carries the constant, the same bits for every key, so the shift is exact.
    """
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="sum_j P_ij = 1",
    hunts="phantom keys from zero padding, a row sum that differs from the weights used, a double rescale",
    problems=constant_values,
    each_call=True,
)
def test_weights_sum_to_one(subject: Subject, problem: Problem) -> None:
    """With V = 1 every output is 1, as nearly as the contract allows."""
    assert_within_bound(subject, problem, subject(problem), "output")


@attention_property(
    source="an output is a weighted mean with non-negative weights",
    hunts="negative or excess weights, stale accumulators; holds without any oracle for attention",
    problems=lambda subject: problems(subject, without=("empty", changes_weights, projects)),
)
def test_outputs_lie_in_the_hull_of_the_visible_values(subject: Subject, problem: Problem) -> None:
    """No output is farther above the largest, or below the smallest, visible value than its bound allows."""
    judgement = measured_within_bound(subject, problem, answer := subject(problem), "output")
    measured = judgement.measurements[0]
    high, low = hull(problem)
    output = answer["output"]
    with np.errstate(invalid="ignore"):  # rows that are not measured may be infinite, and so may their hull
        excess = np.maximum(output - high, low - output)
    speaks = measured.measured & ~problem.empty_rows[..., None]
    wrong = speaks & (excess > measured.allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(
            f"output{list(at)} is {output[at]:.9g}, outside the visible values [{low[at]:.9g}, {high[at]:.9g}]",
            measured,
        )


def hull(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest and smallest visible value for each output element, [B, Hq, Sq, Dv]."""
    v = np.repeat(problem.v, problem.group, axis=1)
    shape = problem.output_shape
    high, low = np.full(shape, -np.inf), np.full(shape, np.inf)
    for j in range(problem.key_length):
        sees = problem.visible[..., j, None]
        high = np.where(sees, np.maximum(high, v[:, :, None, j]), high)
        low = np.where(sees, np.minimum(low, v[:, :, None, j]), low)
    return high, low
