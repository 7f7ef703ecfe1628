"""Scores other than q.k: numbers that a reader can verify by hand, and every arithmetic against every other."""

import math

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.attention.scores import FEATURE_MAPS, SCORES
from attn_spec.bounds.backward.gradient_bounds import gradient_evaluation_error
from attn_spec.bounds.forward.bounds import evaluation_error
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import SCORE
from attn_spec.problem.quantities import DIFFERENTIABLE
from attn_spec.problem.traits import replaces_score
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

#: Options that choose a score, each with others beside it.
CHOSEN = {
    "bilinear": {"score_weight": "normal@1HDD"},
    "bilinear under a softcap": {"score_weight": "rank_one@BHDD", "softcap": 3.0, "causal": True},
    "cosine": {"score_gamma": "ten@1H11"},
    "cosine with a mask": {"score_gamma": "normal@BH11", "softcap": 5.0, "mask": "random@BHQK", "scale": 0.5},
    "additive": {
        "score_vector": "normal@1H1A",
        "score_key_weight": "normal@1HAD",
        "score_query_weight": "normal@BHAD",
        "score_bias": "normal@111A",
        "score_width": 3,
    },
    "additive without a bias": {
        "score_vector": "large@BH1A",
        "score_key_weight": "saturating@11AD",
        "score_query_weight": "identity@11AD",
        "score_width": 6,
        "softcap": 4.0,
        "causal": True,
        "scale": 0.5,
    },
}
BITS = 200


def weight(*rows):
    return np.array(rows, dtype=float)[None, None]


def gamma(value):
    return np.full((1, 1, 1, 1), float(value))


def drawn(options, regime="normal", dtype="float64"):
    return Recipe(
        batch=2, query_heads=4, kv_heads=2, query_length=3, key_length=5, head_dim=4, value_dim=2,
        seed=3, dtypes=dtype, regime=regime, **options,
    ).problem()  # fmt: skip


def cotangents(problem):
    rng = np.random.default_rng(0)
    rows = problem.score_shape[:3]
    return rng.standard_normal((*rows, problem.value_dim)), rng.standard_normal(rows)


def scores(problem):
    return definition.scores(problem, BITS).astype(float).ravel().tolist()


# One query, by hand.


def test_a_bilinear_score():
    """q = (1, 2), k = (3, 4), W has one entry, of row 0 and column 1: q^T W k = 1 * 5 * 4 = 20."""
    assert scores(one_head([[1, 2]], [[3, 4]], [[0]], scale=1.0, score_weight=weight((0, 5), (0, 0)))) == [20.0]


def test_a_bilinear_score_is_divided_by_the_root_of_d():
    problem = one_head([[1, 2, 0, 0]], [[3, 4, 0, 0]], [[0]], score_weight=weight(*np.eye(4)))
    assert scores(problem) == [11 / 2]


def test_a_cosine():
    """q = (3, 4), k = (4, 3), gamma = 2: 2 (12 + 12) / (5 * 5) = 48/25, whatever the lengths, and no scale."""
    for size in (1.0, 2.0**-30, 1e3):
        problem = one_head([[3 * size, 4 * size]], [[4, 3]], [[0]], score_gamma=gamma(2))
        assert scores(problem) == [48 / 25]
    assert scores(problem.replace(scale=0.25)) == [12 / 25]


def test_the_cosine_of_a_zero_vector_is_zero():
    assert scores(one_head([[0, 0]], [[4, 3]], [[0]], score_gamma=gamma(2))) == [0.0]


def additive(w, W1, W2, b=None):
    """Return the parameters of an additive score."""
    bias = {} if b is None else {"score_bias": weight(b)}
    return {"score_vector": weight(w), "score_key_weight": weight(*W1), "score_query_weight": weight(*W2), **bias}


def test_an_additive_score():
    """q = 1, k = 2, W1 = (1, 0), W2 = (1, 4): W1 k + W2 q = (3, 4); b = (-3, 0) leaves 10 tanh(4) of w = (5, 10)."""
    parameters = additive((5, 10), ([1], [0]), ([1], [4]), (-3, 0))
    assert scores(one_head([[1]], [[2]], [[0]], **parameters)) == [pytest.approx(10 * math.tanh(4), rel=1e-15)]
    (without,) = scores(one_head([[1]], [[2]], [[0]], **{**parameters, "score_bias": None}))
    assert without == pytest.approx(5 * math.tanh(3) + 10 * math.tanh(4), rel=1e-15)


def test_gradients_of_an_additive_score():
    """q = 0 and two keys of 0: slopes of 1, so dS = (-2, 2) as for equal scores; dk = w W1 dS, dq = w W2 (-2 + 2)."""
    problem = one_head([[0]], [[0], [0]], [[0], [1]], **additive((3,), ([5],), ([7],)))
    found = gradients(problem, np.full((1, 1, 1, 1), 8.0), 80)
    assert found["dk"].astype(float).ravel().tolist() == [-30, 30]
    assert found["dq"].astype(float).ravel().tolist() == [0]
    assert [float(found[f"dscore_{name}"].item()) for name in ("vector", "key_weight", "query_weight")] == [0, 0, 0]


def test_gradients_of_the_parameters_of_an_additive_score():
    """q = 2, keys 1 and 3, W1 = W2 = 0: h = tanh(b), w = 1, scores are equal and dS = (-2, 2), slopes 1 - h^2.

    dW1 = (1 - h^2)(-2 * 1 + 2 * 3) = 4 (1 - h^2); dW2, db and dw sum -2 and 2 times the same: 0.
    """
    problem = one_head([[2]], [[1], [3]], [[0], [1]], **additive((1,), ([0],), ([0],), (1,)))
    found = gradients(problem, np.full((1, 1, 1, 1), 8.0), 80)
    assert float(found["dscore_key_weight"].item()) == pytest.approx(4 * (1 - math.tanh(1) ** 2), rel=1e-15)
    assert [float(found[f"dscore_{name}"].item()) for name in ("query_weight", "bias", "vector")] == [0, 0, 0]


def test_gradients_of_a_bilinear_score():
    """With W = 2 in test_gradients.test_equal_scores, dS = (-2, 2), dK = W dS q = (-12, 12), dQ = W dS.k = 0."""
    problem = one_head([[3]], [[5], [5]], [[0], [1]], score_weight=weight((2,)))
    found = gradients(problem, np.full((1, 1, 1, 1), 8.0), 80)
    assert found["dk"].astype(float).ravel().tolist() == [-12, 12]
    assert found["dq"].astype(float).ravel().tolist() == [0]
    assert found["dscore_weight"].astype(float).ravel().tolist() == [0]  # 3 (5 (-2) + 5 * 2)


def test_gradients_of_a_cosine():
    """q = (2, 0), keys (0, 1) and (1, 0), gamma = log 3: scores 0 and log 3, P = (1, 3)/4.

    v = (0, 1), dO = 16: dS = P (dP - delta) = (1/4 (0 - 12), 3/4 (16 - 12)) = (-3, 3). The gradient of u = q/|q| is
    gamma (-3 (0, 1) + 3 (1, 0)) = 3 gamma (1, -1), of which (1, 0) is along u: dq = 3 gamma (0, -1) / |q|.
    """
    problem = one_head([[2, 0]], [[0, 1], [1, 0]], [[0], [1]], score_gamma=gamma(math.log(3)))
    found = gradients(problem, np.full((1, 1, 1, 1), 16.0), 80)
    assert float(found["dscore_gamma"].item()) == 3  # -3 cos 90 + 3 cos 0
    dq = found["dq"].astype(float).ravel()
    assert dq == pytest.approx([0.0, -1.5 * math.log(3)], rel=1e-15)


def test_a_weight_of_one_is_no_weight():
    problem = drawn({})
    weighted = problem.replace(score_weight=np.eye(problem.head_dim)[None, None])
    assert scores(weighted) == scores(problem)


# Every arithmetic.


@pytest.mark.parametrize("options", CHOSEN.values(), ids=CHOSEN)
def test_balls_contain_the_definition(options):
    problem = drawn(options)
    truth, (dO, dL) = enclose(problem), cotangents(problem)
    found = enclose_gradients(problem, dO, 113, dL)
    by_definition = gradients(problem, dO, BITS, dL)

    with mp.workprec(BITS):
        pairs = [
            (truth["output"], definition.attention(problem, BITS)),
            (truth["lse"], definition.log_sum_exp(problem, BITS)),
        ]
        assert found.keys() == by_definition.keys()
        pairs += [(found[name], by_definition[name]) for name in found]
        for ball, exact in pairs:
            assert ball.radius.max() < 1e-25
            for value, low, radius, true in zip(
                ball.value.ravel(), ball.low.ravel(), ball.radius.ravel(), exact.ravel(), strict=True
            ):
                if mp.isfinite(true):
                    assert abs(mp.mpf(value) + mp.mpf(low) - true) <= mp.mpf(radius)
                else:
                    assert value == true


INPUTS = [
    (chosen, name) for chosen, options in CHOSEN.items() for name in ("q", "k", *options) if name in DIFFERENTIABLE
]


def test_every_parameter_of_a_score_has_a_gradient():
    parameters = {name for name, row in OPTIONS.items() if replaces_score(row) and row.tensor is np.float64}
    assert parameters <= set(DIFFERENTIABLE)


@pytest.mark.parametrize(("chosen", "name"), INPUTS)
def test_gradients_are_quotients_of_differences(chosen, name):
    problem, step = drawn(CHOSEN[chosen]), 2.0**-30
    dO, dL = cotangents(problem)
    at = tuple(n // 2 for n in getattr(problem, name).shape)

    def loss(sign):
        tensor = getattr(problem, name).copy()
        tensor[at] += sign * step
        moved = problem.replace(**{name: tensor})
        pairs = (definition.attention(moved, BITS), dO), (definition.log_sum_exp(moved, BITS), dL)
        found = [x * y for outputs, given in pairs for x, y in zip(outputs.ravel(), given.ravel(), strict=True)]
        return mp.fsum(x for x in found if mp.isfinite(x))

    with mp.workprec(BITS):
        quotient = (loss(1) - loss(-1)) / (2 * step)
        true = gradients(problem, dO, BITS, dL)[f"d{name}"][at]
        assert abs(quotient - true) < 1e-15 * (1 + abs(true))


@pytest.mark.parametrize("regime", ["normal", "large", "activations", "cancellation", "tiny", "overflow_float16"])
@pytest.mark.parametrize("options", CHOSEN.values(), ids=CHOSEN)
def test_the_float64_evaluation_is_within_its_bound(options, regime):
    problem = drawn(options, regime, "float32")
    dO, dL = cotangents(problem)
    x = intermediates(problem)
    g = gradient_intermediates(x, dO, dL)
    bound, backward = evaluation_error(x), gradient_evaluation_error(x, g)
    truth, true_gradients = enclose(problem), enclose_gradients(problem, dO, 113, dL)

    told = not (regime == "tiny" and "score_gamma" in options)  # a kernel may clamp norms as short as those
    assert (bound.in_domain == (told & ~problem.empty_rows)).all()
    assert (np.abs(x.O - truth["output"].value) <= bound.allowed["output"])[bound.in_domain].all()
    assert g.gradients.keys() == true_gradients.keys() == backward.allowed.keys()
    for name in g.gradients:
        assert backward.domain_of(name).all() == told
        error = np.abs(g.gradients[name] - true_gradients[name].value)
        assert not told or (error <= backward.allowed[name]).all()


# What is refused, and what a row must have.


def test_one_problem_has_one_score():
    problem = drawn(CHOSEN["bilinear"])
    with pytest.raises(ProblemError, match="score_weight and score_gamma exclude each other, since each selects"):
        problem.replace(score_gamma=gamma(1))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 3, 4, 4), (4, 4), (1, 1, 4, 5)])
def test_a_weight_has_the_head_dimension_twice(shape):
    with pytest.raises(ProblemError, match=r"score_weight must be a float64 array broadcastable to \[B, Hq, D, D\] ="):
        drawn({}).replace(score_weight=np.zeros(shape))


def test_a_score_has_all_its_parameters_and_no_others():
    problem = drawn(CHOSEN["additive"])
    with pytest.raises(ProblemError, match="score_vector needs score_key_weight as well"):
        problem.replace(score_key_weight=None)
    with pytest.raises(ProblemError, match="score_bias is a parameter of score_vector; give score_vector too"):
        drawn({}).replace(score_bias=np.zeros((1, 1, 1, 3)))
    with pytest.raises(ProblemError, match=r"score_bias must be .* \[B, Hq, 1, A\] = \(2, 4, 1, 3\)"):
        problem.replace(score_bias=np.zeros((1, 1, 1, 4)))
    assert problem.replace(score_bias=None).score_width == 3


def test_every_score_has_an_option_and_a_source():
    assert set(SCORES) | {"feature_map"} == {None} | {name for name, row in OPTIONS.items() if row.kind == SCORE}
    assert tuple(FEATURE_MAPS) == OPTIONS["feature_map"].draws
    assert all(row.formula and row.source for row in (*SCORES.values(), *FEATURE_MAPS.values()))


def test_some_heads_of_a_problem_keep_their_weights():
    problem = drawn(CHOSEN["bilinear"])
    taken = problem.take("H", [1])
    assert np.array_equal(taken.score_weight, problem.score_weight[:, 2:])
    assert np.array_equal(problem.take("K", [0]).score_weight, problem.score_weight)
