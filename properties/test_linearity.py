"""Linearity: the output is linear in V, column by column."""

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_values, projects, ties_values
from attn_spec.search.assertions import (
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    decided_rows,
    judged,
    measured_within_bound,
)
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import Refutation, attention_property

LINEAR = "O = P V with weights P that do not depend on V"


def _without_keys(problem: Problem) -> np.ndarray:
    """Return the rows of the output for which a head, or any head of a layer, sees no key."""
    return np.any(problem.empty_rows, axis=1, keepdims=True) if problem.projects else problem.empty_rows


def tame(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems that overflow nothing, with outputs linear in v."""
    return problems(subject, without=("empty", adds_to_values, ties_values), regimes=TAME)


def with_more_or_fewer_columns(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems like :func:`tame`, with another number of columns in V than in K wherever the kernel allows it."""
    needs = ("dv",) if subject.supports("dv") else ()
    return problems(subject, needs=needs, without=("empty", projects, ties_values), regimes=TAME)


@attention_property(
    source=LINEAR,
    hunts="columns of V mixed by a wrong stride or a wrong tail of Dv, weights that depend on V",
    problems=with_more_or_fewer_columns,
)
def test_columns_of_v_do_not_mix(subject: Subject, problem: Problem) -> None:
    """Rewriting half of V's columns leaves the other columns of the output, and the log-sum-exp, the same bits.

    Each output element is a dot product of a row of weights with one column of V; no sound order of summation lets
    another column in. Kernels that do not promise equal bits are held to the bound instead.
    """
    rng = randomness(problem)
    rewritten = rng.permutation(problem.value_dim) < max(problem.value_dim // 2, 1)
    v = np.where(rewritten, bits.nearest(rng.standard_normal(problem.v.shape), problem.dtype_of("v")), problem.v)
    before, after = subject(problem), subject(changed := problem.replace(v=v))
    if not compares_bits(subject):
        assert_within_bound(subject, changed, after)
        return
    first, second = (answer | {"output": answer["output"][..., ~rewritten]} for answer in (before, after))
    assert_unchanged(first, second, "after other columns of V were rewritten", decided_rows(subject, problem))


@attention_property(
    source=LINEAR,
    hunts="a part of V dropped, counted twice, or clipped",
    problems=tame,
)
def test_outputs_add_up(subject: Subject, problem: Problem) -> None:
    """The outputs for V with its odd keys set to zero, and with its even keys, add up to the output for V.

    Up to the sum of the three bounds; V is split by keys so that the parts add up to V exactly.
    """
    even = (np.arange(problem.key_length) % 2 == 0)[:, None]
    parts = [problem.replace(v=np.where(keep, problem.v, 0.0)) for keep in (even, ~even)]
    measured = [judged(subject, p, subject(p)).measurements[0] for p in (problem, *parts)]
    whole, first, second = measured
    gap = np.abs(whole.got - (first.got + second.got))
    allowed = sum(m.allowed for m in measured) + 2.0**-52 * np.abs(whole.got)  # the sum of the parts is rounded here
    speaks = np.logical_and.reduce([m.measured for m in measured]) & ~_without_keys(problem)[..., None]
    wrong = speaks & ~(gap <= allowed)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        parted = f"{first.got[at]:.9g} + {second.got[at]:.9g} for its parts"
        raise Refutation(
            f"output{list(at)} is {whole.got[at]:.9g} for V, {parted}: apart by more than {allowed[at]:.3g}"
        )


@attention_property(
    source=LINEAR,
    hunts="uninitialized accumulators, an epsilon added to the output, a bias from padding",
    problems=tame,
    each_call=True,
)
def test_zero_values_give_zero(subject: Subject, problem: Problem) -> None:
    """With V = 0 the output is exactly 0: sums and products of zeros do not round."""
    changed = problem.replace(v=np.zeros(problem.v.shape))
    answer = subject(changed)
    measured = measured_within_bound(subject, changed, answer, "output").measurements[0].measured
    seen = measured & ~_without_keys(problem)[..., None]
    found = answer["output"][seen]
    if found.any():
        raise Refutation(f"V = 0 gave outputs up to {np.abs(found).max():.9g} in {int((found != 0).sum())} elements")
