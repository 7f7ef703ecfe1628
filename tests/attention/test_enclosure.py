"""The enclosures contain the definition at twice their precision, tightly; and would not contain a wrong one."""

import time

import numpy as np
import pytest
from hypothesis import given
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import enclose
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from tests.attention.exact_problems import EXACT, PRECISIONS, TAME, examples, outside, problems


def largest_value(problem):
    return np.abs(problem.v).max(initial=0.0)


def assert_contains_the_definition(truth, problem, precision):
    # Twice the precision leaves the definition's own error, stated in its docstring: the slack is that and no more.
    with mp.workprec(EXACT):
        own_error = mp.ldexp(1, -2 * precision)
        own_error_of_output = own_error * mp.convert(float(largest_value(problem)))
    assert outside(truth["output"], definition.attention(problem, 2 * precision), own_error_of_output) == []
    assert outside(truth["lse"], definition.log_sum_exp(problem, 2 * precision), own_error) == []


@pytest.mark.parametrize("precision", PRECISIONS)
@given(problem=problems())
@examples(80)
def test_contains_the_definition_at_twice_the_precision(precision, problem):
    assert_contains_the_definition(enclose(problem, precision), problem, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(problem=problems())
@examples(80)
def test_is_as_sharp_as_the_precision_allows(precision, problem):
    truth = enclose(problem, precision)
    sharp = 2.0 ** (20 - min(precision, 106))

    # float64 ends at 2**-1074: half of that may remain, is rounded up to one, and nudged up to two.
    assert (truth["output"].radius <= sharp * largest_value(problem) + 2.0**-1073).all()
    seen = np.isfinite(truth["lse"].value)
    assert (truth["lse"].radius[seen] <= sharp * np.maximum(1, np.abs(truth["lse"].value[seen]))).all()


@given(problem=problems(kinds=TAME))
@examples(60)
def test_more_precision_never_widens(problem):
    coarse, fine = enclose(problem, 30), enclose(problem, 90)

    for wide, narrow in ((coarse["output"], fine["output"]), (coarse["lse"], fine["lse"])):
        assert (narrow.radius <= wide.radius).all()


def test_radius_shrinks_with_precision():
    problem = normal_problem()
    radii = [enclose(problem, precision)["output"].radius for precision in (30, 60, 90)]

    assert (radii[0] > 2.0**20 * radii[1]).all()
    assert (radii[1] > 2.0**20 * radii[2]).all()


def normal_problem(n=6, D=8, **options):
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 4, n, D), "k": (1, 2, n + 2, D), "v": (1, 2, n + 2, 3)}
    return Problem(**{name: bits.nearest(rng.standard_normal(s), "float32") for name, s in shapes.items()}, **options)


MISTAKES = {
    "the scale is dropped": ({}, {"scale": 1.0}),
    "the scale is the float, not the real number": ({}, {"scale": 8**-0.5}),
    "the scale is off by one part in 2**50": ({"scale": 0.5}, {"scale": 0.5 + 2.0**-51}),
    "the mask is dropped": ({"causal": True}, {"causal": False}),
    "the diagonal starts in the other corner": ({"causal": True}, {"causal_alignment": "bottom_right"}),
    "the window is exclusive": ({"window": (2, 1)}, {"window": (1, 0)}),
    "the cap is dropped": ({"softcap": 4.0}, {"softcap": None}),
    "the bias is dropped": ({"bias": np.ones((1, 1, 6, 8)).cumsum(-1)}, {"bias": None}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_definition_is_not_contained(mistake):
    options, wrong = MISTAKES[mistake]
    problem = normal_problem(**options)
    truth = enclose(problem)

    assert_contains_the_definition(truth, problem, 113)
    wrong_problem = problem.replace(**wrong)
    assert outside(truth["output"], definition.attention(wrong_problem, 226)) != []
    assert outside(truth["lse"], definition.log_sum_exp(wrong_problem, 226)) != []


def test_the_kv_heads_in_the_wrong_order_are_not_contained():
    problem = normal_problem()
    swapped = problem.replace(k=problem.k[:, ::-1], v=problem.v[:, ::-1])

    assert outside(enclose(problem)["output"], definition.attention(swapped, 226)) != []


def test_rows_that_see_no_key_are_exact():
    mask = np.ones((1, 1, 6, 8), bool)
    mask[0, 0, 2] = False
    truth = enclose(normal_problem(mask=mask))

    assert (truth["output"].value[:, :, 2] == 0).all()
    assert (truth["output"].radius[:, :, 2] == 0).all()
    assert (truth["lse"].value[:, :, 2] == -np.inf).all()
    assert (truth["lse"].radius[:, :, 2] == 0).all()
    assert np.isfinite(truth["lse"].value[:, :, [0, 1, 3, 4, 5]]).all()


@pytest.mark.parametrize(("Sq", "Sk"), [(0, 3), (2, 0), (0, 0)])
def test_no_queries_and_no_keys(Sq, Sk):
    shapes = {"q": (2, 2, Sq, 3), "k": (2, 1, Sk, 3), "v": (2, 1, Sk, 5)}
    truth = enclose(Problem(**{name: np.ones(shape) for name, shape in shapes.items()}))

    assert truth["output"].value.shape == (2, 2, Sq, 5)
    assert truth["lse"].value.shape == (2, 2, Sq)
    assert not truth["output"].value.any()
    assert (truth["lse"].value == -np.inf).all()


def test_exact_results_have_radius_zero():
    v = np.array([3.0, 5.0, 2.0**-1074]).reshape(1, 1, 3, 1)
    mask = np.array([[True, True, False], [False, False, True]])[None, None]
    truth = enclose(Problem(q=np.ones((1, 1, 2, 1)), k=np.ones((1, 1, 3, 1)), v=v, mask=mask, dtypes="float64"))

    assert truth["output"].value.ravel().tolist() == [4.0, 2.0**-1074]
    assert truth["output"].radius.ravel().tolist() == [0.0, 0.0]
    assert truth["lse"].value[0, 0, 1] == 1.0
    assert truth["lse"].radius[0, 0, 1] == 0.0


def test_a_truth_below_the_smallest_float_is_never_called_zero_exactly():
    v = np.array([2.0**-1074, 0.0, 0.0]).reshape(1, 1, 3, 1)
    truth = enclose(Problem(q=np.zeros((1, 1, 1, 1)), k=np.zeros((1, 1, 3, 1)), v=v, dtypes="float64"))

    assert truth["output"].value.item() == 0.0
    assert truth["output"].radius.item() == 2.0**-1074


def test_a_log_sum_exp_beyond_float64_is_infinite_and_says_so():
    huge = np.full((1, 1, 1, 1), 1e300)
    truth = enclose(Problem(q=huge, k=huge, v=huge, dtypes="float64"))

    assert (truth["lse"].value.item(), truth["lse"].radius.item()) == (np.inf, np.inf)
    assert (truth["output"].value.item(), truth["output"].radius.item()) == (1e300, 0.0)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_sees_a_nonfinite_number_is_undefined_and_the_others_are_untouched(name, poison):
    clean = normal_problem(causal=True)
    array = getattr(clean, name).copy()
    array[:, :, 3, 0] = poison
    truth, expected = enclose(clean.replace(**{name: array})), enclose(clean)

    undefined = np.zeros(6, bool)
    undefined[3 if name == "q" else slice(3, None)] = True
    assert np.isnan(truth["output"].value[:, :, undefined]).all()
    assert all((truth[quantity].radius[:, :, undefined] == np.inf).all() for quantity in ("output", "lse"))
    np.testing.assert_array_equal(truth["output"].value[:, :, ~undefined], expected["output"].value[:, :, ~undefined])
    np.testing.assert_array_equal(truth["output"].radius[:, :, ~undefined], expected["output"].radius[:, :, ~undefined])


def test_precision_is_restored():
    from flint import ctx

    before = ctx.prec
    enclose(normal_problem(), 300)

    assert ctx.prec == before


def test_at_least_twenty_times_faster_than_the_definition():
    rng = np.random.default_rng(0)
    problem = Problem(**{name: bits.nearest(rng.standard_normal((1, 1, 128, 64)), "float32") for name in "qkv"})

    slow = cpu_seconds(lambda: (definition.attention(problem, 113), definition.log_sum_exp(problem, 113)))
    fast = min(cpu_seconds(lambda: enclose(problem, 113)) for _ in range(5))

    assert slow / fast >= 20


def cpu_seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start
