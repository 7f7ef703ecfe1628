"""Scores that a contract computes without error, and those that it does not."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.forward.product_bounds import dot_product_error, exact_scores
from attn_spec.bounds.forward.score_bounds import score_error, shift_error
from attn_spec.bounds.intermediates import intermediates
from attn_spec.emulation.sound import PRECISE
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head


def test_scores_of_integers_have_no_error():
    problem = Recipe(regime="integers", key_length=40, query_length=8, head_dim=64, value_dim=4, scale=0.125).problem()
    x = intermediates(problem)

    assert exact_scores(x, PRECISE.at("float32")).all()
    assert (score_error(x, PRECISE.at("float32")) == 0).all()


def test_scores_have_an_error_when_the_sum_or_the_scale_rounds():
    integers = Recipe(regime="integers", key_length=8, query_length=8, head_dim=64, value_dim=4, scale=0.3).problem()
    normal = Recipe(key_length=8, query_length=8, head_dim=64, value_dim=4, scale=0.125).problem()
    float32 = PRECISE.at("float32")

    assert (dot_product_error(intermediates(integers), float32) == 0).all()
    assert (score_error(intermediates(integers), float32)[intermediates(integers).dot != 0] > 0).all()
    assert (dot_product_error(intermediates(normal), float32) > 0).all()


def test_a_sum_just_beyond_the_precision_is_not_exact():
    # 2^8 + 1 needs nine bits, one more than bfloat16 has; 2^7 + 1 fits.
    def exact(large):
        x = intermediates(one_head([[1.0, 1.0]], [[large, 1.0]], [[1.0]], scale=1.0))
        return exact_scores(x, replace(PRECISE, score_accumulation="bfloat16").at("float64")).item()

    assert exact(2.0**7)
    assert not exact(2.0**8 + 1)


def test_a_product_below_its_own_format_is_not_exact():
    def exact(exponent):
        x = intermediates(one_head([[2.0**-4]], [[2.0 ** (exponent + 4)]], [[1.0]], scale=1.0))
        return exact_scores(x, replace(PRECISE, products="float16").at("float64")).item()

    assert exact(-14)
    assert not exact(-15)


@pytest.mark.parametrize(("scale", "fits"), [(0.5, -13), (1.0, -14), (2.0, -14)])
def test_a_product_below_the_accumulator_is_not_exact(scale, fits):
    """A scale below 1 may be applied before; a larger one may not, so it helps no product."""

    def exact(exponent):
        x = intermediates(one_head([[2.0**-4]], [[2.0 ** (exponent + 4)]], [[1.0]], scale=scale))
        return exact_scores(x, replace(PRECISE, score_accumulation="float16").at("float64")).item()

    assert exact(fits)
    assert not exact(fits - 1)


def test_a_log_sum_exp_near_0_that_is_moved_underflows_where_it_is_stored():
    """One visible key of score 0, and a slope of 2^-20: the error is hardly more than half the least float16."""
    problem = one_head([[0.0]], [[0.0], [0.0]], [[1.0], [1.0]], mask=np.array([[[[True, False]]]]))
    problem = problem.replace(alibi_slopes=np.full((1, 1, 1, 1), 2.0**-20))
    contract = replace(PRECISE, alibi="positions", lse="float16").at("float16")

    error = shift_error(intermediates(problem), contract, np.zeros(1)).item()

    assert 2.0**-25 < error < 1.1 * 2.0**-25
