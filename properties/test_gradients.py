"""Gradients: what has no influence has a gradient of exactly zero."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec import bits
from attn_spec.claims import randomness
from attn_spec.problem import Problem
from attn_spec.property import Refutation, attention_property
from attn_spec.strategies import TAME, problems
from attn_spec.subject import Subject

CHAIN_RULE = "the derivative of a function with respect to an argument it ignores is zero"


def hiding(subject: Subject) -> SearchStrategy[Problem]:
    """Problems that overflow nothing, with some way of hiding keys if the kernel has one."""
    ways = [name for name in ("mask", "causal", "window", "bias") if subject.supports(name)]
    choices = [problems(subject, needs=(way,), without=("empty",), regimes=TAME) for way in ways]
    return st.one_of(choices) if choices else problems(subject, without=("empty",), regimes=TAME)


def cotangent(problem: Problem) -> np.ndarray:
    """Draw dO [B, Hq, Sq, Dv] of size 1/8, which overflows no gradient of a tame problem in float16."""
    shape = (problem.batch, problem.query_heads, problem.query_length, problem.value_dim)
    return bits.nearest(randomness(problem).standard_normal(shape) / 8, problem.dtype)


def refute_unless_zero(name: str, gradient: np.ndarray, ignored: np.ndarray) -> None:
    """Raise :class:`Refutation` if an entry of ``gradient`` where ``ignored`` is not zero."""
    wrong = np.broadcast_to(ignored, gradient.shape) & (gradient != 0)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(f"{name}{list(at)} is {gradient[at]:.9g}, not 0; {int(wrong.sum())} such entries are not 0")


@attention_property(
    source=CHAIN_RULE,
    hunts="hidden weights recomputed without the mask in the backward pass, exp(0 - LSE) of padded columns",
    needs=("backward",),
    problems=hiding,
)
def test_hidden_keys_have_gradient_zero(subject: Subject, problem: Problem) -> None:
    """dK and dV of a key that no query sees, and dBias where no query sees the key, are exactly zero.

    P = 0 there, so every term of the sums is 0 times a finite number. Problems with queries that see no key are left
    to the next property unless the convention gives them a constant.
    """
    if problem.empty_rows.any() and subject.conventions.empty_row != "zero":
        return
    found = subject.gradients(problem, cotangent(problem))
    B, Hkv, Sk = problem.batch, problem.kv_heads, problem.key_length
    seen = problem.visible.reshape(B, Hkv, -1, Sk).any(axis=2)
    for name in ("dk", "dv"):
        refute_unless_zero(name, found[name], ~seen[..., None])
    if problem.bias is not None:
        shared = tuple(axis for axis, length in enumerate(problem.bias.shape) if length == 1)
        refute_unless_zero("dbias", found["dbias"], ~problem.visible.any(axis=shared, keepdims=True))


@attention_property(
    source=CHAIN_RULE,
    hunts="exp(s - LSE) with an infinite LSE: NaN in dQ of queries that see no key, spreading to dK and dV",
    needs=("backward",),
    problems=hiding,
)
def test_queries_that_see_no_key_have_gradient_zero(subject: Subject, problem: Problem) -> None:
    """dQ of a query that sees no key is exactly zero, since its output is a constant by convention."""
    if subject.conventions.empty_row == "zero":
        refute_unless_zero("dq", subject.gradients(problem, cotangent(problem))["dq"], problem.empty_rows[..., None])


@attention_property(
    source="attention is smooth in its inputs; the problems keep far from overflow",
    hunts="a padded column whose exp(0 - LSE) overflows once LSE < -88.7, Inf * 0 in a backward tile",
    needs=("backward",),
    problems=lambda subject: problems(
        subject,
        without=("empty", "bias", "scale", "softcap"),
        regimes=TAME,
        shift=st.sampled_from((0.0, -30.0, -100.0, -120.0, 120.0)),
    ),
)
def test_gradients_are_finite(subject: Subject, problem: Problem) -> None:
    """Gradients of moderate problems hold no NaN and no infinity, wherever a constant has moved the scores."""
    if problem.empty_rows.any() and subject.conventions.empty_row == "nan":
        return
    for name, gradient in subject.gradients(problem, cotangent(problem)).items():
        if not np.isfinite(gradient).all():
            count = int((~np.isfinite(gradient)).sum())
            raise Refutation(f"{name} holds {count} entries of {gradient.size} that are not finite")
