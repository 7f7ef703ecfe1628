"""Dropout with an explicit keep mask: which weights meet values, forward and backward, and what knows nothing of it."""

from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import projects, ties_values
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound, differentiable
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.strategies import TAME, named, problems
from attn_spec.search.property import attention_property

SRIVASTAVA = "Srivastava et al., Dropout (2014), section 10; torch.ops.aten._scaled_dot_product_attention_math"


def dropping(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with dropout."""
    return problems(subject, needs=("dropout_keep",), without=("empty",), **drawn)


def differentiable_with_dropout(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with dropout that have gradients."""
    return differentiable(subject, needs=("dropout_keep",), without=("empty",))


def half_kept(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems whose queries keep some keys and drop some, of numbers that overflow nothing."""
    keeps = named(("half", "most", "checkerboard"))
    asked = {
        "needs": ("dropout_keep",),
        "without": ("empty", projects, ties_values),
        "dropout_keep": keeps,
        "regimes": TAME,
    }
    return problems(subject, where=lambda recipe: recipe.key_length > 1, **asked)


@attention_property(
    source=SRIVASTAVA,
    hunts="1 / (1 - p) forgotten, or 1 / p; weights dropped before the softmax, or its row sum; a mask of other heads",
    needs=("dropout_keep",),
    problems=dropping,
    each_call=True,
)
def test_weights_that_are_kept_alone_meet_values(subject: Subject, problem: Problem) -> None:
    """The output is the sum of what is kept, over 1 - p, and the log-sum-exp that of all, within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="a weight of 0 times any number is 0",
    hunts="values read where the weight is dropped: another mask in one tile, a mask applied to the wrong axis",
    needs=("dropout_keep",),
    problems=half_kept,
)
def test_values_that_are_dropped_change_nothing(subject: Subject, problem: Problem) -> None:
    """Other values at keys that a query drops leave that query's output within the bound it has without them."""
    keep = np.broadcast_to(problem.dropout_keep, problem.score_shape)
    b, h, i = (int(randomness(problem).integers(n)) for n in problem.score_shape[:3])
    v = problem.v.copy()
    at = v[b, h // problem.group]
    at[~keep[b, h, i]] = bits.nearest(64.0 * np.sign(at[~keep[b, h, i]]) + 32.0, problem.dtype_of("v"))
    row = (slice(b, b + 1), slice(h, h + 1), slice(i, i + 1))
    changed, held = subject(problem.replace(v=v)), subject(problem)
    whole = {name: answer.copy() for name, answer in held.items()}
    whole["output"][row] = changed["output"][row]
    assert_within_bound(subject, problem, whole, "output")


@attention_property(
    source="Dao et al., FlashAttention (2022), appendix B.4: the backward pass drops what the forward pass dropped",
    hunts="another mask in the backward pass, its factor missing in dP or dV, delta of the output without dropout",
    needs=("dropout_keep", "backward"),
    problems=differentiable_with_dropout,
)
def test_gradients_pass_the_weights_that_are_kept(subject: Subject, problem: Problem) -> None:
    """Every element of every gradient is within its bound under dropout."""
    dO = cotangent(subject, problem)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))
