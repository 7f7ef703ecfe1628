"""dP in a format of its own: what it costs, and what is left of the gradient of a maximum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_spec.bounds.backward.reference_gradients import reach


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
