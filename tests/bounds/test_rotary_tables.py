"""Bounds on tables of cosines and sines: every way to make the angles is inside, and each source of error is seen."""

from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention.arithmetic import REALS
from attn_spec.attention.rotations import Rotation
from attn_spec.bounds.running_error import RunningErrors
from attn_spec.contract.presets import FP32
from attn_spec.numbers import bits

U = 2.0**-24
#: Elementary functions that are exact but for a rounding, which is counted apart.
EXACT = replace(FP32.at("float32"), exp_error=0.0, sine_error=0.0)


def single(x):
    return bits.nearest(x, "float32")


def powers(turn):
    """Compute the power rounded, its reciprocal, and the product with the position."""
    power = single(np.power(turn.base, -turn.exponents))
    return single(turn.positions[:, None] * single(1 / power))


def exponentials(turn):
    """Compute exp(e log base), with exponent, logarithm and product rounded."""
    of_log = single(single(turn.exponents) * single(np.log(turn.base)))
    return single(turn.positions[:, None] * single(np.exp(of_log)))


def exact(turn):
    return turn.positions[:, None] * np.power(turn.base, turn.exponents)


def truth(turn):
    """Return cos and sin of every angle, in float64 [S, pairs]."""
    with mp.workprec(120):
        return [table[:, : turn.turned // 2].astype(float) for table in REALS.tables(turn)]


def ratio(turn, contract, angles, dtype="float32", off=0.0):
    """Return the largest error over its bound, of tables that are ``off`` before they are rounded to ``dtype``."""
    of_bound = [table.error[:, : turn.turned // 2] for table in RunningErrors(contract).tables(turn)]
    found = [bits.nearest(single(of(angles) + off), dtype) for of in (np.cos, np.sin)]
    return max(
        (abs(made - true) / allowed).max() for made, true, allowed in zip(found, truth(turn), of_bound, strict=True)
    )


def test_an_angle_that_may_overflow_has_no_bound():
    """In float16 2**15 and 1.9 * 2**15 are numbers, and so are their angles; 2**20 is none."""
    turn = turn_of([0, 2**15, 62000, 2**20], 4, 2.0)
    cos, _ = RunningErrors(replace(EXACT, score_accumulation="float16")).tables(turn)

    assert np.isfinite(cos.error[:2]).all()
    assert np.isinf(cos.error[3, [0, 2]]).all()
    assert np.isfinite(RunningErrors(EXACT).tables(turn)[0].error).all()


@pytest.mark.parametrize(
    ("base", "stage", "known"),
    [
        (1e39, "float32", False),
        (2e38, "float32", False),  # its reciprocal is no normal number
        (8e37, "float32", True),
        (2e-38, "float32", True),
        (1e-39, "float32", False),
        (1e-300, "float32", False),
        (1e39, "float64", True),
        (1e-300, "float64", True),
        (1e-310, "float64", False),
        (10000.0, "float16", True),
        (60000.0, "float16", False),
        (1e6, "float16", False),
    ],
)
@pytest.mark.parametrize("turned", [2, 64])
def test_a_base_that_the_format_does_not_hold_has_no_bound(base, stage, known, turned):
    """inf^x is inf and 0^x is 0 for all x > 0, and exp(0 log inf) is NaN; position 0 is no exception."""
    turn = turn_of(range(3), turned, base)
    for table in RunningErrors(replace(EXACT, score_accumulation=stage)).tables(turn):
        assert (np.isfinite(table.error) == known).all()


def test_the_first_power_is_exact_where_exp_of_0_is():
    turn, inexact = turn_of([4096], 4), replace(EXACT, exp_error=8.0)
    exactly, about = (
        RunningErrors(replace(inexact, exp_of_zero_is_one=one)).tables(turn)[0].error[0] for one in (True, False)
    )

    assert exactly[0] < 3 * U < 8 * 4096 * U < about[0]
    assert exactly[1] == about[1] > 8 * 40 * U


def turn_of(positions, turned, base=10000.0):
    return Rotation(np.asarray(positions), base, turned, turned, "half")


#: Positions, columns and the rest; the least share of the bound that is attained; without its own source, too much.
CASES = {
    "powers that are rounded": (turn_of(range(1, 400), 128), EXACT, powers, {}, 0.3),
    "one pair, whose power is 1": (turn_of(range(1, 400), 2), EXACT, exact, {}, 0.4),
    "exponents that are rounded": (turn_of(range(2000, 60000, 977), 60, 1e6), EXACT, exponentials, {}, 0.1),
    "sines of small angles, rounded": (turn_of([1], 256), EXACT, exact, {}, 0.4),
    "sines with errors": (turn_of([0, 1], 8), replace(EXACT, sine_error=8.0), exact, {"off": 8 * U}, 0.5),
    "narrow tables": (
        turn_of(range(8), 8),
        replace(EXACT, rotary_tables="bfloat16"),
        exact,
        {"dtype": "bfloat16"},
        0.4,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tables_are_within_their_bound_and_near_it(case):
    turn, contract, angles, how, least = CASES[case]
    assert least < ratio(turn, contract, angles(turn), **how) <= 1


def test_given_tables_have_no_error_and_are_the_numbers_of_their_dtype():
    turn = replace(turn_of([0, 3, 1000], 8, 10_000.0), table_dtype="float16")

    for table, true in zip(RunningErrors(FP32.at("float32")).tables(turn), truth(turn), strict=True):
        assert not table.error.any()
        np.testing.assert_array_equal(table.value[:, : turn.turned // 2], true)
        np.testing.assert_array_equal(bits.nearest(true, "float16"), true)
