"""Double-double sums, products, quotients lie within their radii, sharply, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_spec.numbers.double_double import (
    DoubleDouble,
    as_floats,
    concatenated,
    fast_two_sum,
    number,
    two_product,
    two_sum,
)

FLOATS = st.floats(-(2.0**300), 2.0**300).filter(lambda x: x == 0 or abs(x) > 2.0**-300)
ANY = st.floats(-(2.0**1000), 2.0**1000)


def exact(*parts):
    return sum((Fraction(float(x)) for x in parts), Fraction(0))


@st.composite
def double_doubles(draw):
    """Draw a double-double of radius 0, and the number that it is."""
    hi, low = np.array(draw(FLOATS)), np.array(draw(st.floats(-1, 1)) * 2.0**-53)
    hi, low = two_sum(hi, low * (hi != 0))  # else what is left is below the numbers that FLOATS has
    return DoubleDouble(hi, np.where(np.abs(low) <= 2.0**-53 * np.abs(hi), low, 0.0), np.zeros(()))


def of(x):
    return exact(x.hi, x.lo)


@given(x=ANY, y=ANY)
def test_two_sum_is_exact(x, y):
    assert exact(*two_sum(np.array(x), np.array(y))) == exact(x, y)


@given(x=ANY, y=ANY)
def test_fast_two_sum_is_exact_for_ordered_terms(x, y):
    x, y = sorted((x, y), key=abs, reverse=True)
    assert exact(*fast_two_sum(np.array(x), np.array(y))) == exact(x, y)


@given(x=FLOATS, y=FLOATS)
def test_two_product_is_exact(x, y):
    assert exact(*two_product(np.array(x), np.array(y))) == exact(x) * exact(y)


OPERATIONS = {
    "sum": (lambda x, y: x + y, lambda x, y: abs(x) + abs(y)),
    "difference": (lambda x, y: x - y, lambda x, y: abs(x) + abs(y)),
    "product": (lambda x, y: x * y, lambda x, y: abs(x * y)),
    "quotient": (lambda x, y: x / y, lambda x, y: abs(x / y)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(x=double_doubles(), y=double_doubles())
def test_the_truth_is_within_a_sharp_radius(name, x, y):
    operation, size = OPERATIONS[name]
    if name == "quotient" and y.hi == 0:
        with np.errstate(all="ignore"):
            assert np.isinf((x / y).radius)
        return
    found = operation(x, y)

    assert abs(of(found) - operation(of(x), of(y))) <= Fraction(float(found.radius))
    assert float(found.radius) <= 2.0**-99 * float(size(of(x), of(y))) + 2.0**-600
    assert abs(found.lo) <= 2.0**-53 * abs(found.hi)


def test_the_radius_of_a_quotient_that_underflows_holds_it():
    x, y = (
        DoubleDouble(np.array(z), np.zeros(()), np.zeros(())) for z in (6.342414445401329e-308, 7.55578894002939e22)
    )
    found = x / y

    assert of(found) == 0
    assert 0 < of(x) / of(y) <= Fraction(float(found.radius))


@pytest.mark.parametrize("name", OPERATIONS)
@given(x=FLOATS, y=FLOATS, off=st.tuples(*2 * [st.sampled_from([-1.0, 1.0])]), part=st.floats(0, 0.5))
def test_radii_of_operands_are_propagated(name, x, y, off, part):
    operation = OPERATIONS[name][0]
    known = [DoubleDouble(np.array(z), np.zeros(()), np.array(part * abs(z))) for z in (x, y)]
    if name == "quotient" and y == 0:
        return
    found = operation(*known)
    true = [
        exact(z) + Fraction(sign) * Fraction(float(w.radius)) for z, w, sign in zip((x, y), known, off, strict=True)
    ]

    radius = as_floats(found)[2]
    assert abs(of(found) - operation(*true)) <= Fraction(float(radius))


@given(values=st.lists(FLOATS, max_size=9))
def test_totals_are_sums(values):
    found = number(np.array([values, values])).total(1)

    assert found.shape == (2, 1)
    assert abs(exact(found.hi[0, 0], found.lo[0, 0]) - exact(*values)) <= Fraction(
        float(found.radius[0, 0] if values else 0)
    )


def test_what_overflows_has_an_infinite_radius_and_no_value():
    with np.errstate(all="ignore"):
        value, low, radius = as_floats(number(np.array([1.0, 1e200])) * number(np.array([3.0, 1e200])))

    assert value.tolist() == [3.0, 0.0]
    assert low.tolist() == [0.0, 0.0]
    assert 0 < radius[0] < 1e-29
    assert radius[1] == np.inf


def test_parts_and_places():
    x = concatenated(number(np.array([1.0, 2.0])), number(np.array([3.0]))).widened(0.5)

    assert x[1:].hi.tolist() == [2.0, 3.0]
    assert x.where(np.array([True, False, True])).radius.tolist() == [0.5, 0.0, 0.5]
    assert (-x).hi.tolist() == [-1.0, -2.0, -3.0]
