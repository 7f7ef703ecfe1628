"""Values that are columns of keys stay so in whatever is made of a problem, and a recipe keeps what it says of both."""

import numpy as np
import pytest

from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import REGIMES, Recipe

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 3, "key_length": 9, "head_dim": 6, "value_dim": 4}
RECIPE = Recipe(**SHAPE, latent=True, seed=5)
LENGTHS = {"seqused_k": "ragged@B111", "seqused_q": "last_shorter@B111", "leftpad_k": "one@B111"}


def is_tied(problem):
    return problem.latent and np.array_equal(problem.v, problem.k[..., : problem.value_dim])


@pytest.mark.parametrize("shift", [0.0, 100.0])
@pytest.mark.parametrize("value_dim", [4, 5, 6])
@pytest.mark.parametrize("regime", [*REGIMES, "rising+v_one", "one_hot+v_huge"])
def test_every_regime_ties_values_to_keys(regime, value_dim, shift):
    recipe = Recipe(**{**SHAPE, "value_dim": value_dim}, latent=True, regime=regime, shift=shift, size=2.0**-3)

    assert is_tied(recipe.problem())


def test_a_regime_of_scores_and_one_of_values_both_hold():
    """Scores are set through the first column in which no value lies, so that V = 1 leaves them rising."""
    problem = Recipe(**SHAPE, latent=True, regime="rising+v_one", seed=1).problem()
    scores = problem.q @ problem.per_query_head(problem.k).swapaxes(-1, -2) * problem.scale_value

    assert (problem.v == 1).all()
    steps = np.diff(scores, axis=-1)
    assert abs(steps.mean() - 1) < 0.5 or abs(steps.mean()) < 0.5  # at every key, or at every tile of them
    alone = Recipe(**SHAPE, regime="rising+v_one", seed=1).problem()
    assert not np.array_equal(alone.k[..., :4], alone.v)


def test_parts_of_a_problem_keep_the_tie():
    problem = Recipe(**SHAPE, **LENGTHS, latent=True, seed=5, causal=True).problem()
    parts = [
        problem.take("B", [1]),
        problem.take("H", [1, 0]),
        problem.take("Q", [0, 2]),
        problem.take("K", [4, 2, 8]),
        problem.head(3),
        problem.rows([0, 1]),
        problem.sequence(1),
        problem.cleared(),
        problem.merged("mask"),
        Problem.from_json(problem.to_json()),
        eval(repr(problem.replace(scale=0.5)), {"Problem": Problem, "np": np}),  # noqa: S307 -- a repr runs
    ]

    assert all(map(is_tied, parts))
    assert {"latent"} <= problem.options()


def test_inputs_change_together():
    problem, other = RECIPE.problem(), Recipe(**{**SHAPE, "value_dim": 6}, seed=6).problem()
    by_keys = problem.with_inputs(k=other.k, v=problem.v)
    by_values = problem.with_inputs(q=other.q, v=other.v[..., :4])

    assert is_tied(by_keys)
    assert np.array_equal(by_keys.k, other.k)
    assert is_tied(by_values)
    assert np.array_equal(by_values.v, other.v[..., :4])
    assert np.array_equal(by_values.k[..., 4:], problem.k[..., 4:])
    assert np.array_equal(by_values.q, other.q)
    apart = problem.replace(latent=False).with_inputs(k=other.k)
    assert np.array_equal(apart.v, problem.v)
    with pytest.raises(ProblemError, match="latent=True says that v is the first Dv = 4 columns of k"):
        problem.replace(k=other.k)
