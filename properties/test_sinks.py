"""Sinks: one more term of what weights are divided by, with which no value is weighted."""

from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem import patterns
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import positional, replaces_score
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    assert_within_bound,
    differentiable,
    measured_within_bound,
)
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.property import Refutation, attention_property

SINK = "Xiao et al., StreamingLLM (arXiv 2309.17453), section 3.3; a sink is a key of value 0 that every query sees"
BOUND = "attn_spec.bounds.backward.gradient_bounds, for one more key of value 0"
#: Values that show the share of the keys in the row sum, and scores beside which a sink matters.
TELLING = ("normal+v_one", "uniform+v_one", "falling+v_one", "normal", "large+v_one")
#: Lengths of keys beyond the ends of tiles and splits.
LENGTHS = (33, 65, 130)


def drawn(*known: str) -> SearchStrategy[str]:
    """Draw the name of a pattern of sinks, one for all heads or one for each."""
    return st.sampled_from(patterns.spread(known, "1H11"))


def beside_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose sinks are of the size of scores, one in three of them with more keys than a tile."""
    telling = partial(problems, subject, needs=("sinks",), without=("empty",), regimes=TELLING)
    ways = [telling(sinks=drawn("normal", "zero", "spread"))]
    if subject.supports("gqa"):
        ways.append(telling(needs=("sinks", "gqa"), sinks="normal@1H11"))
    if subject.supports("cross"):
        ways.append(telling(sinks=drawn("normal"), key_length=st.sampled_from(LENGTHS), query_length=2))
    return st.one_of(ways)


@attention_property(
    source=SINK,
    hunts="a sink that is scaled, of another head, masked, left out in some tile, or added once for each tile or split",
    needs=("sinks",),
    problems=beside_keys,
    each_call=True,
)
def test_a_sink_takes_its_share_of_the_weight(subject: Subject, problem: Problem) -> None:
    """With sinks, output and log-sum-exp are within their bounds, also where values are 1 and show the share."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="exp(-inf) = 0",
    hunts="NaN of -inf - -inf in the first maximum; an absent sink that counts as 0, which adds 1 to the row sum",
    needs=("sinks",),
    problems=lambda subject: problems(subject, needs=("sinks",), without=("empty",), sinks=drawn("absent")),
    each_call=True,
)
def test_a_sink_of_minus_infinity_changes_nothing(subject: Subject, problem: Problem) -> None:
    """With sinks of minus infinity the answer is within the bounds of the problem without sinks."""
    assert_within_bound(subject, problem.without_sinks(), subject(problem))


@attention_property(
    source="exp(z - M) for z far above all scores: the weights of keys are e^(s - z), and the log-sum-exp is z",
    hunts="exp(z) that overflows without a reference, or is lost because the reference is another one",
    needs=("sinks",),
    problems=lambda subject: problems(
        subject, needs=("sinks",), without=("empty",), regimes=TELLING, sinks=drawn("high", "beyond", "low")
    ),
    each_call=True,
)
def test_a_sink_far_from_the_scores_is_no_exception(subject: Subject, problem: Problem) -> None:
    """With sinks of about 20, 100 and -40, output and log-sum-exp are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="Dao-AILab/flash-attention#2706; softmax of the sink alone is 1",
    hunts="NaN, a mean of values or an infinite log-sum-exp where the sink holds all of the weight",
    needs=("sinks", "mask"),
    problems=lambda subject: problems(
        subject,
        needs=("sinks", "mask"),
        mask=named(["all_hidden", "empty_first_rows", "empty_last_rows"]),
        sinks=drawn("normal", "zero", "spread", "some_absent"),
    ),
    each_call=True,
)
def test_without_a_key_the_sink_has_all_the_weight(subject: Subject, problem: Problem) -> None:
    """A query that sees no key has the output 0 and its sink as log-sum-exp, whatever the convention for such rows."""
    assert_within_bound(subject, problem, answer := subject(problem))
    if problem.projects:
        return
    wrong = np.broadcast_to(problem.sink_alone[..., None], answer["output"].shape) & (answer["output"] != 0)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(f"output{list(at)} is {answer['output'][at]:.9g}, not 0, though its query sees only a sink")


def with_a_key_for_the_sink(problem: Problem) -> Problem:
    """Return the problem without sinks, with one more key of zeros, whose bias is the sink and whose value is 0."""
    (B, Hq, Sq, Sk), problem = problem.score_shape, problem.merged("mask")

    def longer(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.zeros((*x.shape[:2], 1, x.shape[3]))], axis=2)

    z = np.broadcast_to(problem.sinks_of_heads, (B, Hq, Sq, 1))
    seen = np.concatenate([np.broadcast_to(problem.visible, (B, Hq, Sq, Sk)), z > -np.inf], axis=-1)
    bias = np.zeros((B, Hq, Sq, Sk)) if problem.bias is None else np.broadcast_to(problem.bias, (B, Hq, Sq, Sk))
    found: dict[str, Any] = {"mask": seen, "bias": np.concatenate([bias, z], axis=-1), "sinks": None}
    return problem.replace(k=longer(problem.k), v=longer(problem.v), **found)


def without_positions(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in which one more key may stand at the end, and whose sinks a bias may hold."""
    any_of = partial(
        problems,
        subject,
        without=("empty", positional, replaces_score, "dropout_keep", "k_descale", "v_descale"),
        regimes=TELLING,
        sinks=drawn("normal", "spread", "zero"),
        bias=named(["zero", "normal"]),
    )
    ways = [any_of(needs=("sinks", "bias"))]
    if subject.supports("softcap"):
        ways.append(any_of(needs=("sinks", "bias", "softcap"), softcap=st.sampled_from((1.0, 2.0**-4, 5.0))))
    return st.one_of(ways).filter(lambda problem: bits.is_representable(problem.sinks, problem.dtype_of("bias")))


@attention_property(
    source=SINK,
    hunts="a sink that meets the softcap, the scale or the mask; a sink that has a value",
    needs=("sinks", "bias", "mask", "cross"),
    problems=without_positions,
)
def test_a_sink_is_a_key_of_value_zero(subject: Subject, problem: Problem) -> None:
    """The answer differs from that with one more key of value 0 and the bias z by no more than both bounds allow."""
    answer, longer = subject(problem), with_a_key_for_the_sink(problem)
    other = subject(longer)
    measured = measured_within_bound(subject, problem, answer).measurements
    allowed = {one.name: one.allowed for one in measured_within_bound(subject, longer, other).measurements}
    for one in measured:
        if one.name == "lse" and not subject.conventions.sink_in_lse:
            continue
        apart = np.abs(answer[one.name] - other[one.name])
        if (wrong := one.measured & (apart > 1.01 * (one.allowed + allowed[one.name]))).any():
            at = tuple(int(n) for n in np.argwhere(wrong)[0])
            raise Refutation(f"{one.name}{list(at)} is {apart[at]:.3g} from that of a key of value 0", one)


@attention_property(
    source="-m |i - j| and m j differ by m i, a number of each row, by which a sink has to be moved too",
    hunts="ALiBi counted from the first key, or from the context, which softmax forgives and a sink does not",
    needs=("sinks", "alibi_slopes"),
    problems=lambda subject: problems(
        subject,
        needs=("sinks", "alibi_slopes", *(("causal",) if subject.supports("causal") else ())),
        without=("empty",),
        regimes=TELLING,
        sinks=drawn("normal", "zero"),
    ),
    each_call=True,
)
def test_a_sink_is_not_moved_by_the_positions_of_keys(subject: Subject, problem: Problem) -> None:
    """With sinks and ALiBi, output and log-sum-exp of every row, not the first alone, are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="log N = log(exp(z) + sum_j exp(s_j)), or the logarithm of the sum over keys if the convention says so",
    hunts="a log-sum-exp without the term of the sink, or with it although the convention says otherwise",
    needs=("sinks", "lse"),
    problems=lambda subject: problems(subject, needs=("sinks",), without=("empty",), sinks=drawn("normal", "high")),
    each_call=True,
)
def test_the_log_sum_exp_has_the_sink_as_the_convention_says(subject: Subject, problem: Problem) -> None:
    """The log-sum-exp is that of keys and sink, or of keys alone under ``sink_in_lse=False``."""
    assert_within_bound(subject, problem, subject(problem), "lse")


@attention_property(
    source=BOUND,
    hunts="a sign, delta or a share lost; rows, batch entries or heads left out of the sum; a sum in half precision",
    needs=("backward", "sinks"),
    problems=lambda subject: differentiable(
        subject, needs=("sinks",), without=("empty",), batch=st.sampled_from((1, 2, 3))
    ),
)
def test_sink_gradients_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """The gradient of each sink, summed over rows, batch entries and heads that share it, lies within its bound."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, {"dsinks": found["dsinks"]})


@attention_property(
    source="dA_ij = P_ij (dP_ij - delta_i) with sum_j P_ij = 1 - P_iz",
    hunts="a backward pass that renormalizes weights over the keys, or reads a log-sum-exp without the sink",
    needs=("backward", "sinks"),
    problems=lambda subject: differentiable(
        subject, needs=("sinks",), without=("empty",), sinks=drawn("normal", "high", "spread")
    ),
)
def test_gradients_beside_a_sink_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Each element of dQ, dK and dV beside a sink differs from the true one by no more than roundings can cause."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    names = ("dq", *subject.presentation.key_gradients)
    assert_gradients_within_bound(subject, problem, dO, {name: found[name] for name in names})
