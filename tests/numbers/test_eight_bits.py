"""Formats of 8 bits against ml_dtypes and torch: every code, every tie, and the float32 neighbours of each tie."""

import ml_dtypes
import numpy as np
import pytest
import torch

from attn_spec.emulation.arithmetic import rounded
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS

EIGHT_BITS = [name for name in FORMATS if name.startswith("float8")]
CODES = np.arange(256, dtype=np.uint8)


def decoded(dtype):
    """Return the numbers of all codes, in the order of the codes."""
    return CODES.view(getattr(ml_dtypes, dtype)).astype(np.float64)


def numbers(dtype):
    """Return every finite number, every tie with its neighbours in float32, and what lies above the largest number."""
    finite = np.unique(decoded(dtype)[np.isfinite(decoded(dtype))])
    last = finite[-1] - finite[-2]
    edges = np.concatenate([[finite[0] - last], finite, [finite[-1] + last]])
    ties = ((edges[:-1] + edges[1:]) / 2).astype(np.float32)
    beyond = np.array([finite[-1] + 1.5 * last, 1e6, 3e38, np.inf, np.nan, 1e-30], dtype=np.float32)
    near = [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)), beyond, -beyond]
    return np.concatenate([finite.astype(np.float32), [np.float32(-0.0)], *near]).astype(np.float32)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_row_agrees_with_every_code(dtype):
    row, codes = FORMATS[dtype], decoded(dtype)
    finite = codes[np.isfinite(codes)]

    assert row.largest == finite.max() == -finite.min()
    assert row.smallest_subnormal == finite[finite > 0].min()
    assert (row.above == "infinity") == np.isinf(codes).any()
    assert row.negative_zero == np.any((codes == 0) & np.signbit(codes))
    assert bits.identical(bits.nearest(codes, dtype), codes).all()
    assert bits.is_representable(codes, dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_torch_decodes_every_code_to_the_same_number(dtype):
    by_torch = torch.from_numpy(CODES).view(getattr(torch, dtype)).to(torch.float64).numpy()

    assert bits.identical(by_torch, decoded(dtype)).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_nearest_agrees_with_ml_dtypes_on_every_number_tie_and_neighbour(dtype):
    x = numbers(dtype)
    with np.errstate(all="ignore"):
        cast = x.astype(getattr(ml_dtypes, dtype)).astype(np.float64)

    assert len(x) > 900
    assert bits.identical(bits.nearest(x, dtype), cast).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_nearest_agrees_with_torch_but_for_its_saturation(dtype):
    """Torch saturates float8_e4m3fn at its largest number and says NaN or infinity in the three others."""
    x = numbers(dtype)
    cast = torch.from_numpy(x).to(getattr(torch, dtype)).to(torch.float64).numpy()
    expected = bits.nearest(x, dtype)
    if dtype == "float8_e4m3fn":
        expected = np.where(np.isnan(expected) & ~np.isnan(x), np.copysign(FORMATS[dtype].largest, x), expected)

    assert bits.identical(cast, expected).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_float64_beside_a_tie_is_rounded_once(dtype):
    finite = np.unique(decoded(dtype)[np.isfinite(decoded(dtype))])
    ties = (finite[:-1] + finite[1:]) / 2

    assert (bits.nearest(np.nextafter(ties, np.inf), dtype) == finite[1:]).all()
    assert (bits.nearest(np.nextafter(ties, -np.inf), dtype) == finite[:-1]).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_what_a_format_lacks_is_not_representable_in_it(dtype):
    row = FORMATS[dtype]

    assert bits.is_representable(np.array([np.inf]), dtype) == (row.above == "infinity")
    assert bits.is_representable(np.array([-0.0]), dtype) == row.negative_zero
    assert not bits.is_representable(np.array([1 + row.unit_roundoff]), dtype)
    assert not bits.is_representable(np.array([2 * row.largest]), dtype)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_truncation_takes_the_number_towards_zero_and_saturates(dtype):
    x = numbers(dtype).astype(np.float64)
    x = x[np.isfinite(x)]
    y, inside = rounded(x, dtype, "toward_zero"), np.abs(x) < FORMATS[dtype].largest

    assert bits.is_representable(y, dtype)
    assert (np.abs(y) <= np.abs(x)).all()
    assert (np.abs(x - y) < bits.spacing(x, dtype))[inside].all()
    assert (np.abs(y[~inside]) == FORMATS[dtype].largest).all()
