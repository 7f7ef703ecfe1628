"""The replay of quantisers: codes and scales of float32 kernels, and what is open of them."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from attn_spec import Problem, Quantiser
from attn_spec.bounds.codes import blocks_of_tokens, quantised
from attn_spec.bounds.replay import replayed
from attn_spec.contract.presets import FUSED
from attn_spec.judgement.analysis import Analysis
from attn_spec.judgement.measure import judge
from attn_spec.judgement.quantisation import quantisation_error
from attn_spec.numbers import bits
from attn_spec.numbers.formats import CODES, EVERY
from attn_spec.search.drawing.regimes import Recipe

EXACT = {"division_error": 0.0}
PLAIN = (Quantiser(of="q", block=4, **EXACT), Quantiser(of="k", block=8, **EXACT))
SMOOTH = (PLAIN[0], replace(PLAIN[1], subtracts="mean_of_keys"))


def tensor(seed, shape=(2, 3, 21, 16), dtype="float16"):
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-6, 6, shape[:3])[..., None]
    return bits.nearest(rng.standard_normal(shape) * sizes, dtype)


def in_float32(x, block, *, reciprocal=False):
    """Quantise as a float32 kernel does, in NumPy."""
    x = x.astype(np.float32)
    scale = np.zeros((*x.shape[:3], 1), np.float32)
    for start in range(0, x.shape[2], block):
        part = x[:, :, start : start + block]
        scale[:, :, start : start + block] = np.abs(part).max((-1, -2), keepdims=True) / np.float32(127)
    return np.rint(x * (np.float32(1) / scale) if reciprocal else x / scale), scale


def replay_of(x, quantiser):
    there = np.ones((x.shape[0], 1, x.shape[2], 1), dtype=bool)
    return quantised(quantiser, x, x, there, np.zeros(x.shape[0], dtype=int))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_division_that_is_correctly_rounded_leaves_no_code_open(dtype, seed):
    x = tensor(seed, dtype=dtype)

    found = replay_of(x, replace(PLAIN[1], block=8))
    codes, scale = in_float32(x, 8)

    np.testing.assert_array_equal(found.codes, codes)
    np.testing.assert_array_equal(found.scales, scale)
    assert not found.radius.any()
    assert not found.scale_error.any()


@pytest.mark.parametrize("seed", range(5))
def test_codes_of_a_product_with_the_reciprocal_lie_within_what_is_open(seed):
    """Halves of integers over a power of 2 are ties, and a reciprocal that is rounded moves some of them."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([tensor(seed), rng.integers(-200, 200, (2, 3, 40, 16)) / 2], axis=2)

    found = replay_of(x, replace(PLAIN[1], division_error=2.0))
    codes, scale = in_float32(x, 8, reciprocal=True)

    assert (np.abs(codes - found.codes) <= found.radius).all()
    assert (np.abs(scale - found.scales) <= found.scale_error * found.scales).all()
    assert 0 < (found.radius > 0).mean() < 0.3
    assert set(np.unique(found.radius)) == {0.0, 1.0}
    exact = replay_of(x, PLAIN[1])
    assert (np.abs(exact.codes - found.codes) <= found.radius).all()


def test_ties_are_rounded_as_each_word_says():
    x = np.array([127.0, 0.5, 1.5, -0.5, -1.5, 0.75, np.float32(0.5) - 2.0**-25])[None, None, None]

    def codes(rounding):
        found = replay_of(x, Quantiser(of="k", rounding=rounding, **EXACT))
        return found.codes[0, 0, 0].tolist(), found.radius[0, 0, 0].tolist()

    assert codes("nearest_even") == ([127, 0, 2, 0, -2, 1, 0], [0] * 7)
    assert codes("toward_zero") == ([127, 0, 1, 0, -1, 0, 0], [0] * 7)
    # 1/2 less its last bit, plus 1/2, is rounded to 1.
    assert codes("add_half") == ([127, 1, 2, -1, -2, 1, 1], [0] * 7)
    assert codes("nearest") == ([127, 0, 2, 0, -2, 1, 0], [0, 1, 1, 1, 1, 0, 0])


@pytest.mark.parametrize("form", ["int8", "int4", "float8_e4m3fn", "float4_e2m1fn"])
def test_either_code_around_a_quotient_lies_within_what_is_open(form):
    rng, x = np.random.default_rng(0), tensor(1, dtype="float32")
    found = replay_of(x, Quantiser(of="k", block=8, format=form, rounding="either", **EXACT))
    nearest = replay_of(x, Quantiser(of="k", block=8, format=form, **EXACT))

    quotient = np.clip(
        x.astype(np.float32) / found.scales.astype(np.float32), -EVERY[form].largest, EVERY[form].largest
    )
    grid = bits.spacing(quotient, form)
    drawn = np.floor(quotient / grid + rng.random(x.shape)) * grid

    np.testing.assert_array_equal(found.codes, nearest.codes)
    assert (np.abs(drawn - found.codes) <= found.radius).all()
    assert (np.abs(drawn - found.codes) > 0).mean() > 0.1
    assert (found.radius <= grid).all()


def test_lanes_share_scales_as_sage_attention_2_has_them():
    queries = blocks_of_tokens(Quantiser(of="q", block=32, lanes=8), np.arange(64))
    keys = blocks_of_tokens(Quantiser(of="k", block=64, lanes=4, lane_width=2), np.arange(128))

    assert np.flatnonzero(queries == queries[1]).tolist() == [1, 9, 17, 25]
    assert np.flatnonzero(keys == keys[64])[:6].tolist() == [64, 65, 72, 73, 80, 81]
    assert len(np.unique(keys)) == 8


def test_a_block_of_zeros_has_codes_of_zero_and_one_that_is_not_finite_is_open():
    x = tensor(0)
    x[0, 0, :8], x[0, 0, 9, 0], x[0, 1, 3, 2] = 0.0, np.inf, np.nan

    found = replay_of(x, PLAIN[1])

    assert not found.codes[0, 0, :8].any()
    assert not found.radius[0, 0, :8].any()
    assert np.isinf(found.radius[0, 0, 8:16]).all()
    assert np.isinf(found.radius[0, 1, :8]).all()
    assert np.isfinite(found.radius[0, 0, 16:]).all()


@pytest.mark.parametrize("name", [*(name for name in CODES if name != "int8"), "float8_e4m3fn", "float8_e5m2"])
def test_codes_are_those_of_ml_dtypes(name):
    x = tensor(3, dtype="float32")
    found = replay_of(x, Quantiser(of="v", format=name, **EXACT))
    scale = np.abs(x).max((-1, -2), keepdims=True).astype(np.float32) / np.float32(EVERY[name].largest)

    codes = x.astype(np.float32) / scale
    codes = np.rint(codes) if name == "int4" else codes  # the cast to it cuts
    np.testing.assert_array_equal(found.codes, codes.astype(getattr(ml_dtypes, name)).astype(float))


def problem_of(seed, **options):
    shape = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 9, "key_length": 21, "head_dim": 16}
    return Recipe(**{**shape, "value_dim": 3, "seed": seed, "dtypes": "float16", **options}).problem()


@pytest.mark.parametrize("regime", ["normal", "rising", "activations"])
def test_the_truth_is_attention_of_codes_times_scales(regime):
    problem, contract = problem_of(1, regime=regime), replace(FUSED, quantisers=SMOOTH).at("float16")

    truth, bound = Analysis(problem).truth_and_bound(contract)
    k = problem.k.astype(np.float32)
    mean = k.mean(axis=2, keepdims=True, dtype=np.float32)
    (codes_q, s_q), (codes_k, s_k) = in_float32(problem.q, 4), in_float32(k - mean, 8)
    q, k = codes_q.astype(float) * s_q, (codes_k.astype(float) * s_k).repeat(2, axis=1)
    real = Problem(q=q, k=k, v=problem.v.repeat(2, axis=1), scale=problem.scale_value, dtypes="float64")
    other = Analysis(real).oracle.first
    moved = problem.scale_value * (problem.q @ mean.astype(float).repeat(2, axis=1).swapaxes(2, 3))[..., 0]

    assert bound.in_domain.all()
    assert (np.abs(truth["output"].value - other["output"].value) <= bound.allowed["output"]).all()
    assert (np.abs(truth["lse"].value - (other["lse"].value + moved)) <= bound.allowed["lse"]).all()


@pytest.mark.parametrize("quantisers", [PLAIN, SMOOTH, (*PLAIN, Quantiser(of="v", block="head"))])
def test_rows_of_a_replay_are_judged_as_among_the_others(quantisers):
    problem, contract = problem_of(2, causal=True), replace(FUSED, quantisers=quantisers).at("float16")
    rows, whole = np.array([2, 5]), replayed(problem, contract)

    truth, bound = Analysis(problem).truth_and_bound(contract)
    few, bound_of_few = Analysis(whole.take("B", [1]).head(3).rows(rows)).truth_and_bound(contract)

    for name in ("output", "lse"):
        np.testing.assert_allclose(few[name].value[0, 0], truth[name].value[1, 3][rows], rtol=1e-12)
        np.testing.assert_allclose(bound_of_few.allowed[name][0, 0], bound.allowed[name][1, 3][rows], rtol=1e-3)


def test_scales_count_the_sequence_or_the_buffer():
    problem = problem_of(3, seqused_k="ragged@B111")
    k = np.where(problem.keys_there[..., None], problem.k, 1000.0)
    other = problem.replace(k=k)

    def scales(of, over):
        contract = replace(FUSED, quantisers=(replace(PLAIN[1], over=over),)).at("float16")
        return replayed(of, contract).k_descale

    assert (scales(problem, "sequence") == scales(other, "sequence")).all()
    assert (scales(problem, "buffer") != scales(other, "buffer")).any()


def test_a_row_that_sees_a_key_of_no_known_code_is_not_measured():
    problem = problem_of(4)
    k = problem.k.copy()
    k[0, 0, 3, 1] = np.inf
    contract = replace(FUSED, quantisers=PLAIN).at("float16")

    judged = judge(problem.replace(k=k), contract, output=np.full(problem.output_shape, 7.0))

    assert not judged.measurements[0].measured[0, :2].any()
    assert judged.measurements[0].measured[0, 2:].all()


def test_the_quantisation_error_falls_with_the_block_and_is_none_without_quantisers():
    problem = problem_of(5, regime="activations")
    errors = [
        quantisation_error(problem, replace(FUSED, quantisers=(Quantiser(of="k", block=block),)).at("float16"))
        for block in (1, "head")
    ]

    assert quantisation_error(problem, FUSED.at("float16")) == 0
    assert 0 < errors[0] < errors[1] < 1
