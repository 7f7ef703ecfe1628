"""dP in a format of its own: what it costs, and what is left of the gradient of a maximum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_spec.bounds.backward.reference_gradients import reach
from attn_spec.bounds.backward.weight_gradient_bounds import division_underflow
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FUSED
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe


def counted(low, high):
    """Count, one by one, the keys directly before each that are not above it."""
    found = []
    for j in range(len(low)):
        i = j - 1
        while i >= 0 and low[i] <= high[j]:
            i -= 1
        found.append(j - 1 - i)
    return found


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), max_size=20))
def test_the_reach_of_a_key_ends_at_one_that_is_above_it(keys):
    low = np.array([-np.inf if x == -3 else x for x, _ in keys])
    high = np.array([x + further for x, further in keys], dtype=float)

    assert reach(low[None], high[None])[0].tolist() == counted(low, high)


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65])
def test_the_largest_key_reaches_all(n):
    x = np.arange(n, dtype=float)[None]

    assert reach(x, x)[0, -1] == n - 1
    assert not reach(-x, -x)[0, 1:].any()


def underflow(keys, **fields):
    """Return the largest underflow of dO / l, times l, of a row of equal scores."""
    problem = Recipe(query_length=1, key_length=keys, regime="near_ties", dtypes="float16").problem()
    contract = replace(FUSED, weight_gradients="float16", **fields).at("float16")
    return float(np.max(division_underflow(intermediates(problem), contract)))


def test_a_row_sum_of_few_bits_makes_what_underflows_as_much_larger_as_it_may_grow():
    """Each of these weights is a little more than half a step of the sum, and rounds it up by a whole one."""
    total, exact = 1.0, 1.0
    for _ in range(512):
        weight = bits.nearest(0.51 * bits.spacing(np.array(total), "bfloat16"), "bfloat16").item()
        total, exact = bits.nearest(np.array(total + weight), "bfloat16").item(), exact + weight
    assert total / exact > 1.8

    assert underflow(513, row_sum="bfloat16") >= total / exact * underflow(513, row_sum="float64")


def test_exponentials_that_are_off_make_what_underflows_larger():
    """An error of 2^20 unit roundoffs of float32 is a factor of e^(1/16)."""
    assert underflow(4, exp_error=2.0**20) >= np.exp(1 / 16) * underflow(4, exp_error=0.0)
