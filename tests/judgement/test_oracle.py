"""The oracle contains the truth, is as sharp as asked, and does not work harder than it must."""

import numpy as np
import pytest

from attn_spec.attention.enclosure import enclose
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.judgement import oracle as module
from attn_spec.judgement.oracle import GradientOracle, float64_truth, oracle
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import REGIMES, Recipe
from tests.one_head import one_head

SHAPE = {"query_length": 3, "key_length": 9, "head_dim": 7, "value_dim": 3}
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (1, 0)},
    "mask": {"mask": "random"},
    "bias": {"bias": "minus_inf"},
    "softcap": {"softcap": 5.0},
    "gqa": {"query_heads": 6, "kv_heads": 2},
    "shift": {"shift": -6e4},
}


def distance(quantity, truth):
    """Bound from below the distance of two enclosed quantities beyond their radii; negative where they overlap."""
    with np.errstate(invalid="ignore"):
        apart = np.abs((quantity.value - truth.value) + (quantity.low - truth.low)) - truth.radius - quantity.radius
    return np.where(quantity.value == truth.value, -quantity.radius, apart)


def forbid_enclosures(monkeypatch):
    def refuse(*_):
        raise AssertionError("tier 0 was sharp enough")

    monkeypatch.setattr(module, "enclose", refuse)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_tier_0_contains_the_enclosure(dtype, option):
    regimes = [name for name in REGIMES if not name.startswith("v_")]
    for seed, regime in enumerate(regimes):
        values = ("", "+v_wide", "+v_alternating")[seed % 3]
        recipe = Recipe(regime=regime + values, dtypes=dtype, seed=seed, **SHAPE, **OPTIONS[option])
        problem = recipe.problem()
        tier_0, truth = float64_truth(intermediates(problem)), enclose(problem, 200)
        for name in ("output", "lse"):
            assert (distance(tier_0[name], truth[name]) <= 0).all(), (recipe, name)


def test_tier_0_is_not_needlessly_wide():
    problem = Recipe(**SHAPE, dtypes="float64").problem()
    tier_0, truth = float64_truth(intermediates(problem)), enclose(problem, 200)

    errors = np.abs((tier_0["output"].value - truth["output"].value) - truth["output"].low)

    assert (tier_0["output"].radius < 2.0**-44).all()
    assert errors.max() > tier_0["output"].radius.max() / 1000


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tier_0_serves_every_narrow_dtype(monkeypatch, dtype):
    forbid_enclosures(monkeypatch)

    truth = oracle(Recipe(**SHAPE, dtypes=dtype).problem())

    assert np.isfinite(truth["output"].radius).all()


def test_it_climbs_to_balls_for_float64():
    problem = Recipe(**SHAPE, dtypes="float64").problem()
    tier_0, truth = float64_truth(intermediates(problem)), oracle(problem)

    assert (truth["output"].radius < 2.0**-20 * tier_0["output"].radius).all()
    assert (truth["output"].low != 0).any()


LONG = Recipe(query_length=16, key_length=64, head_dim=16, value_dim=3, dtypes="float64")


def test_tier_1_serves_long_float64_problems(monkeypatch):
    forbid_enclosures(monkeypatch)

    assert (oracle(LONG.problem())["output"].radius < 2.0**-80).all()


def test_gradients_of_long_float64_problems_are_those_of_tier_1(monkeypatch):
    problem = LONG.problem()
    cotangent = np.random.default_rng(0).standard_normal(problem.output_shape)
    x = intermediates(problem)
    asked = GradientOracle(x, gradient_intermediates(x, cotangent))
    monkeypatch.setattr(module, "enclose_gradients", forbid_enclosures)
    shapes = {"dq": problem.q.shape, "dk": problem.k.shape, "dv": problem.v.shape}
    truth = asked(**{name: np.full(shape, 2.0**-75) for name, shape in shapes.items()})

    assert all((truth[name].radius <= 2.0**-75).all() for name in shapes)


def test_what_tier_1_cannot_tell_is_left_to_balls():
    problem = LONG.problem()
    wanted = {"output": np.full(problem.output_shape, 2.0**-100), "lse": np.full(problem.score_shape[:3], 1.0)}

    assert (oracle(problem, **wanted)["output"].radius <= 2.0**-100).all()
    assert oracle(problem.replace(q=problem.q * 2.0**600, scale=2.0**-600))["output"].radius.max() < 2.0**-60


def test_short_problems_are_left_to_balls(monkeypatch):
    def refuse(*_):
        raise AssertionError("balls are faster")

    monkeypatch.setattr(module.error_free, "enclose", refuse)
    assert oracle(Recipe(**SHAPE, dtypes="float64").problem())["output"].radius.max() < 2.0**-70


@pytest.mark.parametrize("bits", [40, 70, 100])
def test_the_radius_honors_the_request(bits):
    problem = Recipe(**SHAPE).problem()
    wanted = 2.0**-bits

    truth = oracle(problem, output=np.full((1, 1, 3, 3), wanted), lse=np.full((1, 1, 3), wanted))

    assert (truth["output"].radius <= wanted).all()
    assert (truth["lse"].radius <= wanted).all()


@pytest.mark.parametrize(("output", "lse"), [(2.0**-100, 1.0), (1.0, 2.0**-100)])
def test_one_quantity_is_as_sharp_as_asked_whatever_is_asked_of_the_other(monkeypatch, output, lse):
    monkeypatch.setattr(module, "FIRST_PRECISION", 60)
    problem = Recipe(**SHAPE).problem()

    truth = oracle(problem, output=np.full((1, 1, 3, 3), output), lse=np.full((1, 1, 3), lse))

    assert (truth["output"].radius <= output).all()
    assert (truth["lse"].radius <= lse).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_by_default_the_radius_is_a_millionth_of_an_ulp(dtype):
    truth = oracle(Recipe(**SHAPE, dtypes=dtype).problem())

    ulp = np.maximum(
        2 * FORMATS[dtype].unit_roundoff * np.exp2(np.floor(np.log2(np.abs(truth["output"].value)))),
        FORMATS[dtype].smallest_subnormal,
    )
    assert (truth["output"].radius <= 2.0**-20 * ulp).all()


def test_an_impossible_request_ends_with_the_best_there_is():
    problem = one_head([[1.0]], [[0.0], [1.0]], [[0.0], [1.0]])

    truth = oracle(problem, output=np.zeros((1, 1, 1, 1)), lse=np.zeros((1, 1, 1)))

    assert 0 < truth["output"].radius.item() < 2.0**-100


@pytest.mark.parametrize("bits", [30, 100])
def test_rows_that_see_no_key_are_exact(bits):
    mask = np.array([[[[True, True], [False, False]]]])
    problem = one_head([[1.0], [1.0]], [[0.0], [1.0]], [[3.0], [5.0]], mask=mask)

    truth = oracle(problem, output=np.full((1, 1, 2, 1), 2.0**-bits), lse=np.full((1, 1, 2), 2.0**-bits))

    assert float64_truth(intermediates(problem))["output"].radius[0, 0, 1].item() == 0
    assert truth["output"].value[0, 0, 1].item() == 0
    assert truth["output"].radius[0, 0, 1].item() == 0
    assert truth["lse"].value[0, 0, 1] == -np.inf
    assert truth["lse"].radius[0, 0, 1] == 0


def test_no_keys_and_no_queries():
    no_keys = Problem(q=np.ones((1, 1, 2, 3)), k=np.ones((1, 1, 0, 3)), v=np.ones((1, 1, 0, 2)))
    no_queries = Problem(q=np.ones((1, 1, 0, 3)), k=np.ones((1, 1, 4, 3)), v=np.ones((1, 1, 4, 2)))

    assert (oracle(no_keys)["output"].value == 0).all()
    assert (oracle(no_keys)["lse"].value == -np.inf).all()
    assert oracle(no_queries)["output"].value.shape == (1, 1, 0, 2)


def test_where_float64_overflows_tier_0_says_so_and_balls_do_not():
    problem = one_head([[1e300]], [[1e300], [-1e300]], [[3.0], [5.0]])

    assert np.isinf(float64_truth(intermediates(problem))["output"].radius).all()
    assert oracle(problem)["output"].value.item() == 3.0


def test_two_keys_by_hand():
    # P = (1/4, 3/4) up to the rounding of log 3 to float64; o = 8/4 + 3*16/4 = 14; L = log 4.
    truth = oracle(one_head([[1.0]], [[0.0], [np.log(3.0)]], [[8.0], [16.0]]))

    assert truth["output"].value.item() == pytest.approx(14.0, rel=2.0**-51)
    assert truth["lse"].value.item() == pytest.approx(np.log(4.0), rel=2.0**-51)
