"""The model of random roundings: its variances are those that emulated kernels show, and its domain is kept."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.intermediates import intermediates
from attn_spec.chance import error_statistics, rounding_model
from attn_spec.contract.presets import FUSED
from attn_spec.contract.readings import readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.oracle import float64_truth
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_heads": 4, "kv_heads": 2, "query_length": 32, "key_length": 128, "head_dim": 64, "value_dim": 64}


def model(x, contract):
    """Return roundings, systematic errors and variance proxies in the first reading."""
    c = readings(contract)[0]
    r, e = rounding_model.roundings(x, c), rounding_model.systematic(x, c)
    return r, e, rounding_model.variance(x, r, rounding_model.log_weight_variance(x, r, e))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_partial_sums_of_a_random_order_have_the_mean_squares_of_the_model(n):
    rng = np.random.default_rng(0)
    terms = rng.normal(size=n)
    orders = np.array([rng.permutation(terms) for _ in range(40_000)])
    measured = (np.cumsum(orders, axis=1) ** 2).sum(axis=1).mean()

    whole, parts = rounding_model.partial_sums(np.float64(n), math.inf)

    chain = whole * terms.sum() ** 2 + (parts - 1 / 4) * (terms**2).sum()
    assert measured == pytest.approx(chain, rel=0.02)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_no_tree_of_additions_has_larger_mean_squares_than_the_model(n):
    """The worst tree by dynamic programming over the sizes of subtrees, each of k of n terms."""

    def worst(weight):
        best = [0.0, 0.0]
        for k in range(2, n + 1):
            best.append(weight(k) + max(best[a] + best[k - a] for a in range(1, k)))
        return best[n] / (n * (n - 1))

    whole, parts = rounding_model.partial_sums(np.float64(n), math.inf)

    assert worst(lambda k: k * (k - 1)) <= whole * (1 + 1e-12)
    assert worst(lambda k: k * (n - k)) <= parts * (1 + 1e-12)


def test_a_weight_sees_as_many_rises_of_the_maximum_as_the_model_says():
    rng = np.random.default_rng(0)
    orders = np.array([rng.permutation(256) for _ in range(4000)])
    rises = np.diff(np.maximum.accumulate(orders, axis=1), prepend=-1, axis=1) > 0
    factors = 1 + rises[:, ::-1].cumsum(axis=1)[:, ::-1] - rises

    c = FUSED.at("float32")
    e = rounding_model.systematic(intermediates(Recipe(**SHAPE).problem()), c)

    assert 0.95 * e.factors < factors.mean() <= e.factors
    assert 0.8 * e.squared_factors < (factors**2).mean() <= e.squared_factors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", ["score_accumulation", "output_accumulation", "row_sum", "probabilities", "softmax"])
def test_each_stage_has_its_share_of_the_variance(stage, dtype):
    """With one stage made much wider than its u, errors follow the variance: RMS 0.3 to 0.7 of it, never near 1."""
    contract = replace(PRECISE, **{stage: "float16"}, row_sum_of="uncast")
    recipe = Recipe(**{**SHAPE, "key_length": 64, "value_dim": 16, "head_dim": 16}, dtypes=dtype)
    subject = Subject(emulate("wide", contract, Order(sums="random"), dtypes=(dtype,)), dtype)
    x = intermediates(recipe.problem())
    error = subject(recipe.problem())["output"] - x.O

    z = error / np.sqrt(model(x, subject.contract)[2])

    assert 0.2 < np.sqrt((z**2).mean()) < 0.75
    assert np.abs(z).max() < 5


def test_the_variance_of_a_sum_is_that_of_independent_rows_when_nothing_is_shared():
    """One output element alone: its weighted sum and its own variance are the same, without exponentials."""
    recipe = Recipe(**SHAPE)
    x, c = intermediates(recipe.problem()), PRECISE.at("float32")
    r, e, _ = model(x, c)
    alone = rounding_model.variance(
        x, r, rounding_model.log_weight_variance(x, r, replace(e, exponential=0.0, constants=0.0))
    )
    for at in [(0, 0, 0, 0), (0, 3, 17, 40)]:
        a = np.zeros(x.O.shape)
        a[at] = 3.0
        assert rounding_model.variance_of_sum(x, r, a) == pytest.approx(9 * alone[at], rel=1e-9)


def test_operands_that_many_rows_share_count_with_their_whole_coefficient():
    """Rounding k and v once for all rows: a common error is seen in the sum by finite differences."""
    recipe = Recipe(**{**SHAPE, "key_length": 33, "value_dim": 3, "head_dim": 5})
    problem = recipe.problem()
    x, c = intermediates(problem), replace(PRECISE, multiplicands="tf32").at("float32")
    r = rounding_model.roundings(x, c)
    nothing = np.zeros((*x.s.shape[:-1], 1))
    shared = rounding_model.Roundings(0 * x.s, r.operand, 0.0, r.value, nothing, nothing, nothing, 0.0)
    a = np.random.default_rng(0).normal(size=x.O.shape)

    def derivative(name):
        entries, step = getattr(problem, name), 1e-6
        found = np.zeros(entries.shape)
        for at in np.ndindex(*entries.shape):
            moved = entries.copy()
            moved[at] *= 1 + step
            found[at] = (a * (intermediates(problem.replace(**{name: moved}, dtypes="float64")).O - x.O)).sum() / step
        return found

    total = r.operand * sum((derivative(n) ** 2).sum() for n in "qk") + r.value * (derivative("v") ** 2).sum()
    assert rounding_model.variance_of_sum(x, shared, a) == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"key_length": 31}, False),
        ({"bias": "normal"}, False),
        ({"softcap": 30.0}, False),
        ({"regime": "huge"}, False),
        ({"scale": 40.0}, False),
    ],
)
def test_statistics_are_valid_in_their_domain_only(changes, valid):
    x = intermediates(Recipe(**{**SHAPE, **changes}).problem())

    assert error_statistics.valid_rows(x, FUSED.at("float32")).all() == valid
    assert error_statistics.valid_rows(x, FUSED.at("float32")).any() == valid


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"rounding": "toward_zero"}, "have a sign"),
        ({"multiplicands": "bfloat16", "entry_rounding": "toward_zero"}, "have a sign"),
        ({"entry_rounding": "toward_zero"}, ""),  # cuts nothing: operands are as wide as the softmax
        ({"lse_merges": 1}, "log-sum-exps"),
        ({"normalize": "by_lse"}, "log-sum-exps"),
        ({"multiplicands": "bfloat16", "multiplicand_pieces": 2}, "does not know"),
        ({"inner_accumulation": "float32"}, "does not know"),
        ({"products": "float32"}, "does not know"),
        ({"normalize": "every_tile"}, "does not know"),
        ({"normalize": "before_product"}, "does not know"),  # two passes
        ({"normalize": "before_product", "kv_tile": None}, ""),
        ({"reference": "zero", "reference_range": 10.0}, "does not know"),
        ({"row_sum": "bfloat16"}, "too narrow"),
        ({"alternatives": (replace(FUSED, normalize="before_product"),)}, "does not know"),
    ],
)
def test_the_model_names_what_it_does_not_describe(changes, reason):
    """Each clause decides alone in one of these contracts; of readings one is enough."""
    found = error_statistics.outside_model(replace(FUSED, **changes).at("float32"))

    assert (reason in found) if reason else (found == "")


def test_causal_rows_count_from_the_query_that_sees_enough_keys():
    x = intermediates(Recipe(**{**SHAPE, "query_length": 128}, causal=True).problem())
    rows = error_statistics.valid_rows(x, FUSED.at("float32"))

    assert not rows[..., : error_statistics.FEWEST_KEYS - 1].any()
    assert rows[..., error_statistics.FEWEST_KEYS - 1 :].all()


def test_a_random_error_as_large_as_the_model_is_not_suspect_and_twice_that_is():
    """Errors drawn from the variance proxies themselves: the largest that the model allows."""
    contract, rng = PRECISE.at("float32"), np.random.default_rng(0)
    x = intermediates(Recipe(**SHAPE).problem())
    rows = error_statistics.valid_rows(x, contract)
    for _ in range(50):
        error = error_statistics.deviation(x, contract) * rng.normal(size=x.O.shape)
        assert error_statistics.size(x, contract, error, rows).ratio < 0.8
        assert error_statistics.bias(x, contract, error, rows).ratio < 1
        assert error_statistics.size(x, contract, 2 * error, rows).ratio > 1


def test_an_answer_that_is_no_number_is_suspect():
    contract = PRECISE.at("float32")
    x = intermediates(Recipe(**SHAPE).problem())
    rows = error_statistics.valid_rows(x, contract)
    error = np.full(x.O.shape, np.nan)

    assert error_statistics.size(x, contract, error, rows).ratio == math.inf
    assert error_statistics.bias(x, contract, error, rows).ratio == math.inf


def test_a_float64_truth_is_sharp_enough_for_float32_errors():
    x = intermediates(Recipe(**SHAPE).problem())
    deviation = error_statistics.deviation(x, PRECISE.at("float32"))

    assert (float64_truth(x)["output"].radius < 2.0**-12 * deviation).all()
