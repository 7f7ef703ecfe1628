"""The definition against numbers that a reader can verify by hand, one option at a time, and against torch."""

import math

import numpy as np
import pytest
import torch
from mpmath import mp

from attn_spec.attention.definition import attention, log_sum_exp, scores, weights, working_precision
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

BITS = 160
#: Far above the last bit of 160, far below anything a wrong formula would give.
CLOSE = mp.mpf(2) ** -150


@pytest.fixture(autouse=True)
def precision():
    """Write expected values with mpmath, at 160 bits."""
    with mp.workprec(BITS):
        yield


def assert_close(actual, *expected):
    assert actual.size == len(expected)
    for got, wanted in zip(actual.ravel(), map(mp.mpf, expected), strict=True):
        assert got == wanted or abs(got - wanted) <= CLOSE * max(1, abs(wanted)) < mp.inf


def test_scores_0_and_log_3_weigh_a_quarter_and_three_quarters():
    problem = one_head([[1]], [[0], [math.log(3)]], [[8], [16]])

    # log(3) is no float, so that the weights are those of the float nearest to it.
    assert weights(problem, BITS).ravel().astype(float) == pytest.approx([0.25, 0.75], rel=2.0**-52)
    assert float(attention(problem, BITS).item()) == pytest.approx(14, rel=2.0**-52)
    assert float(log_sum_exp(problem, BITS).item()) == pytest.approx(math.log(4), rel=2.0**-52)


def test_equal_scores_give_the_mean_of_v_and_the_logarithm_of_their_number():
    problem = one_head([[1]], [[5], [5], [5]], [[1, 10], [2, 20], [6, 60]])

    assert_close(weights(problem, BITS), *[mp.mpf(1) / 3] * 3)
    assert_close(attention(problem, BITS), 3, 30)
    assert_close(log_sum_exp(problem, BITS), 5 + mp.log(3))


def test_the_default_scale_is_the_real_number_one_over_the_square_root_of_d():
    problem = one_head([[1, 1]], [[1, 1]], [[7]])

    root_of_two = "1.41421356237309504880168872420969807856967187537694807317667973799"
    assert_close(scores(problem, BITS), root_of_two)
    assert_close(log_sum_exp(problem, BITS), root_of_two)


def test_scale_multiplies_the_scores():
    assert_close(scores(one_head([[3, 1]], [[2, 5]], [[0]], scale=0.25), BITS), "2.75")


def test_softcap_is_applied_after_the_scale_and_before_the_bias():
    bias = np.full((1, 1, 1, 1), 10.0)
    problem = one_head([[4]], [[3]], [[0]], scale=0.5, softcap=2.0, bias=bias)

    assert_close(scores(problem, BITS), 2 * mp.tanh(3) + 10)


def test_bias_is_added_and_minus_infinity_hides_a_key():
    bias = np.array([[0.0, 1.0, -np.inf]])[None, None]
    problem = one_head([[1]], [[2], [1], [500]], [[4], [8], [1e6]], bias=bias)

    assert_close(scores(problem, BITS), 2, 2, -mp.inf)
    assert_close(attention(problem, BITS), 6)


def test_mask_true_means_attend():
    mask = np.array([[True, False], [False, False]])[None, None]
    problem = one_head([[1], [1]], [[1], [2]], [[3], [5]], mask=mask)

    assert_close(weights(problem, BITS), 1, 0, 0, 0)
    assert_close(attention(problem, BITS), 3, 0)
    assert_close(log_sum_exp(problem, BITS), 1, -mp.inf)


@pytest.mark.parametrize(
    ("alignment", "means"), [("top_left", (1, 1.5)), ("bottom_right", (2, 2.5))], ids=["top_left", "bottom_right"]
)
def test_causal_averages_the_keys_up_to_the_diagonal(alignment, means):
    problem = one_head([[0], [0]], [[1]] * 4, [[1], [2], [3], [4]], causal=True, causal_alignment=alignment)

    assert_close(attention(problem, BITS), *means)


def test_window_is_inclusive_at_both_ends():
    problem = one_head([[0]] * 4, [[1]] * 4, [[1], [2], [4], [8]], window=(1, 0))

    assert_close(attention(problem, BITS), 1, 1.5, 3, 6)


def test_query_heads_read_their_group_of_kv_heads():
    k = np.zeros((1, 2, 1, 1))
    v = np.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    problem = Problem(q=np.zeros((1, 4, 1, 1)), k=k, v=v)

    assert_close(attention(problem, BITS), 10, 10, 20, 20)


def test_batches_and_heads_keep_to_themselves():
    v = np.arange(6.0).reshape(2, 3, 1, 1)
    problem = Problem(q=np.zeros((2, 3, 1, 1)), k=np.zeros((2, 3, 1, 1)), v=v)

    assert_close(attention(problem, BITS), *range(6))


def test_no_keys_give_zero_and_minus_infinity_and_no_queries_give_nothing():
    no_keys = Problem(q=np.ones((1, 1, 2, 3)), k=np.ones((1, 1, 0, 3)), v=np.ones((1, 1, 0, 2)))
    no_queries = Problem(q=np.ones((1, 1, 0, 3)), k=np.ones((1, 1, 4, 3)), v=np.ones((1, 1, 4, 2)))

    assert_close(attention(no_keys, BITS), 0, 0, 0, 0)
    assert_close(log_sum_exp(no_keys, BITS), -mp.inf, -mp.inf)
    assert attention(no_queries, BITS).shape == (1, 1, 0, 2)
    assert log_sum_exp(no_queries, BITS).shape == (1, 1, 0)


def test_scores_far_beyond_float64_are_still_exact():
    problem = one_head([[1e300]], [[1e300], [-1e300]], [[3], [5]])

    with mp.workprec(2000):
        expected = mp.convert(1e300) ** 2
    assert_close(attention(problem, BITS), 3)
    assert_close(log_sum_exp(problem, BITS), expected)


def test_cancellation_in_a_dot_product_costs_no_accuracy():
    problem = one_head([[1e150, 1, -1e150]], [[1e150, 0.5, 1e150]], [[1]], scale=1.0)

    assert_close(scores(problem, BITS), "0.5")


def test_hidden_nan_and_infinity_do_no_harm():
    problem = one_head([[1], [1]], [[1], [np.nan]], [[3], [np.inf]], mask=np.array([[[[True, False]]]]))

    assert_close(attention(problem, BITS), 3, 3)


def test_more_precision_agrees_with_less():
    rng = np.random.default_rng(5)
    problem = Problem(**{name: rng.integers(-9, 9, (1, 1, 3, 4)).astype(float) for name in "qkv"})

    difference = attention(problem, 60) - attention(problem, 140)

    assert 0 < max(abs(x) for x in difference.ravel()) < 9 * mp.mpf(2) ** -60


def test_a_sum_of_more_terms_is_given_more_bits():
    few, many = (Recipe(head_dim=8, value_dim=1, key_length=n).problem() for n in (8, 1024))

    assert working_precision(few, 100) >= 100 + 6
    assert working_precision(many, 100) >= 100 + 13


def test_the_callers_precision_is_left_alone():
    before = mp.prec
    attention(one_head([[1]], [[1]], [[1]]), 999)

    assert mp.prec == before


@pytest.mark.parametrize("option", ["plain", "scale", "causal", "mask", "bias", "gqa"])
def test_agrees_with_torch_in_float64(option):
    rng = np.random.default_rng(11)
    kv_heads = 2 if option == "gqa" else 4
    shapes = {"q": (2, 4, 6, 5), "k": (2, kv_heads, 6, 5), "v": (2, kv_heads, 6, 3)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    extra = {
        "scale": {"scale": 0.3},
        "causal": {"causal": True},
        "mask": {"mask": np.tri(6, 6, 2, dtype=bool)[None, None]},
        "bias": {"bias": rng.standard_normal((2, 4, 6, 6))},
    }.get(option, {})
    renamed = {"causal": "is_causal", "mask": "attn_mask", "bias": "attn_mask"}
    keywords = {
        renamed.get(name, name): torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in extra.items()
    }
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        tensors = (torch.from_numpy(x) for x in arrays.values())
        expected = torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=option == "gqa", **keywords)

    truth = attention(Problem(**arrays, dtypes="float64", **extra), 80).astype(np.float64)

    # A convex combination of |v| < 4 with six keys, five products: a few dozen roundings of 2**-53 * 4.
    np.testing.assert_allclose(expected.numpy(), truth, rtol=0, atol=64 * 4 * 2.0**-53)
