"""A replay adds nothing to bounds where codes and scales are exact, and a few roundings where they are not."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import Quantiser
from attn_spec.bounds.replay import quantised, replayed
from attn_spec.contract.presets import FUSED
from attn_spec.judgement.analysis import Analysis
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

EXACT = {"division_error": 0.0, "block": "head"}
U = 2.0**-24


def problem_of(**options):
    shape = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 9, "key_length": 21, "head_dim": 16}
    return Recipe(**shape, value_dim=3, seed=7, dtypes="float16", **options).problem()


@pytest.mark.parametrize("names", ["q", "k", "v", "qk", "kv", "qkv"])
def test_exact_codes_and_scales_have_the_bound_of_a_problem_that_is_given_them(names):
    problem = problem_of()
    contract = replace(FUSED, quantisers=tuple(Quantiser(of=name, **EXACT) for name in names)).at("float16")

    whole = replayed(problem, contract)
    tensors = {name: getattr(whole, name) for name in "qkv"}
    scales = {f"{name}_descale": getattr(whole, f"{name}_descale") for name in names}
    given = problem.replace(**tensors, **scales, dtypes=whole.dtypes)
    truth, bound = Analysis(problem).truth_and_bound(contract)
    other, bound_of_given = Analysis(given).truth_and_bound(FUSED.at(given.dtype))

    for name in ("output", "lse"):
        np.testing.assert_allclose(truth[name].value, other[name].value, rtol=1e-12)
        np.testing.assert_allclose(bound.allowed[name], bound_of_given.allowed[name], rtol=1e-12)


def scales_of(x, quantiser):
    there = np.ones((x.shape[0], 1, x.shape[2], 1), dtype=bool)
    return quantised(quantiser, x, x, there, np.zeros(x.shape[0], dtype=int))


@pytest.mark.parametrize("seed", range(5))
def test_a_scale_by_a_rounded_reciprocal_is_inside_and_none_is_far(seed):
    """A product with float32(1 / 127) is off by two roundings from the quotient, to either side."""
    rng = np.random.default_rng(seed)
    x = bits.nearest(rng.standard_normal((2, 3, 64, 8)), "float32")
    most = np.abs(x).max(axis=3, keepdims=True).astype(np.float32)

    found = scales_of(x, Quantiser(of="k", block=1, division_error=2.0))
    scale = most * (np.float32(1) / np.float32(127))

    assert (np.abs(scale - found.scales) <= found.scale_error * found.scales).all()
    assert (scale < found.scales).any()
    assert (found.scale_error > 0).all()
    assert found.scale_error.max() <= 8 * U
    wide = scales_of(x, Quantiser(of="k", block=1, division_error=4e4))
    up, down = (most * np.float32(1 + sign * 3.9e4 * U) / np.float32(127) for sign in (1, -1))
    for moved in (up, down):
        assert (np.abs(moved - wide.scales) <= wide.scale_error * wide.scales).all()
        codes = np.rint(x.astype(np.float32) / moved)
        assert (np.abs(codes - wide.codes) <= wide.radius).all()
        assert (codes != wide.codes)[x > -1].any()
    assert wide.scale_error.max() <= 4.1e4 * U


def test_blocks_start_from_the_first_key_behind_a_left_pad():
    problem = problem_of(leftpad_k="ragged@B111")
    first = problem.first_keys
    contract = replace(FUSED, quantisers=(Quantiser(of="k", block=4, division_error=0.0),)).at("float16")

    scales = replayed(problem, contract).k_descale[:, ::2, :, 0]

    assert (first > 0).any()
    for b, h in np.ndindex(2, 2):
        for start in range(first[b], 21, 4):
            block = problem.k[b, h, start : start + 4]
            most = np.abs(block).max().astype(np.float32)
            assert (scales[b, h, start : start + 4] == most / np.float32(127)).all()
