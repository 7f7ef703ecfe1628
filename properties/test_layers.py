"""Layers of multi-head attention: what heads, and the projections around them, have to do with one another."""

from typing import Any

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_values
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    differentiable,
    judged,
)
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import Refutation, attention_property

#: Options that a kernel of a layer takes.
LAYER = ("query_projection", "key_projection", "value_projection", "output_projection")
VASWANI = "Vaswani et al., Attention is all you need (2017), section 3.2.2"


def layers(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw layers of several heads, of numbers that overflow nothing."""
    asked = {"needs": LAYER, "without": ("empty",), "regimes": TAME, **drawn}
    return problems(subject, where=lambda recipe: recipe.query_heads > 1, **asked)


def of_head(problem: Problem, head: int, **changed: np.ndarray) -> Problem:
    """Return the layer with other numbers in tensors of one head, and every projection repeated for each head."""
    given = {name: np.asarray(getattr(problem, name)) for name in LAYER}
    whole = {name: np.array(np.broadcast_to(x, (1, problem.query_heads, *x.shape[2:]))) for name, x in given.items()}
    for name, values in changed.items():
        whole[name][0, head] = values
    return problem.replace(**whole)


@attention_property(
    source=f"{VASWANI}: Concat(head_1, .., head_h) W_O is the sum of head_i W_O_i",
    hunts="heads viewed without a transpose, summed before W_O, or met by the rows of W_O of another head",
    needs=LAYER,
    problems=layers,
)
def test_the_output_is_the_sum_of_what_each_head_adds(subject: Subject, problem: Problem) -> None:
    """Layers in which one head alone has a W_O, and the first of them b_O, add up to the layer of all heads.

    Within the sum of their bounds: other heads add exact zeros.
    """
    parts, W_O = [], np.asarray(problem.output_projection)
    for head in range(problem.query_heads):
        alone = np.where(np.arange(problem.query_heads)[:, None, None] == head, W_O, 0.0)
        part = problem.replace(output_projection=alone)
        parts.append(part if head == 0 else part.replace(output_projection_bias=None))
    measured = [judged(subject, p, subject(p)).measurements[0] for p in (problem, *parts)]
    speaks = np.logical_and.reduce([m.measured & np.isfinite(m.got) for m in measured])
    whole, *of_heads = (np.where(speaks, m.got, 0.0) for m in measured)
    total = np.add.reduce(of_heads)
    allowed = np.add.reduce([m.allowed + 2.0**-50 * np.abs(m.got) for m in measured])
    wrong = speaks & ~(np.abs(whole - total) <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        raise Refutation(
            f"output{list(at)} is {whole[at]:.9g}, but {problem.query_heads} heads add up to {total[at]:.9g}: "
            f"apart by more than {allowed[at]:.3g}"
        )


@attention_property(
    source=f"{VASWANI}: a head meets the output through its part of W_O alone",
    hunts="heads that read the projections of others, softmax or sums over heads, a bias read at another head",
    needs=LAYER,
    problems=layers,
)
def test_a_head_without_an_output_projection_has_no_say(subject: Subject, problem: Problem) -> None:
    """Other W_Q, W_K and W_V of a head whose W_O is 0 leave the output the same bits, or within its bound."""
    rng = randomness(problem)
    head = int(rng.integers(problem.query_heads))
    silent = of_head(problem, head, output_projection=np.zeros(problem.output_projection.shape[2:]))
    others = {}
    for name in LAYER[:3]:
        values = rng.standard_normal(getattr(problem, name).shape[2:]) / problem.head_dim**0.5
        others[name] = bits.nearest(values, problem.dtype_of(name))
    changed = of_head(silent, head, **others)
    before, after = subject(silent), subject(changed)
    if not compares_bits(subject):
        assert_within_bound(subject, changed, after, "output")
        return
    if all(np.isfinite(answer["output"]).all() for answer in (before, after)):  # 0 times infinity is none
        first, second = ({"output": answer["output"]} for answer in (before, after))
        assert_unchanged(first, second, f"after head {head}, whose W_O is 0, got other projections")


@attention_property(
    source="W_O (W_V v) does not change when W_V is multiplied and W_O divided by one number, nor q.k likewise",
    hunts="a scale or bias that belongs to one projection found at another; weights read from the wrong part of a pack",
    needs=LAYER,
    problems=lambda subject: layers(subject, without=("empty", adds_to_values), regimes=("normal", "offset_q")),
)
def test_powers_of_two_move_between_projections(subject: Subject, problem: Problem) -> None:
    """With 4 W_V and W_O / 4, and 2 W_Q, 2 b_Q, W_K / 2 and b_K / 2, the output is within the bound that it had."""
    factors = {"value_projection": 4.0, "output_projection": 0.25, "query_projection": 2.0, "key_projection": 0.5}
    changes = {}
    for name, factor in factors.items():
        for moved in (name, f"{name}_bias"):
            if (tensor := getattr(problem, moved)) is not None:
                changes[moved] = bits.nearest(tensor * factor, problem.dtype_of(moved))
    changed = problem.replace(**changes)
    assert_within_bound(subject, changed, subject(changed))
    if all(np.array_equal(changes[n] / factors[n.removesuffix("_bias")], getattr(problem, n)) for n in changes):
        assert_within_bound(subject, problem, {"output": subject(changed)["output"]}, "output")


@attention_property(
    source="the chain rule through y = x W^T + b: dx = dy W, dW = dy^T x, db = sum of dy",
    hunts="a projection left out of the graph, a gradient of one head or batch entry, dX of one of q, k and v",
    needs=(*LAYER, "backward"),
    problems=lambda subject: differentiable(subject, needs=LAYER, without=("empty",)),
)
def test_gradients_pass_all_projections(subject: Subject, problem: Problem) -> None:
    """Every element of the gradients of q, k, v and of every projection and bias is within its bound."""
    dO = cotangent(subject, problem)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))
