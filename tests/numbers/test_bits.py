"""Rounding and storage against NumPy, torch and ml_dtypes, on random, tied, subnormal and overflowing numbers."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES, FLOATS, FORMATS

NARROW = [dtype for dtype in DTYPES if dtype != "float64"]
REAL = st.floats(allow_nan=False, allow_infinity=False)


def numbers(dtype):
    """Return every neighborhood of ``dtype``: random binades, ties and neighbors, subnormals, the overflow edge."""
    form, rng = FORMATS[dtype], np.random.default_rng(2)
    normal = np.ldexp(rng.uniform(1, 2, 4000), rng.integers(form.emin - form.precision - 3, 129, 4000))
    on_grid = bits.nearest(normal[normal < form.largest], dtype)
    ties = on_grid + bits.spacing(on_grid, dtype) / 2
    edge = form.largest + bits.spacing(np.array(form.largest), dtype) * np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    tiny = form.smallest_subnormal * np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5])
    x = np.concatenate([normal, on_grid, ties, edge, tiny])
    special = np.array([np.inf, np.nan, 2.0**-1074, np.finfo(float).max])
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, 0), special])
    return np.concatenate([x, -x])


@pytest.mark.parametrize("dtype", NARROW)
def test_nearest_agrees_with_a_direct_cast(dtype):
    x = numbers(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype({"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype])
    rounded = bits.nearest(x, dtype)

    if dtype == "bfloat16":  # ml_dtypes rounds to float32 first: compare where that step is exact
        direct = bits.nearest(x, "float32") == x
        assert direct.sum() > 10_000
        cast, rounded = cast[direct], rounded[direct]
    assert bits.identical(rounded, cast.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_nearest_agrees_with_torch_from_float32(dtype):
    with np.errstate(over="ignore"):
        x = numbers(dtype).astype(np.float32).astype(np.float64)
    cast = torch.from_numpy(x).to(torch.float32).to(getattr(torch, dtype)).to(torch.float64).numpy()

    assert bits.identical(bits.nearest(x, dtype), cast).all()


@pytest.mark.parametrize("dtype", [*NARROW, "tf32"])
@given(x=REAL)
def test_nearest_is_idempotent_odd_and_within_half_a_spacing(dtype, x):
    x = np.array(x)
    y = bits.nearest(x, dtype)

    assert bits.identical(bits.nearest(y, dtype), y)
    assert bits.identical(bits.nearest(-x, dtype), -y)
    assert np.isinf(y) or abs(y - x) <= bits.spacing(x, dtype) / 2
    assert np.isinf(y) == (abs(x) >= FORMATS[dtype].largest + bits.spacing(FORMATS[dtype].largest, dtype) / 2)


def test_nearest_in_float64_changes_nothing():
    x = numbers("float32")

    assert bits.identical(bits.nearest(x, "float64"), x).all()


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1 + 2.0**-8, 1.0), (1 + 3 * 2.0**-8, 1 + 2.0**-6), (1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7), (2.0**-134, 0.0)],
    ids=["tie to even, down", "tie to even, up", "just above a tie", "half the smallest subnormal"],
)
def test_nearest_in_bfloat16_by_hand(x, expected):
    assert bits.nearest(np.array(x), "bfloat16").item() == expected


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_spacing_agrees_with_numpy(dtype):
    x = bits.nearest(numbers("float16"), dtype)
    x = x[np.abs(x) < FORMATS[dtype].largest]  # the largest number has no greater neighbor
    away_from_zero = np.spacing(np.abs(x).astype(dtype)).astype(np.float64)

    np.testing.assert_array_equal(bits.spacing(x, dtype), away_from_zero)


@pytest.mark.parametrize("dtype", FLOATS)
def test_spacing_of_zero_is_the_smallest_subnormal_and_of_one_twice_the_unit_roundoff(dtype):
    form = FORMATS[dtype]

    assert bits.spacing(np.array([0.0, 1.0, -1.0]), dtype).tolist() == [
        form.smallest_subnormal,
        2 * form.unit_roundoff,
        2 * form.unit_roundoff,
    ]


def test_is_representable_sees_one_bit_too_many_but_lets_nonfinite_numbers_pass():
    good = np.array([1 + 2.0**-7, np.nan, -np.inf, 2.0**-133])

    assert bits.is_representable(good, "bfloat16")
    assert not bits.is_representable(np.array([1.0, 1 + 2.0**-8]), "bfloat16")
    assert not bits.is_representable(np.array([65536.0]), "float16")
    assert bits.is_representable(np.zeros((2, 0)), "float16")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_is_representable_lets_infinities_and_nan_pass_in_every_native_format(dtype):
    good = np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf])

    assert bits.is_representable(good, dtype)
    assert bits.is_representable(np.append(good, np.pi), dtype) == (dtype == "float64")


@given(x=st.lists(REAL, min_size=1, max_size=5))
def test_lowest_bit_exponent_is_that_of_the_coarsest_grid(x):
    exponent = bits.lowest_bit_exponent(np.array(x), axis=0)

    ratios = [value.as_integer_ratio() for value in x if value]
    expected = min(((n & -n).bit_length() - d.bit_length() for n, d in ratios), default=5000)
    assert exponent == expected


def test_lowest_bit_exponent_along_an_axis():
    x = np.array([[3.0, 0.5], [0.0, 0.0], [8.0, 24.0]])

    assert bits.lowest_bit_exponent(x, axis=1).tolist() == [-1, 5000, 3]
    assert bits.lowest_bit_exponent(np.zeros((2, 0)), axis=1).tolist() == [5000, 5000]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lowest_bit_exponent_of_many_numbers_is_that_of_each_block(axis, monkeypatch):
    x = np.random.default_rng(0).integers(-64, 65, (3, 5, 7)) / 8
    whole = bits.lowest_bit_exponent(x, axis)
    monkeypatch.setattr(bits, "_AT_ONCE", 8)

    assert bits.lowest_bit_exponent(8 * x, axis).tolist() == (whole + 3).tolist()  # no memory holds these by chance


def test_identical_tells_zeros_apart_and_nan_equal():
    a = np.array([0.0, 0.0, np.nan, np.inf, np.inf, 1.0])
    b = np.array([0.0, -0.0, -np.nan, np.inf, -np.inf, np.nan])

    assert bits.identical(a, b).tolist() == [True, False, True, True, False, False]


@given(x=st.lists(st.floats(), max_size=6))
@settings(max_examples=50)
def test_encode_and_decode_keep_every_bit_through_json(x):
    x = np.array(x, dtype=np.float64).reshape(1, -1)
    back = bits.decode(json.loads(json.dumps(bits.encode(x))))

    assert back.shape == x.shape
    assert back.tobytes() == x.tobytes()


def test_encode_and_decode_a_mask_and_a_strided_array():
    mask = np.array([[True, False, True]]).T
    strided = np.arange(12.0).reshape(3, 4)[::2, ::-1]

    np.testing.assert_array_equal(bits.decode(bits.encode(mask)), mask, strict=True)
    np.testing.assert_array_equal(bits.decode(bits.encode(strided)), strided, strict=True)


@pytest.mark.parametrize(
    "damage",
    [{"kind": "object"}, {"shape": [7]}, {"zlib": "eJw"}, {"zlib": "AAAA"}],
    ids=["kind", "shape", "truncated", "not compressed"],
)
def test_a_damaged_document_is_a_value_error(damage):
    with pytest.raises(ValueError, match=r".+"):
        bits.decode({**bits.encode(np.ones((2, 3))), **damage})
