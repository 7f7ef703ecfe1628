"""Enclosed gradients contain the definition at twice their precision, tightly; and would not contain a wrong one."""

import numpy as np
import pytest
from hypothesis import given
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients, score_gradients
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from tests.attention.exact_problems import (
    PRECISIONS,
    TAME,
    backward_problems,
    contract,
    examples,
    magnitudes,
    outside,
)


def assert_contains_the_definition(problem, dO, dL, precision):
    enclosed = enclose_gradients(problem, dO, precision, dL)
    truth, own_error = gradients(problem, dO, 2 * precision, dL), magnitudes(problem, dO, dL)

    assert enclosed.keys() == truth.keys()
    for name, quantity in enclosed.items():
        assert quantity.value.shape == quantity.low.shape == quantity.radius.shape == truth[name].shape
        assert outside(quantity, truth[name], own_error[name] * mp.ldexp(1, -2 * precision)) == [], name


@pytest.mark.parametrize("precision", PRECISIONS)
@given(drawn=backward_problems())
@examples(80)
def test_contains_the_definition_at_twice_the_precision(precision, drawn):
    assert_contains_the_definition(*drawn, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(drawn=backward_problems())
@examples(80)
def test_is_as_sharp_as_the_precision_allows(precision, drawn):
    problem, dO, dL = drawn
    enclosed, size = enclose_gradients(problem, dO, precision, dL), magnitudes(problem, dO, dL)

    # float64 ends at 2**-1074: half of that may remain, is rounded up to one, and nudged up to two.
    for name, quantity in enclosed.items():
        seen = np.isfinite(quantity.value)
        allowed = 2.0 ** (20 - min(precision, 106)) * size[name].astype(float) + 2.0**-1073
        assert (quantity.radius[seen] <= allowed[seen]).all(), name
        assert (abs(size[name][~seen]) > np.finfo(float).max).all()


@given(drawn=backward_problems(kinds=TAME))
@examples(60)
def test_more_precision_never_widens(drawn):
    problem, dO, dL = drawn
    coarse, fine = (enclose_gradients(problem, dO, precision, dL) for precision in (30, 90))

    for name in coarse:
        assert (fine[name].radius <= coarse[name].radius).all(), name


def normal_problem(**options):
    """Make a problem with a head group of two, its dO and its dL."""
    rng = np.random.default_rng(3)
    shapes = {"q": (1, 4, 6, 8), "k": (1, 2, 8, 8), "v": (1, 2, 8, 3), "dO": (1, 4, 6, 3), "dL": (1, 4, 6)}
    q, k, v, dO, dL = (bits.nearest(rng.standard_normal(shape), "float32") for shape in shapes.values())
    return Problem(q=q, k=k, v=v, **options), dO, dL


BIAS = np.linspace(-2, 2, 24).round(2).reshape(1, 1, 3, 8).repeat(2, axis=2)

#: Mistake -> (options of the problem, the options a kernel with that mistake would have taken).
MISTAKES = {
    "the scale is the float, not the real number": ({}, {"scale": 8**-0.5}),
    "the scale is off by one part in 2**50": ({"scale": 0.5}, {"scale": 0.5 + 2.0**-51}),
    "the mask is dropped": ({"causal": True}, {"causal": False}),
    "the window is exclusive": ({"window": (2, 1)}, {"window": (1, 0)}),
    "the cap is dropped": ({"softcap": 4.0}, {"softcap": None}),
    "the bias is dropped": ({"bias": bits.nearest(BIAS, "float32")}, {"bias": np.zeros((1, 1, 6, 8))}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_definition_is_not_contained(mistake):
    options, wrong = MISTAKES[mistake]
    problem, dO, dL = normal_problem(**options)
    enclosed = enclose_gradients(problem, dO, 113, dL)

    assert_contains_the_definition(problem, dO, dL, 113)
    for name, gradient in gradients(problem.replace(**wrong), dO, 226, dL).items():
        assert outside(enclosed[name], gradient) != [], name


def test_wrong_formulas_are_not_contained():
    """Known mistakes of backward kernels, each in the gradients that it reaches."""
    problem, dO, dL = normal_problem(softcap=2.0, bias=bits.nearest(BIAS, "float32"))
    enclosed, right = enclose_gradients(problem, dO, 113, dL), gradients(problem, dO, 226, dL)
    o = definition.attention(problem, 226).astype(float)
    delta, delta_of_stored_output = ((x * dO).sum(axis=-1) for x in (o, bits.nearest(o, "bfloat16")))
    even = (np.arange(4) % 2 == 0)[:, None]
    dA, k = score_gradients(problem, dO, 226, dL), definition.exact(problem.k.repeat(2, axis=1))

    assert outside(enclosed["dq"], right["dq"], mp.ldexp(1, -200)) == []
    # dA depends on dL - delta only, so that an error in delta is one of the opposite sign in dL.
    for wrong_dL in (dL + delta, dL + delta - delta_of_stored_output, 0 * dL):
        wrong = gradients(problem, dO, 226, wrong_dL)
        assert all(outside(enclosed[name], wrong[name]) for name in ("dq", "dk", "dbias"))
    with mp.workprec(226):
        scale = definition.real_scale(problem)
        assert outside(enclosed["dq"], scale * contract("bhij,bhjd->bhid", dA, k)) != [], "no slope of the cap"
        assert outside(enclosed["dq"], right["dq"] / scale) != [], "no scale"
        assert outside(enclosed["dbias"], right["dbias"] / 4) != [], "the mean over heads, not the sum"
    # Gradients are linear in the cotangents: without those of the odd heads, one head of each group is left.
    one_head = gradients(problem, dO * even[..., None], 226, dL * even)
    assert outside(enclosed["dk"], one_head["dk"]) != []
    assert outside(enclosed["dv"], one_head["dv"]) != []


def test_a_weight_near_one_leaves_no_cancellation():
    """Scores 0 and -500: P_0 = 1 - t with t = e^-500 / (1 + e^-500), so that dS = -+ P_0 t, far below 2**-113."""
    shape = (1, 1, 2, 1)
    problem = Problem(
        q=np.ones((1, 1, 1, 1)), k=np.reshape([0.0, -500.0], shape), v=np.reshape([0.0, 1.0], shape), dtypes="float64"
    )
    dk = enclose_gradients(problem, np.ones((1, 1, 1, 1)))["dk"]

    with mp.workprec(300):
        t = mp.exp(-500) / (1 + mp.exp(-500))
        expected = np.array([-t * (1 - t), t * (1 - t)], dtype=object).reshape(shape)
    assert outside(dk, expected, t * mp.ldexp(1, -290)) == []
    assert (dk.radius < 2.0**-100 * abs(dk.value)).all()


def test_a_saturated_softcap_has_its_small_slope():
    """s = 200 under softcap 1: the slope is sech^2(200) = 4 e^-400, which 1 - tanh^2 in 113 bits would lose."""
    shape = (1, 1, 2, 1)
    problem = Problem(
        q=np.full((1, 1, 1, 1), 200.0),
        k=np.reshape([1.0, -1.0], shape),
        v=np.reshape([0.0, 1.0], shape),
        softcap=1.0,
        dtypes="float64",
    )
    dq = enclose_gradients(problem, np.ones((1, 1, 1, 1)))["dq"]

    # P = (t, 1 - t) of scores 1 and -1, dA = (-P_0 P_1, P_0 P_1), dQ = -2 P_0 P_1 slope.
    with mp.workprec(2000):
        t = 1 / (1 + mp.exp(-2 * mp.tanh(200)))
        expected = np.full((1, 1, 1, 1), -2 * t * (1 - t) * (1 - mp.tanh(200) ** 2), dtype=object)
    assert outside(dq, expected, mp.ldexp(1, -1100)) == []
    assert dq.radius.item() < 2.0**-100 * abs(dq.value.item())


def test_hidden_keys_and_empty_rows_are_exactly_zero():
    mask = np.ones((1, 1, 6, 8), bool)
    mask[0, 0, 2], mask[..., 5] = False, False
    problem, dO, dL = normal_problem(mask=mask, bias=np.zeros((1, 1, 6, 8)))
    enclosed = enclose_gradients(problem, dO, 113, dL)

    parts = {"dq": np.s_[:, :, 2], "dk": np.s_[:, :, 5], "dv": np.s_[:, :, 5], "dbias": ~mask}
    for name, hidden in parts.items():
        quantity = enclosed[name]
        assert (quantity.value[hidden] == 0).all()
        assert (quantity.radius[hidden] == 0).all()
        assert np.count_nonzero(quantity.value) == quantity.value.size - quantity.value[hidden].size


def test_a_query_that_sees_one_key_has_gradients_of_exactly_zero_but_for_v():
    """P = 1 whatever the score is."""
    problem, dO, _ = normal_problem(window=(0, 0))
    enclosed = enclose_gradients(problem, dO)

    assert not enclosed["dq"].value.any()
    assert not enclosed["dq"].radius.any()
    assert not enclosed["dk"].value.any()
    assert not enclosed["dk"].radius.any()
    assert enclosed["dv"].value[:, :, :6].all()


@pytest.mark.parametrize(("B", "Sq", "Sk"), [(2, 0, 3), (2, 2, 0), (2, 0, 0), (0, 2, 3)])
def test_no_queries_and_no_keys(B, Sq, Sk):
    shapes = {"q": (B, 2, Sq, 3), "k": (B, 1, Sk, 3), "v": (B, 1, Sk, 5), "bias": (1, 2, 1, 1)}
    problem = Problem(**{name: np.ones(shape) for name, shape in shapes.items()})
    enclosed = enclose_gradients(problem, np.ones((B, 2, Sq, 5)), 113, np.zeros((B, 2, Sq)))

    for name, shape in shapes.items():
        assert enclosed[f"d{name}"].value.shape == shape
        if 0 in (B, Sq, Sk):
            assert not enclosed[f"d{name}"].value.any()
            assert not enclosed[f"d{name}"].radius.any()


def test_a_gradient_beyond_float64_is_infinite_and_says_so():
    problem = Problem(q=np.zeros((1, 1, 1, 1)), k=np.ones((1, 1, 1, 1)), v=np.ones((1, 1, 1, 1)), dtypes="float64")
    huge = np.full((1, 1, 1, 1), 1e308)
    dv = enclose_gradients(
        Problem(q=np.zeros((1, 2, 1, 1)), k=problem.k, v=problem.v, dtypes="float64"), huge.repeat(2, axis=1)
    )["dv"]

    assert enclose_gradients(problem, huge)["dv"].value.item() == 1e308
    assert (dv.value.item(), dv.radius.item()) == (np.inf, np.inf)


@pytest.mark.parametrize("name", ["q", "k", "v", "dO", "dL"])
@pytest.mark.parametrize("poison", [np.nan, -np.inf])
def test_what_a_nonfinite_number_reaches_is_undefined_and_the_rest_untouched(name, poison):
    """Causal, six queries: query 3 sees keys 0 to 3; key 3 is seen by queries 3 to 5, which see keys 0 to 5."""
    problem, dO, dL = normal_problem(causal=True, bias=np.zeros((1, 4, 6, 8)))
    clean = enclose_gradients(problem, dO, 113, dL)
    given_arrays = {"q": problem.q, "k": problem.k, "v": problem.v, "dO": dO, "dL": dL}
    bad = {n: x.copy() for n, x in given_arrays.items()}
    bad[name][(0, 0, 3) if name == "dL" else (0, 0, 3, 0)] = poison
    problem = problem.replace(**{n: bad[n] for n in "qkv"})
    found = enclose_gradients(problem, bad["dO"], 113, bad["dL"])

    by_query = name in ("q", "dO", "dL")
    heads, rows, last = (slice(1), slice(3, 4), 4) if by_query else (slice(2), slice(3, 6), 6)
    undefined = {n: np.zeros(x.value.shape, bool) for n, x in clean.items()}
    undefined["dq"][0, heads, rows] = True
    undefined["dk"][0, 0, :last] = undefined["dv"][0, 0, :last] = True
    undefined["dbias"][0, heads, rows] = np.tri(6, 8, dtype=bool)[rows]
    for n, quantity in found.items():
        assert np.isnan(quantity.value[undefined[n]]).all()
        assert (quantity.radius[undefined[n]] == np.inf).all()
        np.testing.assert_array_equal(quantity.value[~undefined[n]], clean[n].value[~undefined[n]])
        np.testing.assert_array_equal(quantity.radius[~undefined[n]], clean[n].radius[~undefined[n]])


def test_hidden_nonfinite_numbers_do_no_harm():
    mask = np.ones((1, 1, 6, 8), bool)
    mask[0, 0, 2], mask[..., 5] = False, False
    problem, dO, dL = normal_problem(mask=mask)
    clean = enclose_gradients(problem, dO, 113, dL)
    q, k, v, dO, dL = (x.copy() for x in (problem.q, problem.k, problem.v, dO, dL))
    q[:, :, 2], dO[:, :, 2], dL[:, :, 2] = np.nan, np.inf, np.nan
    k[:, :, 5], v[:, :, 5] = np.inf, np.nan
    found = enclose_gradients(problem.replace(q=q, k=k, v=v), dO, 113, dL)

    for name in clean:
        np.testing.assert_array_equal(found[name].value, clean[name].value)
        np.testing.assert_array_equal(found[name].radius, clean[name].radius)


def test_precision_is_restored():
    from flint import ctx

    before = ctx.prec
    problem, dO, _ = normal_problem()
    enclose_gradients(problem, dO, 300)

    assert ctx.prec == before


def test_a_cotangent_of_the_wrong_shape_is_refused():
    problem, dO, _ = normal_problem()

    with pytest.raises(
        ProblemError, match=r"cotangent must be a float64 array \[B, Hq, Sq, Dv\] = \(1, 4, 6, 3\), not"
    ):
        enclose_gradients(problem, dO[..., :2])
