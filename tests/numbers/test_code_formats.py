"""Formats of codes and scales against ml_dtypes: every code, every tie, and the float32 neighbours of each tie."""

import ml_dtypes
import numpy as np
import pytest
import torch

from attn_spec.numbers import bits
from attn_spec.numbers.formats import CODES, EVERY, FORMATS, SCALES, narrowest

FLOATS = [name for name in CODES if name.startswith("float")]
INTEGERS = [name for name in CODES if name.startswith("int")]


def decoded(name):
    """Return the numbers of all codes in order; of integers without the least, which no symmetric quantiser has."""
    if name in INTEGERS:
        return np.arange(-EVERY[name].largest, EVERY[name].largest + 1)
    bits_of_code = ml_dtypes.finfo(name).bits
    found = np.arange(2**bits_of_code, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


def ties_and_neighbours(numbers):
    ties = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    up, down = (np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1))
    return np.concatenate([ties, up, down])


@pytest.mark.parametrize("name", EVERY)
def test_a_format_has_one_use_and_is_found_by_its_name(name):
    assert EVERY[name].name == name
    assert [name in rows for rows in (FORMATS, CODES, SCALES)].count(True) == 1


@pytest.mark.parametrize("name", CODES)
def test_a_row_has_every_number_of_its_format_and_no_other(name):
    row, numbers = EVERY[name], decoded(name)

    assert row.largest == numbers[-1] == -numbers[0]
    assert row.smallest_subnormal == numbers[numbers > 0][0]
    assert (bits.nearest(numbers, name) == numbers).all()
    assert np.isin(bits.nearest(np.linspace(-40, 40, 4001), name), numbers).all()
    assert set(bits.nearest(np.linspace(-130, 130, 40001), name)) == set(numbers)


@pytest.mark.parametrize("name", FLOATS)
def test_nearest_agrees_with_ml_dtypes_on_every_number_tie_and_neighbour(name):
    numbers = decoded(name)
    beyond = np.array([numbers[-1] * 1.1, 1e6, np.inf, 1e-30, -0.0], dtype=np.float32)
    x = np.concatenate([numbers.astype(np.float32), ties_and_neighbours(numbers), beyond, -beyond])

    assert bits.identical(bits.nearest(x, name), x.astype(getattr(ml_dtypes, name)).astype(np.float64)).all()


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_rounded_to_even_and_saturate(name):
    largest = EVERY[name].largest
    numbers = decoded(name)
    x = np.concatenate([numbers, ties_and_neighbours(numbers)])
    info = ml_dtypes.iinfo(name) if name == "int4" else np.iinfo(name)

    assert (bits.nearest(x, name) == np.rint(x)).all()
    assert bits.nearest(np.array([largest + 0.5, 1e9, -np.inf, -largest - 1]), name).tolist() == [
        largest,
        largest,
        -largest,
        -largest,
    ]
    assert (info.max, info.min) == (largest, -largest - 1)


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_powers_of_2_as_ml_dtypes_and_torch_have_them(name):
    numbers = decoded(name)
    ties = (numbers[:-1] * 1.5).astype(np.float32)
    up, down = (np.nextafter(ties, np.float32(sign * np.inf)) for sign in (1, -1))
    beyond = np.array([2.0**127 * 1.4999, 2.0**127 * 1.5, np.inf, np.nan, 2.0**-128, 2.0**-149], dtype=np.float32)
    x = np.concatenate([numbers.astype(np.float32), ties, up, down, beyond])
    with np.errstate(all="ignore"):
        cast = x.astype(getattr(ml_dtypes, name)).astype(np.float64)
    by_torch = torch.from_numpy(x).to(getattr(torch, name)).double().numpy()

    assert numbers.tolist() == [2.0**e for e in range(-127, 128)]
    assert bits.identical(cast, by_torch).all()
    # Both round the float32 below the tie of the two smallest numbers up, though the smaller is nearer.
    others = x != np.nextafter(np.float32(1.5 * 2.0**-127), np.float32(0))
    assert bits.identical(bits.nearest(x, name), cast)[others].all()
    assert (~others).sum() == 1


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_of_0_or_below_is_none(name):
    x = np.array([0.0, -0.0, -1.0, -np.inf])

    assert np.isnan(bits.nearest(x, name)).all()
    assert np.isnan(x[:3].astype(np.float32).astype(getattr(ml_dtypes, name)).astype(np.float64)).all()


def test_the_narrowest_stage_holds_all_numbers_of_codes_and_scales():
    assert {name: narrowest(name).name for name in ("int8", *CODES)} == {
        "int8": "bfloat16",
        "int4": "float8_e5m2",
        "float6_e3m2fn": "float8_e5m2",
        "float6_e2m3fn": "float8_e4m3fn",
        "float4_e2m1fn": "float8_e5m2",
    }
    assert narrowest("float8_e8m0fnu").name == "bfloat16"
