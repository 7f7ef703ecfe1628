"""Error-free products enclose what balls enclose, sharply, for every option they take, or refuse."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given

from attn_spec.attention import enclosure as balls
from attn_spec.attention import error_free, gradient_enclosure
from attn_spec.attention.error_free import applies, enclose
from attn_spec.attention.error_free_gradients import enclose_gradients
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from tests.attention.exact_problems import backward_problems, examples, problems

#: More bits than any radius here shows.
PRECISION = 200


def assert_encloses(found, truth):
    """Assert that every truth, in balls of far smaller radii, lies inside, and that NaN is at the same places."""
    assert found.keys() == truth.keys()
    for name, known in truth.items():
        x = found[name]
        undefined = np.isnan(known.value)
        assert x.value.shape == x.low.shape == x.radius.shape == known.value.shape
        assert (np.isnan(x.value) == undefined).all(), name
        with np.errstate(invalid="ignore"):
            apart = np.abs((x.value - known.value) + (x.low - known.low)) - known.radius
        same = (x.value == known.value) & (x.low == known.low)
        assert (undefined | same | np.isinf(x.radius) | (apart <= x.radius)).all(), name


@given(problem=problems())
@examples(100)
def test_output_and_lse_contain_the_truth(problem):
    if applies(problem):
        assert_encloses(enclose(problem), balls.enclose(problem, PRECISION))


@given(case=backward_problems())
@examples(100)
def test_gradients_contain_the_truth(case):
    problem, dO, dL = case
    if applies(problem):
        truth = gradient_enclosure.enclose_gradients(problem, dO, PRECISION, dL)
        assert_encloses(enclose_gradients(problem, dO, dL), truth)


def normal_problem(*, Hq=2, Hkv=1, Sq=20, Sk=24, D=8, Dv=5, spread=1.0, **options):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape) for shape in ((2, Hq, Sq, D), (2, Hkv, Sk, D), (2, Hkv, Sk, Dv)))
    options = {name: value(rng, (2, Hq, Sq, Sk)) if callable(value) else value for name, value in options.items()}
    return Problem(q=spread * q, k=k, v=v, dtypes="float64", **options)


@pytest.mark.parametrize("exponent", range(10, 90, 8))
def test_scores_whose_low_parts_are_large_are_told_apart(exponent):
    """The integer above a high part beyond 2^53 is that part, and the score lies far above it or below."""
    rng = np.random.default_rng(exponent)
    q, k = rng.standard_normal((1, 1, 40, 2)), rng.standard_normal((1, 1, 5, 2))
    q[..., 1], k[..., 2:, :] = 2.0**-exponent, k[..., :1, :]
    k[..., 2:, 1] += [0.0, 3.0, -70.0]
    problem = Problem(q=q * 2.0**exponent, k=k, v=rng.standard_normal((1, 1, 5, 3)), dtypes="float64", scale=1.0)

    found = enclose(problem)

    assert_encloses(found, balls.enclose(problem, PRECISION))
    assert np.isfinite(found["output"].radius).all() == (exponent < 60)


def keep(rng, shape):
    return rng.random(shape) < 0.7


def bias(rng, shape):
    return np.where(rng.random(shape) < 0.2, -np.inf, rng.standard_normal(shape))


def filled(rng, shape):
    return np.where(rng.random(shape) < 0.2, np.finfo(np.float64).min, rng.standard_normal(shape))


OPTIONS = {
    "plain": {},
    "no exact root": {"D": 7},
    "wide heads, in two parts": {"D": 520, "Sk": 5},
    "long rows, in two parts": {"Sk": 700, "Sq": 3},
    "many rows, in two parts": {"Sq": 600, "Sk": 3},
    "scale": {"scale": -0.3},
    "large scores": {"spread": 2000.0},
    "causal": {"causal": True},
    "more queries than keys": {"causal": True, "causal_alignment": "bottom_right", "Sq": 30},
    "window": {"window": (3, 1)},
    "mask": {"mask": keep},
    "bias": {"bias": bias},
    "one bias for all rows": {"bias": lambda rng, shape: bias(rng, (1, shape[1], 1, shape[3]))},
    "one bias for all keys": {"bias": lambda rng, shape: rng.standard_normal((shape[0], 1, shape[2], 1))},
    "finite fill": {"bias": filled},
    "softcap": {"softcap": 1.5},
    "softcap, saturated": {"softcap": 0.5, "spread": 3000.0},
    "softcap and bias": {"softcap": 30.0, "bias": bias},
    "ALiBi": {"alibi_slopes": lambda rng, shape: np.array([0.5, 0.3]).reshape(1, 2, 1, 1)},
    "dropout": {"dropout_keep": keep, "dropout_p": 0.3},
    "grouped heads": {"Hq": 6, "Hkv": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_radii_are_proved_and_sharp_for_each_option(monkeypatch, name):
    monkeypatch.setattr(error_free, "PAIRS", 200)
    problem = normal_problem(**OPTIONS[name])
    rng = np.random.default_rng(6)
    dO, dL = rng.standard_normal(problem.output_shape), rng.standard_normal(problem.score_shape[:3])
    assert applies(problem)
    found, truth = enclose(problem), balls.enclose(problem, PRECISION)
    gradients = enclose_gradients(problem, dO, dL)

    assert_encloses(found, truth)
    assert_encloses(gradients, gradient_enclosure.enclose_gradients(problem, dO, PRECISION, dL))
    products = np.abs(problem.q).max() * np.abs(problem.k).max() * problem.head_dim
    size = max(products, 8 * (problem.softcap or 0.0))  # which multiplies the error of tanh
    sharp = 2.0**-92 * max(size, 32)
    assert (found["output"].radius <= sharp * np.abs(problem.v).max()).all()
    assert (found["lse"].radius <= sharp).all()
    assert (found["lse"].radius[~problem.empty_rows] > 2.0**-95).all()  # and the radius is not too small to be true
    for quantity in gradients.values():
        assert (quantity.radius <= 64 * sharp * max(np.abs(problem.q).max(), 1) * problem.query_length).all()


WRONG = {
    "the scale is the float, not the real number": ({"D": 7}, {"scale": 7**-0.5}),
    "the scale is off by one part in 2**50": ({"scale": 0.5}, {"scale": 0.5 + 2.0**-51}),
    "the diagonal starts in the other corner": ({"causal": True}, {"causal_alignment": "bottom_right"}),
    "the cap is off by one part in 2**50": ({"softcap": 4.0}, {"softcap": 4.0 + 2.0**-48}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_it_does_not_contain_a_wrong_truth(mistake):
    options, change = WRONG[mistake]
    problem = normal_problem(**options)
    found, wrong = enclose(problem), balls.enclose(problem.replace(**change), PRECISION)

    for name in found:
        apart = np.abs((found[name].value - wrong[name].value) + (found[name].low - wrong[name].low))
        assert (apart > found[name].radius).any(), name


def test_what_is_hidden_may_be_no_number_and_what_is_seen_is_then_unknown():
    mask = np.ones((1, 1, 1, 24), dtype=bool)
    mask[..., 3] = False
    problem = normal_problem(mask=mask)
    v, k = problem.v.copy(), problem.k.copy()
    v[:, :, 3], k[:, :, 3], q = np.nan, np.inf, problem.q.copy()
    q[0, 0, 2] = np.nan
    damaged = problem.replace(q=q, k=k, v=v)
    dO = np.ones(problem.output_shape)

    assert_encloses(enclose(damaged), balls.enclose(damaged, PRECISION))
    found = enclose_gradients(damaged, dO)
    assert_encloses(found, gradient_enclosure.enclose_gradients(damaged, dO, PRECISION))
    assert np.isnan(found["dq"].value[0, 0, 2]).all()
    assert np.isfinite(found["dk"].value[0, 0, 3]).all()


@pytest.mark.parametrize("tensor", ["q", "k", "v"])
@pytest.mark.parametrize("power", [-600, 600])
def test_where_numbers_may_under_or_overflow_nothing_is_known(tensor, power):
    problem = normal_problem()
    x = getattr(problem, tensor) * 2.0**power
    found = enclose(problem.replace(**{tensor: x})) | enclose_gradients(
        problem.replace(**{tensor: x}), np.ones(problem.output_shape)
    )

    for quantity in found.values():
        assert np.isinf(quantity.radius).all()
        assert (quantity.value == 0).all()


@pytest.mark.parametrize("options", [{"rotary": "half"}, {"feature_map": "relu"}, {"Sk": 0}, {"Sq": 0}])
def test_it_does_not_apply_to_other_scores_or_to_nothing(options):
    assert not applies(normal_problem(**options))


def test_rows_that_see_no_key_are_exact():
    problem = normal_problem(causal=True, causal_alignment="bottom_right", Sq=30)
    found, empty = enclose(problem), problem.empty_rows
    of_q = enclose_gradients(problem, np.ones(problem.output_shape))["dq"]

    assert empty.any()
    assert (found["output"].value[empty] == 0).all()
    assert (found["output"].radius[empty] == 0).all()
    assert (found["lse"].value[empty] == -np.inf).all()
    assert (found["lse"].radius[empty] == 0).all()
    assert (of_q.value[empty] == 0).all()


def test_cotangents_of_another_shape_are_refused():
    with pytest.raises(ProblemError, match="cotangent must be a float64 array"):
        enclose_gradients(normal_problem(), np.ones((1, 1, 1, 1)))


def test_memory_does_not_grow_with_the_pairs():
    rng = np.random.default_rng(7)

    def peak(n):
        q, k, v = (rng.standard_normal((1, 1, n, 8)) for _ in range(3))
        problem = Problem(q=q, k=k, v=v, dtypes="float64")
        tracemalloc.start()
        enclose(problem)
        enclose_gradients(problem, q)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(1024), peak(2048)
    assert many < 64 * 8 * error_free.PAIRS
    assert many < few + 2**25  # where four times the pairs would be 24 MiB more in each of many arrays
