"""Linear attention: numbers by hand, both orders of its sums, its gradients, what it may be, what its bound knows."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.attention.scores import FEATURE_MAPS
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.bounds.linear.linear_bounds import linear_bound
from attn_spec.bounds.theorems import evaluation_error, gradient_evaluation_error
from attn_spec.contract.presets import FP32, FUSED
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 7, "head_dim": 3, "value_dim": 2}


def drawn(**fields):
    return Recipe(**{"dtypes": "float64", **SHAPE, "feature_map": "elu_plus_one", "seed": 2} | fields).problem()


def test_by_hand():
    """Features 1 + 1 of the query, and 1 + 2 and e^-1 of the keys: weights 6 and 2/e."""
    problem = one_head([[1.0]], [[2.0], [-1.0]], [[3.0], [5.0]], feature_map="elu_plus_one")
    first, second = 6.0, 2 / math.e

    N = first + second
    assert float(definition.attention(problem, 80).item()) == pytest.approx((3 * first + 5 * second) / N)
    assert float(definition.log_sum_exp(problem, 80).item()) == pytest.approx(math.log(N))

    found = gradients(problem, np.ones((1, 1, 1, 1)), 80)
    o = (3 * first + 5 * second) / N
    dw = [(3 - o) / N, (5 - o) / N]
    assert [float(x) for x in found["dv"].ravel()] == pytest.approx([first / N, second / N])
    assert float(found["dq"].item()) == pytest.approx(dw[0] * 3 + dw[1] / math.e)
    # The slope of the map at -1 is e^-1.
    assert [float(x) for x in found["dk"].ravel()] == pytest.approx([dw[0] * 2, dw[1] * 2 / math.e])


def test_epsilon_is_added_to_the_sum():
    problem = one_head([[1.0]], [[2.0], [1.0]], [[3.0], [6.0]], feature_map="relu", feature_epsilon=1.0)

    assert float(definition.attention(problem, 80).item()) == (2 * 3 + 6) / (2 + 1 + 1)
    nothing = problem.replace(q=np.array([[[[-1.0]]]]))
    assert float(definition.attention(nothing, 80).item()) == 0.0
    assert mp.isnan(definition.attention(nothing.replace(feature_epsilon=None), 80).item())


def test_both_orders_of_the_sums_agree_in_exact_arithmetic():
    """(phi(q) phi(k)^T) v, masked, and phi(q) times the state of the keys so far, over fractions."""
    rng = np.random.default_rng(3)
    q, k, v = ([[Fraction(int(n), 4) for n in row] for row in rng.integers(1, 9, (6, 3))] for _ in range(3))
    state, total = [[Fraction(0)] * 3 for _ in range(3)], [Fraction(0)] * 3
    by_states = []
    for a, b, value in zip(q, k, v, strict=True):
        state = [[S + x * y for S, y in zip(row, value, strict=True)] for row, x in zip(state, b, strict=True)]
        total = [z + x for z, x in zip(total, b, strict=True)]
        N = sum(x * z for x, z in zip(a, total, strict=True))
        by_states.append([sum(x * row[c] for x, row in zip(a, state, strict=True)) / N for c in range(3)])
    by_scores = []
    for i, a in enumerate(q):
        w = [sum(x * y for x, y in zip(a, b, strict=True)) for b in k[: i + 1]]
        by_scores.append([sum(x * row[c] for x, row in zip(w, v, strict=False)) / sum(w) for c in range(3)])
    assert by_states == by_scores

    arrays = ([[float(n) for n in row] for row in x] for x in (q, k, v))
    problem = one_head(*arrays, feature_map="relu", causal=True)
    found = definition.attention(problem, 90)
    assert np.allclose(found[0, 0].astype(float), np.array(by_scores, dtype=float), rtol=1e-15)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("fields", [{}, {"causal": True, "causal_alignment": "bottom_right", "feature_epsilon": 1e-6}])
def test_enclosures_and_float64_hold_the_definition(feature_map, fields):
    if feature_map == "relu":
        fields = fields | {"feature_epsilon": 0.5}
    problem = drawn(feature_map=feature_map, **fields)
    x, truth, balls = intermediates(problem), definition.attention(problem, 120), enclose(problem)["output"]
    error = evaluation_error(x)

    assert np.all(abs(truth - balls.value - balls.low).astype(float) <= balls.radius)
    assert error.in_domain.all()
    assert np.all(abs(truth - x.O).astype(float) <= error.allowed["output"])
    L = definition.log_sum_exp(problem, 120)
    assert np.all(abs(L - x.L[..., 0]).astype(float) <= error.allowed["lse"])

    rng = np.random.default_rng(5)
    dO, dL = rng.standard_normal(x.O.shape), rng.standard_normal(x.O.shape[:3])
    g = gradient_intermediates(x, dO, dL)
    exact, around = gradients(problem, dO, 120, dL), enclose_gradients(problem, dO, lse_cotangent=dL)
    allowed = gradient_evaluation_error(x, g)
    assert allowed.rows.all()
    assert allowed.keys.all()
    for name, value in exact.items():
        assert np.all(abs(value - around[name].value - around[name].low).astype(float) <= around[name].radius), name
        assert np.all(abs(value - g.gradients[name]).astype(float) <= allowed.allowed[name]), name
        assert allowed.allowed[name].max() < 1e-12


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_gradients_are_derivatives(feature_map, name):
    problem = drawn(feature_map=feature_map, feature_epsilon=0.5, batch=1, causal=True)
    dO = np.random.default_rng(7).standard_normal((1, 4, 5, 2))
    at, step = (0, 1, 2, 1), 2.0**-20

    def loss(change):
        tensor = getattr(problem, name).copy()
        tensor[at] += change
        with mp.workprec(200):
            return mp.fsum((definition.attention(problem.replace(**{name: tensor}), 200) * dO).ravel())

    with mp.workprec(200):
        slope = (loss(step) - loss(-step)) / (2 * step)
    assert float(slope) == pytest.approx(float(gradients(problem, dO, 100)[f"d{name}"][at]), rel=1e-9)


def test_a_sum_that_rounding_may_make_0_is_no_promise():
    """max(q, 0) is 0 in every column: numerator and sum are 0, and no bound holds."""
    problem = one_head([[-1.0], [1.0]], [[2.0], [1.0]], [[3.0], [6.0]], feature_map="relu")
    bound = linear_bound(intermediates(problem), FP32.at("float32"))
    assert bound.in_domain.tolist() == [[[False, True]]]

    # exp(-30) is far below a rounding of 1, which elu(x) + 1 makes of it.
    far = one_head([[-30.0]], [[-30.0]], [[3.0]], feature_map="elu_plus_one")
    assert not linear_bound(intermediates(far), FP32.at("float32")).in_domain.any()
    assert linear_bound(intermediates(far.replace(feature_map="exp")), FP32.at("float32")).in_domain.all()


@pytest.mark.parametrize(("size", "inside"), [(2.0**7, True), (2.0**9, False)])
def test_products_that_overflow_their_own_format_are_outside_the_domain(size, inside):
    """Scores are products, and so are the terms of gradients, of a value and a cotangent that each fit."""
    contract = replace(FP32, products="float16").at("float32")
    scores = one_head([[size]], [[size]], [[1.0]], dtypes="float32", feature_map="relu")
    values = one_head(
        [[512.0]], [[1 / 512]], [[size]], dtypes="float32", feature_map="relu"
    )  # dP k is as small as dP/512

    assert linear_bound(intermediates(scores), contract).in_domain.all() == inside
    assert linear_bound(intermediates(values), contract).in_domain.all()
    found = gradient_analysis_of(values, np.full((1, 1, 1, 1), size)).bound(contract)
    assert found.domain_of("dq").all() == inside


def test_a_key_that_nobody_sees_may_be_anything():
    k, seen = [[1.0], [np.nan], [2.0]], np.array([True, False, True])[None, None, None]
    problem = one_head([[1.0]], k, [[1.0], [5.0], [2.0]], feature_map="exp", mask=seen)
    truth, bound = analysis_of(problem).truth_and_bound(FUSED.at("float32"))

    assert bound.in_domain.all()
    weights = np.exp([1.0, 2.0])
    assert truth["output"].value.item() == pytest.approx((weights @ [1.0, 2.0]) / weights.sum())
    assert not analysis_of(problem.replace(mask=None)).truth_and_bound(FUSED.at("float32"))[1].in_domain.any()


def test_states_that_wait_in_a_narrow_format_are_allowed_more_where_that_is_declared():
    x = intermediates(drawn(dtypes="bfloat16", key_length=64))
    narrow = replace(FP32, partial_outputs="bfloat16", kv_tile=16)
    wide, more = (linear_bound(x, c.at("bfloat16")).allowed["output"] for c in (FP32, narrow))

    assert np.all(more > wide)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"softcap": 30.0}, "feature_map cannot be combined with softcap: its weights are no softmax"),
        ({"scale": 0.5}, "feature_map cannot be combined with scale"),
        ({"bias": np.zeros((1, 1, 1, 1))}, "feature_map cannot be combined with bias"),
        ({"dropout_keep": np.ones((1, 1, 1, 1), dtype=bool)}, "feature_map cannot be combined with dropout_keep"),
        ({"rotary": "half"}, "rotary and feature_map exclude each other, since each selects the score"),
        ({"feature_map": "elu"}, f"feature_map must be {', '.join(map(repr, FEATURE_MAPS))} or None, not 'elu'"),
        ({"feature_epsilon": -1.0}, "feature_epsilon must be a number of 0 or more or None, not -1.0"),
        (
            {"feature_map": None, "feature_epsilon": 1.0},
            "feature_epsilon is a parameter of feature_map; give feature_map too",
        ),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ProblemError, match=message):
        drawn().replace(**fields)
