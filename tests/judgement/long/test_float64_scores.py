"""Scores in float64 are as far off as their radius says, and much less where their operands are truncated."""

from fractions import Fraction

import numpy as np
import pytest

from attn_spec.judgement.long.engine import NUMPY, engine_of
from attn_spec.judgement.long.float64_scores import U, float64_scores
from attn_spec.numbers.error_free_products import bits, bounds
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_length": 4, "key_length": 6, "head_dim": 64, "scale": 0.5, "dtypes": "float64"}
REGIMES = ("normal", "activations", "cancellation", "one_hot", "large")


def exact_scores(problem):
    """Return q.k times a scale of 1/2, of one head, as fractions."""
    q, k = ([list(map(Fraction, row)) for row in x[0, 0].tolist()] for x in (problem.q, problem.k))
    return [[sum(a * b for a, b in zip(i, j, strict=True)) / 2 for j in k] for i in q]


@pytest.mark.parametrize("engine", [NUMPY, engine_of("torch")], ids=lambda engine: engine.name)
@pytest.mark.parametrize("regime", REGIMES)
def test_scores_of_cut_operands_are_off_by_little(regime, engine):
    problem = Recipe(**SHAPE, regime=regime).problem()
    plain, cut = (float64_scores(problem, engine, cut_operands=of) for of in (False, True))

    for found in (plain, cut):
        s, size = engine.take(found.s)[0, 0], found.size[0, 0]
        for i, row in enumerate(exact_scores(problem)):
            assert all(abs(Fraction(x) - y) <= found.delta[0, 0, i] for x, y in zip(s[i].tolist(), row, strict=True))
            assert np.abs(s[i]).max() <= size[i]
    assert (cut.delta <= 9.1 * U * cut.size).all()
    assert (cut.delta < plain.delta / 7).all()


def test_arguments_of_the_exponential_are_as_large_as_scores_make_them():
    near = float64_scores(Recipe(**SHAPE).problem(), NUMPY)
    far = float64_scores(Recipe(**SHAPE).problem().replace(bias=np.full((1, 1, 1, 6), -1e9)), NUMPY)

    assert (near.log_weight_error - near.delta < U * (2 * near.size + 12)).all()
    assert (far.log_weight_error - far.delta > 740 * U).all()


def test_the_error_holds_that_of_the_second_sum():
    """No vectors come near that error, so no score shows it: of 4,096 columns with one number it is most of delta."""
    columns = 4096
    q, k = (np.eye(n, columns)[None, None] for n in (4, 6))
    problem = Recipe(**SHAPE | {"head_dim": columns, "scale": 1.0}).problem().replace(q=q, k=k)
    of_sum = 2.0 * columns**2 * 2.0 ** -bits(columns) * bounds(q, -1).max() * bounds(k, -1).max()

    assert of_sum > 100
    assert (float64_scores(problem, NUMPY, cut_operands=True).delta >= U * of_sum).all()


@pytest.mark.parametrize(
    "options",
    [
        {"alibi_slopes": "steepest@1H11"},
        {"bias": "large@BHQK"},
        {"softcap": 1000.0},
        {"bias": "large@BHQK", "alibi_slopes": "steepest@1H11", "softcap": 5.0, "causal": True},
    ],
    ids=str,
)
def test_no_score_is_larger_than_its_size(options):
    found = float64_scores(Recipe(query_length=9, key_length=40, head_dim=4, **options).problem(), NUMPY)
    largest = np.abs(np.where(np.isfinite(found.s), found.s, 0.0)).max(axis=-1)

    assert (largest <= found.size).all()
    assert (largest > found.size / 8).any()
