"""The allowed distance of a rotated key that a call stores in a cache from the exact one."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import PRESETS
from attn_spec.kernels.presentations.appending import rotated
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results.promised import within
from attn_spec.numbers.formats import FORMATS
from attn_spec.search.drawing.regimes import Recipe

POSITIONS = np.arange(6)


def keys_and_tables(dtype):
    problem = Recipe(rotary="half", dtypes=dtype, key_length=6, head_dim=8, value_dim=8).problem()
    return problem.k, rotated.arguments_of(problem, rows=8)


def contract(preset, dtype, **changes):
    declared = replace(PRESETS[preset], **changes)
    return PRESENTATIONS["append"].contract(declared.at(dtype), dtype)


@pytest.mark.parametrize(
    ("dtype", "preset", "least", "most"),
    [("float64", "fp64", 4.9, 5.1), ("float32", "fp32", 1.9, 2.1), ("float16", "fused", 1.9, 2.1)],
)
def test_the_allowed_error_counts_each_rounding(dtype, preset, least, most):
    """A product is rounded, and so is what is stored. In float64 the number that it is compared with is rounded too."""
    x, tables = keys_and_tables(dtype)
    turned = np.abs(rotated.turned(x, POSITIONS, tables))

    units = rotated.allowed(x, POSITIONS, tables, contract(preset, dtype), dtype) / FORMATS[dtype].unit_roundoff

    straight = units[..., 0, :] / turned[..., 0, :]  # position 0, whose sine is 0
    assert least < straight.max() < most


def test_the_loosest_alternative_decides():
    x, tables = keys_and_tables("float32")
    strict, loose = contract("fp32", "float32"), contract("fp32", "float32", operands="bfloat16")

    alone, other, both = (
        rotated.allowed(x, POSITIONS, tables, each, "float32")
        for each in (strict, loose, replace(strict, alternatives=(loose,)))
    )

    assert (alone < other).any()
    np.testing.assert_array_equal(both, np.maximum(alone, other))


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_of_a_number_that_is_not_finite_nothing_is_asked(number):
    x, tables = keys_and_tables("float32")
    x = x.copy()
    x[..., 2, 3] = number

    found = rotated.allowed(x, POSITIONS, tables, contract("fp32", "float32"), "float32")

    pair = np.zeros(x.shape, dtype=bool)
    pair[..., 2, [3, 7]] = True
    assert (found[pair] == np.inf).all()
    assert np.isfinite(found[~pair]).all()


def test_a_number_without_an_allowed_error_keeps_its_sign_of_zero():
    now, must = np.array([0.0, 0.0, 1.0]), np.array([-0.0, -0.0, 1.5])

    assert within(now, must, 0.0).tolist() == [False, False, False]
    assert within(now, must, np.array([0.0, 0.1, 0.5])).tolist() == [False, True, True]
