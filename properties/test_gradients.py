"""Gradients: every element lies within its bound, and what has no influence has a gradient of exactly zero."""

from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import SCORE
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS
from attn_spec.problem.traits import adds_to_scores, hides_keys, moves_diagonal
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    differentiable,
    gradient_errors_allowed,
    without_values,
)
from attn_spec.search.drawing.cotangents import cotangent, lse_cotangent, randomness
from attn_spec.search.drawing.strategies import TAME, can_use, named
from attn_spec.search.hidden_keys import assert_unseen_keys_reach_no_gradient
from attn_spec.search.property import Refutation, attention_property

BOUND = "attn_spec.bounds.backward.gradient_bounds, the backward bound of the declared contract"
BASE_2 = "the cotangent of a log-sum-exp in base 2 passes ln 2, which no format holds"
CHAIN_RULE = "the derivative of a function with respect to an argument it ignores is zero"


def hiding(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems that overflow nothing, with some way of masking keys if the kernel has one."""
    ways = [name for name, row in OPTIONS.items() if hides_keys(row) and can_use(subject, name)]
    choices = [differentiable(subject, needs=(way,), without=("empty",), regimes=TAME) for way in ways]
    return st.one_of(choices) if choices else differentiable(subject, without=("empty",), regimes=TAME)


def with_unseen_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in most of which some keys are masked for every query."""
    drawn = partial(differentiable, subject, without=("empty",), regimes=TAME)
    masks = named(("padding", "leading_hidden", "random", "all_hidden"))
    ways = [name for name, row in OPTIONS.items() if hides_keys(row) and can_use(subject, name)]
    choices = [drawn(needs=(way,), **({"mask": masks} if way == "mask" else {})) for way in ways]
    return st.one_of(choices) if choices else drawn()


def capped(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose scores are of the size of the softcap, where its slope is neither 0 nor 1."""
    return differentiable(subject, needs=("softcap",), without=("empty",), regimes=("large", "normal", "activations"))


def with_lse_cotangents(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose log-sum-exp has all terms of the row sum, as its cotangent is that of all."""
    return differentiable(subject, without=() if subject.conventions.sink_in_lse else ("sinks",))


def structured(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of low rank with outlier channels, in batches, as the layers of a trained model see them."""
    regimes = ("activations", "activations+v_offset", "offset_q", "large")
    return differentiable(subject, without=("empty", adds_to_scores), regimes=regimes, batch=st.sampled_from((2, 1, 3)))


def large_cotangent(subject: Subject, problem: Problem) -> np.ndarray:
    """Draw dO [B, Hq, Sq, Dv] of size 16: float16 does not overflow, and rounding loses no masked gradient."""
    shape = problem.output_shape
    return bits.nearest(16.0 * randomness(problem).standard_normal(shape).clip(-4, 4), subject.contract.output)


def assert_zero(name: str, gradient: np.ndarray, ignored: np.ndarray) -> None:
    """Raise :class:`Refutation` if an entry of ``gradient`` where ``ignored`` is not zero."""
    wrong = np.broadcast_to(ignored, gradient.shape) & (gradient != 0)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(f"{name}{list(at)} is {gradient[at]:.9g}, not 0; {int(wrong.sum())} such entries are not 0")


def assert_ignored_is_zero(
    subject: Subject, problem: Problem, dO: np.ndarray, seen: np.ndarray, only: tuple[str, ...] = ()
) -> None:
    """Raise :class:`Refutation` unless gradients vanish where no pair of ``seen`` [B, Hq, Sq, Sk] enters them.

    Where the contract says nothing, a term may be 0 times infinity.
    """
    found, allowed = subject.gradients(problem, dO), gradient_errors_allowed(subject, problem, dO)
    keys = ~np.any(seen.reshape(problem.batch, problem.kv_heads, -1, problem.key_length), axis=2)[..., None]
    rows = ~np.any(seen, axis=(1, 3) if problem.projects else 3, keepdims=True)
    ignored: dict[str, Any] = {"dq": rows, **dict.fromkeys(subject.presentation.key_gradients, keys)}
    if problem.bias is not None:
        ignored["dbias"] = ~seen.any(axis=problem.broadcast_axes("bias"), keepdims=True)
    for name in only or ignored:
        assert_zero(name, found[name], ignored[name] & np.isfinite(allowed[name]))


@attention_property(
    source=BOUND,
    hunts="a scale lost or applied twice, delta = rowsum(dO * O) lost, K transposed twice, Dv read as D, coarse sums",
    needs=("backward",),
    problems=differentiable,
)
def test_query_and_key_gradients_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Each element of dQ and dK differs from the true one by no more than the contract's roundings can cause.

    If the values are the first columns of the keys, the gradient of the keys is dK + [dV, 0].
    """
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    names = ("dq", subject.presentation.key_gradients[0])
    assert_gradients_within_bound(subject, problem, dO, {name: found[name] for name in names})


@attention_property(
    source=BOUND,
    hunts="weights recomputed from another log-sum-exp than they were made with, a column of Dv lost or repeated",
    needs=("backward",),
    problems=differentiable,
    not_applicable=without_values,
)
def test_value_gradients_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Each element of dV differs from the true one by no more than the contract's roundings can cause."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, {"dv": found["dv"]})


@attention_property(
    source=BOUND,
    hunts="tiles, heads or batch entries that overwrite one another's share of a broadcast bias, or add it twice",
    needs=("backward", "bias"),
    problems=partial(differentiable, needs=("bias",)),
)
def test_bias_gradients_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Each element of dBias, summed over the axes it was broadcast along, lies within its bound."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, {"dbias": found["dbias"]})


def _scores(subject: Subject) -> list[str]:
    """Return the scores with parameters that the kernel has, or only those that it always uses, if there are any."""
    found = [name for name, row in OPTIONS.items() if row.kind == SCORE and row.tensor and subject.supports(name)]
    return [name for name in found if name in subject.kernel.limits.always] or found


@attention_property(
    source=BOUND,
    hunts="a parameter that batch entries and heads share, with the gradient of one of them; one left out of the graph",
    needs=("backward",),
    not_applicable=lambda subject: "" if _scores(subject) else "it has no score with parameters",
    problems=lambda subject: st.one_of([differentiable(subject, needs=(name,)) for name in _scores(subject)]),
)
def test_gradients_of_a_scores_parameters_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """The gradient of each parameter, summed over the batch entries and heads that share it, is within its bound."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    others = ("dq", *OF_KEYS, "dbias")
    parameters = {name: gradient for name, gradient in found.items() if name not in others}
    assert_gradients_within_bound(subject, problem, dO, parameters)


@attention_property(
    source="the gradient of a shared input is the sum over its uses (Ainslie et al., GQA, arXiv 2305.13245)",
    hunts="dK and dV of the last head of a group, or the mean of the group, where the sum is due",
    needs=("backward", "gqa"),
    problems=partial(differentiable, needs=("gqa",), without=("empty",)),
)
def test_a_shared_key_gets_the_sum_of_its_groups_gradients(subject: Subject, problem: Problem) -> None:
    """dK and dV of a kv head are the sums over the query heads that read it, within their bounds."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    names = subject.presentation.key_gradients
    assert_gradients_within_bound(subject, problem, dO, {name: found[name] for name in names})


@attention_property(
    source="d/ds softcap * tanh(s / softcap) = 1 - tanh(s / softcap)**2",
    hunts="the slope of the softcap forgotten, or taken at the score that was capped already",
    needs=("backward", "softcap"),
    problems=capped,
)
def test_gradients_pass_through_the_softcap(subject: Subject, problem: Problem) -> None:
    """Gradients of scores near the softcap are within their bounds, its slope included."""
    assert_gradients_within_bound(subject, problem, dO := cotangent(subject, problem), subject.gradients(problem, dO))


@attention_property(
    source="Vaswani et al., Attention Is All You Need (arXiv 1706.03762), section 3.2.3",
    hunts="a backward pass whose diagonal starts in another corner than the forward pass's, or is off by one",
    needs=("backward", "causal"),
    problems=partial(differentiable, needs=("causal",), without=("window", "empty", moves_diagonal)),
)
def test_the_diagonal_of_the_gradients_is_where_the_convention_says(subject: Subject, problem: Problem) -> None:
    """Causal gradients are those of attention under the mask j <= i, or j <= i + Sk - Sq for bottom-right alignment.

    The mask is written out here key by key, on purpose not by attn_spec.problem.masks.
    """
    Sq, Sk = problem.query_length, problem.key_length
    first = Sk - Sq if problem.causal_alignment == "bottom_right" else 0
    triangle = np.array([[j <= i + first for j in range(Sk)] for i in range(Sq)]).reshape(1, 1, Sq, Sk)
    written = problem.replace(causal=False, mask=triangle if problem.mask is None else triangle & problem.mask)
    assert_gradients_within_bound(subject, written, dO := cotangent(subject, problem), subject.gradients(problem, dO))


@attention_property(
    source=BOUND,
    hunts="defects that independent entries average away: tile sums reused across a batch, exp(s) without its maximum",
    needs=("backward",),
    problems=structured,
)
def test_gradients_of_structured_activations_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Gradients are within their bounds for queries and keys of low rank and large norm, as in trained models."""
    assert_gradients_within_bound(subject, problem, dO := cotangent(subject, problem), subject.gradients(problem, dO))


@attention_property(
    source="dLSE_i / ds_ij = P_ij, so that dS = P * (dP - delta + dL)",
    hunts="a cotangent of the log-sum-exp that is dropped, added with the wrong sign, or scaled",
    needs=("backward", "lse", "lse_backward"),
    problems=with_lse_cotangents,
    not_applicable=lambda subject: "" if subject.conventions.lse_base == "e" else BASE_2,
)
def test_the_cotangent_of_the_log_sum_exp_is_honored(subject: Subject, problem: Problem) -> None:
    """With cotangents on both the output and the log-sum-exp, all gradients are within their bounds."""
    dO, dL = cotangent(subject, problem), lse_cotangent(problem)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO, lse_cotangent=dL), dL)


@attention_property(
    source=CHAIN_RULE,
    hunts="hidden weights recomputed without the mask, exp(0 - LSE) of padded columns, 0 * NaN in hidden tiles",
    needs=("backward",),
    problems=hiding,
)
def test_hidden_keys_have_gradient_zero(subject: Subject, problem: Problem) -> None:
    """dK and dV of a key that no query sees, and dBias where no query sees the key, are exactly zero.

    P = 0 there, so every term of the sums is 0 times a finite number, however large dO.
    """
    only = (*subject.presentation.key_gradients, *(() if problem.bias is None else ("dbias",)))
    assert_ignored_is_zero(subject, problem, large_cotangent(subject, problem), problem.visible, only)


@attention_property(
    source=CHAIN_RULE,
    hunts="0 * NaN in hidden values or padding, dO v of hidden values in delta, tiles read past the last key",
    needs=("backward",),
    problems=with_unseen_keys,
)
def test_keys_that_no_query_sees_change_no_gradient(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values hidden from every query of their group does not change one bit of any gradient.

    causality.future_keys_change_nothing says what is written, attn_spec.search.assertions when bits are compared.
    """
    assert_unseen_keys_reach_no_gradient(subject, problem, cotangent(subject, problem))


@attention_property(
    source=CHAIN_RULE,
    hunts="exp(s - LSE) with an infinite LSE: NaN in dQ of queries that see no key, spreading to dK and dV",
    needs=("backward",),
    problems=hiding,
)
def test_queries_that_see_no_key_have_gradient_zero(subject: Subject, problem: Problem) -> None:
    """dQ of a query that sees no key is exactly zero, since its output is a constant by convention."""
    assert_ignored_is_zero(subject, problem, large_cotangent(subject, problem), problem.visible, ("dq",))


@attention_property(
    source=CHAIN_RULE,
    hunts="a mask or list of tiles used untransposed in the pass over keys, rows of another query in dK and dV",
    needs=("backward",),
    problems=hiding,
)
def test_a_query_reaches_exactly_the_keys_it_sees(subject: Subject, problem: Problem) -> None:
    """If dO is zero but for one query of each head, only that query and what it sees have gradients other than zero.

    dP = 0 and delta = 0 for every other query, so its dS = P * 0; and P = 0 at the keys masked for the one.
    """
    chosen = randomness(problem).integers(problem.query_length, size=(*problem.output_shape[:2], 1))
    rows = np.arange(problem.query_length) == chosen
    dO = large_cotangent(subject, problem) * rows[..., None]
    assert_ignored_is_zero(subject, problem, dO, problem.visible & rows[..., None])
