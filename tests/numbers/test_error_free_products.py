"""Matrix products lie within their radii, about 2^-100 of the largest terms, against exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_spec.numbers import error_free_products
from attn_spec.numbers.error_free_products import bits, bounds, cut, left, left_of_transposed, parts, product, right

KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "one sign, all bits set": lambda rng, shape: np.full(shape, 2 - 2.0**-52),
    "wide": lambda rng, shape: rng.standard_normal(shape) * np.exp2(rng.uniform(-80, 80, shape)),
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 2.0**-1060,
    "cancelling": lambda rng, shape: np.sign(rng.standard_normal(shape)) * (1 + 2.0**-52),
}


def matrix(rng, kind, shape, low):
    hi = KINDS[kind](rng, shape)
    return hi, rng.uniform(-1, 1, shape) * 2.0**-54 * np.abs(hi) if low else None


def exact(x):
    hi, lo = x
    whole = np.vectorize(lambda a: Fraction(float(a)), otypes=[object])
    return whole(hi) if lo is None else whole(hi) + whole(lo)


@pytest.mark.parametrize("by_row", [False, True])
@given(
    kinds=st.tuples(*2 * [st.sampled_from(sorted(KINDS))]),
    lows=st.tuples(st.booleans(), st.booleans()),
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 16, 33]), st.integers(1, 3)),
    longest=st.sampled_from([512, 8]),
    seed=st.integers(0, 2**32),
)
def test_the_truth_is_within_the_radius(*, by_row, kinds, lows, shape, longest, seed):
    rng, (M, K, N) = np.random.default_rng(seed), shape
    x, y = matrix(rng, kinds[0], (M, K), lows[0]), matrix(rng, kinds[1], (K, N), lows[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(error_free_products, "LONGEST", longest)
        found = product(left(*x), right(*y), by_row=by_row)
        transposed = [None if a is None else np.ascontiguousarray(a.T) for a in x]
        same = product(left_of_transposed(*transposed), right(*y), by_row=by_row)

    truth = exact(x) @ exact(y)
    for one in (found, same):
        errors = np.abs(exact((one.hi, one.lo)) - truth)
        assert (errors <= np.vectorize(Fraction)(np.broadcast_to(one.radius, errors.shape).astype(float))).all()
    largest = np.abs(x[0]).max(1, keepdims=True) * np.abs(y[0]).max(0, keepdims=True)
    largest = np.maximum(largest.max(1, keepdims=True) if by_row else largest, 2.0**-590)
    assert (found.radius <= 2.0**-88 * K * largest).all() or "tiny" in kinds
    if by_row and len(parts(K)) == 1 and longest == 512:
        assert found.radius.shape == (M, 1)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    low=st.booleans(),
    terms=st.sampled_from([1, 64, 512]),
    seed=st.integers(0, 2**32),
)
def test_slices_are_of_few_bits_and_add_up(kind, low, terms, seed):
    hi, lo = matrix(np.random.default_rng(seed), kind, (1, 20), low)
    bound, b = bounds(hi, 1), bits(terms)
    slices = list(cut(hi, lo, bound, b))

    total = sum((exact((x, None)) for x in slices), start=Fraction(0))
    rest = Fraction(2) ** -(3 * (b + 1)) * Fraction(bound.item())
    assert (np.abs(total - exact((hi, lo))) <= (Fraction(2) ** -53 * rest if low else 0)).all()
    for i, x in enumerate(slices[:3]):
        unit = Fraction(bound.item()) / 2 ** (b + i * (b + 1))
        integers = exact((x, None)) / unit
        assert all(c.denominator == 1 for c in integers.ravel())
        assert (np.abs(integers) <= 2**b * (1 + Fraction(1, 128))).all()
    assert (np.abs(exact((slices[3], None))) <= rest * (1 + Fraction(1, 128))).all()


@pytest.mark.parametrize("terms", [1, 2, 63, 64, 65, 511, 512])
def test_sums_of_products_of_slices_fit_a_float64(terms):
    assert 3 * terms * (2 ** bits(terms) * (1 + Fraction(1, 128))) ** 2 <= 2**53
    assert bits(terms) == 22 or 4 * 3.05 * terms * 4 ** bits(terms) > 2**53


def test_float64_adds_the_largest_slices_exactly_in_any_order():
    K, b = 512, bits(512)
    x = np.full((1, K), (2.0**b) * (1 + 1 / 128))
    total = 3 * K * int(x[0, 0]) ** 2

    assert float(total) == total
    assert 3 * (x @ x.T).item() == total


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1024, 5000])
def test_parts_cover_an_axis_and_are_short(length):
    found = parts(length)

    assert [i for part in found for i in range(length)[part]] == list(range(length))
    assert max(part.stop - part.start for part in found) <= 512
