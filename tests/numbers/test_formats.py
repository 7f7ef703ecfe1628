"""Every row of the table of formats against two independent libraries."""

import dataclasses

import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES, FLOATS, FORMATS

GFLOAT = {
    "float64": gfloat.formats.format_info_binary64,
    "float32": gfloat.formats.format_info_binary32,
    "float16": gfloat.formats.format_info_binary16,
    "bfloat16": gfloat.formats.format_info_bfloat16,
}


@pytest.mark.parametrize("name", DTYPES)
def test_agrees_with_ml_dtypes(name):
    row, info = FORMATS[name], ml_dtypes.finfo(name)

    assert row.precision == info.nmant + 1
    assert row.emin == info.minexp
    assert row.largest == float(info.max)
    assert row.smallest_normal == float(info.smallest_normal)
    assert row.smallest_subnormal == float(info.smallest_subnormal)
    assert row.unit_roundoff == float(info.eps) / 2


@pytest.mark.parametrize("name", DTYPES)
def test_agrees_with_gfloat(name):
    row, info = FORMATS[name], GFLOAT[name]

    assert row.precision == info.precision
    assert row.largest == info.max
    assert row.smallest_normal == info.smallest_normal
    assert row.smallest_subnormal == info.smallest_subnormal


def test_tf32_has_the_range_of_float32_and_the_precision_of_float16():
    row = FORMATS["tf32"]

    assert (row.emin, row.precision) == (FORMATS["float32"].emin, FORMATS["float16"].precision)
    assert row.largest == (2 - 2.0**-10) * 2.0**127


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_found_by_its_name_and_cites_its_source(name):
    assert FORMATS[name].name == name
    assert FORMATS[name].source


@pytest.mark.parametrize("name", FLOATS)
def test_a_row_agrees_with_itself(name):
    """The ends of a format are numbers of it, and what lies half-way to their neighbours is none."""
    row = FORMATS[name]
    numbers = [row.largest, row.smallest_normal, row.smallest_subnormal, 1 + 2 * row.unit_roundoff]
    between = [row.largest * (1 - row.unit_roundoff / 2), row.smallest_subnormal * 1.5, 1 + row.unit_roundoff]

    assert bits.nearest(np.array(numbers), name).tolist() == numbers
    assert name == "float64" or not np.isin(between, bits.nearest(np.array(between), name)).any()


def test_problems_are_stored_in_formats_that_have_rows():
    assert set(DTYPES) <= set(FORMATS)


def test_a_row_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FORMATS["float32"].precision = 25
