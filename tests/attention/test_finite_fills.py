"""A finite fill for -inf: when the two differ, in each dtype, by numbers."""

import math

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from tests.one_head import one_head

#: Fills as programs write them, and what the dtype makes of them.
STORED = {
    ("float16", -1e4): -1e4,
    ("float16", -1e9): -math.inf,
    ("bfloat16", -1e4): -9984.0,
    ("bfloat16", -1e9): -998244352.0,
    ("float32", -1e4): -1e4,
    ("float32", -1e9): -1e9,
    ("float64", -1e9): -1e9,
}
#: Distance below the maximum within which a key's weight is seen: log of half the smallest number.
REACH = {"float16": 17.33, "bfloat16": 92.88, "float32": 103.97, "float64": 745.13}


@pytest.mark.parametrize(("dtype", "fill"), STORED)
def test_what_a_dtype_holds_of_a_fill(dtype, fill):
    assert bits.nearest(np.array(fill), dtype) == STORED[dtype, fill]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("score", "absorbed"), [(-0.49, True), (-0.51, False)])
def test_the_lowest_number_of_a_dtype_takes_no_score_of_half_its_last_place(dtype, score, absorbed):
    """finfo.min as a fill: what is lower by that becomes -inf, and a row of such fills NaN after all."""
    lowest = np.array(-FORMATS[dtype].largest)
    total = bits.nearest(lowest + score * bits.spacing(lowest, dtype), dtype)

    assert (total == lowest) == absorbed
    assert np.isneginf(total) != absorbed


@pytest.mark.parametrize("dtype", REACH)
@pytest.mark.parametrize(("beyond", "seen"), [(-0.1, True), (0.1, False)])
def test_a_filled_key_is_seen_where_its_score_comes_within_reach(dtype, beyond, seen):
    """The filled key's value is 1, the other's 0, so the output is its weight; with -inf the output is 0."""
    gap = REACH[dtype] + beyond
    problem = one_head([[1.0]], [[0.0], [1e4 - gap]], [[0.0], [1.0]], scale=1.0, bias=np.array([[[[0.0, -1e4]]]]))
    with mp.workprec(80):
        smallest = mp.mpf(2) ** (FORMATS[dtype].emin - FORMATS[dtype].precision + 1)
        assert (definition.attention(problem, 80).item() > smallest / 2) == seen


def test_a_row_of_fills_is_softmax_in_truth_and_the_mean_in_float32():
    """One number added to all scores changes nothing; -1e9 leaves nothing of scores below 32 in float32."""
    s = np.array([3.0, -1.0, 0.5])
    problem = one_head([[1.0]], s[:, None], [[1.0], [0.0], [0.0]], scale=1.0, bias=np.full((1, 1, 1, 3), -1e9))
    exact = float(definition.attention(problem, 80).item())
    stored = s.astype(np.float32) + np.float32(-1e9)

    assert exact == pytest.approx(math.exp(3) / np.exp(s).sum())
    assert exact > 0.9
    assert (stored == np.float32(-1e9)).all()


def test_a_row_of_smaller_fills_keeps_ten_bits_behind_the_point():
    """-1e4 in float32: scores are multiples of 2^-10, and weights off by as much."""
    s = np.linspace(-1, 1, 101).astype(np.float32)
    stored = (s + np.float32(-1e4)) - np.float32(-1e4)

    assert (stored % 2.0**-10 == 0).all()
    assert 2.0**-12 < abs(stored - s).max() <= 2.0**-11
