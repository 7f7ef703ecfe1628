"""Scales of blocks of columns in one level and two, and rotated vectors: what a kernel has lies within what is open."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from attn_spec import Problem, Quantiser
from attn_spec.bounds.block_scales import codes_times_scales, holding
from attn_spec.bounds.codes import largest_of_columns, quantised
from attn_spec.bounds.hadamard import rotated, sylvester, width_of
from attn_spec.bounds.replay import replayed
from attn_spec.contract.presets import FUSED
from attn_spec.judgement.analysis import Analysis
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EVERY, FORMATS
from attn_spec.search.drawing.regimes import Recipe

MX = Quantiser(
    of="k",
    format="float8_e4m3fn",
    block=1,
    columns=32,
    scale_dtype="float8_e8m0fnu",
    scale_rounding="up",
    division_error=0.0,
)
NV = Quantiser(
    of="k",
    format="float4_e2m1fn",
    block=1,
    columns=16,
    scale_dtype="float8_e4m3fn",
    second_level="tensor",
    division_error=0.0,
)
ROTATED = Quantiser(of="k", format="float8_e4m3fn", rotates="hadamard", division_error=0.0)


def tensor(seed, shape=(2, 3, 21, 80), dtype="float16"):
    rng = np.random.default_rng(seed)
    sizes = 2.0 ** rng.integers(-6, 6, shape[:3])[..., None]
    return bits.nearest(rng.standard_normal(shape) * sizes, dtype)


def replay_of(x, quantiser, steps=codes_times_scales):
    there = np.ones((x.shape[0], 1, x.shape[2], 1), dtype=bool)
    return steps(quantiser, x, x, there, np.zeros(x.shape[0], dtype=int))


def blocks_of(x, columns):
    padded = np.pad(x, [(0, 0)] * 3 + [(0, -x.shape[-1] % columns)])
    return padded.reshape(*x.shape[:-1], -1, columns)


def flat(blocks, D):
    return blocks.reshape(*blocks.shape[:-2], -1)[..., :D].astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int8"])
def test_mx_codes_are_those_of_a_float32_kernel(form, seed):
    x, most = tensor(seed).astype(np.float32), np.float32(EVERY[form].largest)
    blocks = blocks_of(x, 32)
    scale = np.exp2(np.ceil(np.log2((np.abs(blocks).max(-1, keepdims=True) / most).astype(np.float64))))
    quotient = (blocks / scale.astype(np.float32)).astype(np.float32)
    codes = np.rint(quotient) if form == "int8" else quotient.astype(getattr(ml_dtypes, form)).astype(np.float64)

    found = replay_of(x.astype(np.float64), replace(MX, format=form))

    np.testing.assert_array_equal(found.codes, flat(codes * scale, 80))
    assert not found.radius.any()
    assert (found.scales == 1).all()


@pytest.mark.parametrize("seed", range(3))
def test_nvfp4_codes_are_those_of_a_float32_kernel(seed):
    x = tensor(seed).astype(np.float32)
    x[0, 0, 0, :16] = 0
    g = np.abs(x).max() / np.float32(6 * 448)
    blocks = blocks_of(x, 16)
    scale = (np.abs(blocks).max(-1, keepdims=True) / np.float32(6) / g).astype(ml_dtypes.float8_e4m3fn)
    scale = scale.astype(np.float32)
    with np.errstate(invalid="ignore"):
        quotient = np.where(scale == 0, 0, blocks / (scale * g)).astype(np.float32)
    codes = quotient.astype(ml_dtypes.float4_e2m1fn).astype(np.float64)

    found = replay_of(x.astype(np.float64), NV)

    known = np.isfinite(found.radius)
    assert known.mean() > 0.9
    np.testing.assert_array_equal(found.codes[known], flat(codes * scale, 80)[known])
    assert (found.scales == g).all()
    assert not found.radius[known].any()
    # A block so small beside the tensor that its scale is 0 has no codes.
    assert (flat(np.broadcast_to(scale, blocks.shape), 80)[~known] == 0).all()


def test_a_scale_at_the_edge_of_a_power_of_2_is_either_of_two():
    """448 over 448 is 1, or what a division that is off makes 2: of 5/8 either code is half a step off at most."""
    x = np.zeros((1, 1, 1, 32))
    x[..., 0], x[..., 1], x[..., 2] = 448.0, 225.0, 2.0**-10 * 1.5

    exact, open_ = (replay_of(x, replace(MX, division_error=error)) for error in (0.0, 4.0))

    assert exact.codes[0, 0, 0, :3].tolist() == [448, 224, 2.0**-9]
    assert not exact.radius.any()
    assert open_.radius[0, 0, 0, :2].tolist() == [0, 0]
    low, high = open_.codes - open_.radius, open_.codes + open_.radius
    for scale in (1.0, 2.0):
        made = bits.nearest(x / scale, "float8_e4m3fn") * scale
        assert ((low <= made) & (made <= high)).all()
    assert 0 < open_.radius[0, 0, 0, 2] <= 2.0**-9


@pytest.mark.parametrize("quantiser", [MX, NV, replace(NV, second_level="head"), replace(MX, scale_dtype="float32")])
@pytest.mark.parametrize("seed", range(3))
def test_products_with_reciprocals_lie_within_what_is_open(quantiser, seed):
    x, most = tensor(seed, dtype="float16").astype(np.float32), np.float32(quantiser.most)
    columns, top = quantiser.columns, EVERY[quantiser.scale_dtype].largest
    axes = {"tensor": None, "head": (2, 3)}
    g = np.float32(1)
    if quantiser.second_level:
        g = np.abs(x).max(axes[quantiser.second_level], keepdims=True) * (
            np.float32(1) / np.float32(quantiser.most * top)
        )
    blocks, of_block = blocks_of(x, columns), np.expand_dims(g, -1)
    scale = (np.abs(blocks).max(-1, keepdims=True) * (np.float32(1) / most) * (np.float32(1) / of_block)).astype(float)
    if quantiser.scale_rounding == "up" and quantiser.scale_dtype != "float32":
        scale = np.exp2(np.ceil(np.log2(scale)))
    scale = bits.nearest(np.minimum(scale, top), quantiser.scale_dtype).astype(np.float32)
    quotient = blocks * (np.float32(1) / (scale * of_block))
    codes = bits.nearest(np.clip(quotient, -most, most).astype(float), quantiser.format)
    made = flat(codes * scale, 80)

    found = replay_of(x.astype(np.float64), replace(quantiser, division_error=4.0))

    known = np.isfinite(found.radius)
    slack = 1e-12 * np.abs(made)
    assert known.mean() > 0.9
    assert (np.abs(made - found.codes) <= found.radius + slack)[known].all()
    assert (np.abs(g - found.scales) <= found.scale_error * found.scales * (1 + 1e-12)).all()
    share = (found.radius[known] > 0).mean()
    # With numbers of 11 bits over powers of 2 there are ties. Scales of 24 bits are open themselves.
    assert 0.002 < share < 0.35 if quantiser is MX else share < 0.02 or quantiser.scale_dtype == "float32"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("D", [1, 3, 8, 64, 96])
def test_rotated_numbers_of_float32_lie_between_the_ends(D, seed):
    rng, n = np.random.default_rng(seed), width_of(D)
    x = bits.nearest(rng.standard_normal((1, 2, 5, D)) * 2.0 ** rng.integers(-3, 9, D), "bfloat16")
    signs = tuple(int(sign) for sign in rng.choice([-1, 1], 7))
    quantiser = replace(ROTATED, signs=signs)
    matrix = sylvester(n)
    factor = np.float32(1 / np.sqrt(n))
    y = (x * np.resize(np.array(signs), D)).astype(np.float32).reshape(1, 2, 5, D // n, n)
    made = [np.zeros_like(y), np.zeros_like(y)]
    for i in range(n):
        made[0] = made[0] + y[..., i : i + 1] * (matrix[i].astype(np.float32) * factor)
        made[1] = made[1] + y[..., n - 1 - i, None] * matrix[n - 1 - i].astype(np.float32)
    made[1] = made[1] * factor if n > 1 else made[1]

    low, high = rotated(quantiser, x, x, "bfloat16")

    for one in (each.reshape(x.shape) for each in made):
        assert ((low <= one) & (one <= high)).all()
    assert (low is high) == (n == 1)
    sizes = np.abs(x).reshape(1, 2, 5, D // n, n).sum(-1, keepdims=True) / np.sqrt(n)
    assert ((high - low).reshape(1, 2, 5, D // n, n) <= 3 * (n + 2) * 2.0**-24 * sizes + 1e-30).all()


@pytest.mark.parametrize("n", [1, 2, 16, 128])
def test_sylvesters_matrix_is_made_of_four_of_half_its_size(n):
    half = sylvester(n)

    np.testing.assert_array_equal(sylvester(2 * n), np.block([[half, half], [half, -half]]))
    np.testing.assert_array_equal(half @ half.T, n * np.eye(n))


def test_the_last_block_of_columns_may_be_short():
    x = np.array([[[[1.0, -2.0, 3.0, 4.0, 0.5]]]])

    assert largest_of_columns(2, np.abs(x)).tolist() == [[[[2.0, 2.0, 4.0, 4.0, 0.5]]]]
    assert largest_of_columns(8, np.abs(x)).tolist() == [[[[4.0] * 5]]]
    assert largest_of_columns(None, np.abs(x)).tolist() == [[[[4.0]]]]


def test_a_number_that_is_not_finite_opens_its_block_alone_and_all_of_a_second_level():
    x = tensor(0)
    x[0, 0, 4, 3] = np.inf

    of_block, of_tensor = (np.isinf(replay_of(x, quantiser).radius) for quantiser in (MX, NV))

    assert of_block[0, 0, 4, :32].all()
    assert of_block.sum() == 32
    assert of_tensor.all()


@pytest.mark.parametrize(
    ("quantiser", "own", "scales", "form"),
    [
        (MX, "float16", [2.0**-8], "float16"),
        (MX, "float16", [2.0**-40], "bfloat16"),
        (replace(MX, format="float4_e2m1fn"), "bfloat16", [2.0**-40], "bfloat16"),
        (NV, "bfloat16", [448.0, 2.0**-9], "bfloat16"),
        (replace(NV, format="int8"), "bfloat16", [448.0, 1.0], "tf32"),
        (replace(NV, format="int8"), "float16", [1.0], "float16"),
        (replace(MX, scale_dtype="float16"), "bfloat16", [1.0], "float32"),
        (replace(MX, scale_dtype="float32"), "float32", [0.3], "float64"),
    ],
)
def test_a_format_holds_every_code_times_every_scale(quantiser, own, scales, form):
    numbers = np.multiply.outer(np.array(scales), EVERY[quantiser.format].smallest_subnormal * np.arange(1, 8))

    assert holding(quantiser, own, np.array(scales)) == form
    assert bits.is_representable(numbers, form)
    assert FORMATS[form].largest >= max(scales) * EVERY[quantiser.format].largest


def problem_of(seed, **options):
    shape = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 9, "key_length": 21, "head_dim": 32}
    return Recipe(**{**shape, "value_dim": 3, "seed": seed, "dtypes": "float16", **options}).problem()


@pytest.mark.parametrize("quantiser", [MX, replace(MX, columns=8), NV, replace(NV, second_level="head"), ROTATED])
@pytest.mark.parametrize("regime", ["normal", "activations"])
def test_the_truth_is_attention_of_codes_times_scales(quantiser, regime):
    problem = problem_of(1, regime=regime)
    contract = replace(FUSED, quantisers=tuple(replace(quantiser, of=name) for name in "qk")).at("float16")

    truth, bound = Analysis(problem).truth_and_bound(contract)
    held = []
    for name in "qk":
        x = getattr(problem, name)
        low, high = rotated(quantiser, x, x, "float16") if quantiser.rotates else (x, x)
        there = np.ones((len(x), 1, x.shape[2], 1), dtype=bool)
        steps = quantised if quantiser.columns is None else codes_times_scales
        found = steps(quantiser, low, high, there, np.zeros(len(x), dtype=int))
        held.append(found.codes * found.scales)
    real = Problem(
        q=held[0], k=held[1].repeat(2, 1), v=problem.v.repeat(2, 1), scale=problem.scale_value, dtypes="float64"
    )

    other = Analysis(real).oracle.first
    assert bound.in_domain.all()
    assert (np.abs(truth["output"].value - other["output"].value) <= bound.allowed["output"]).all()
    assert (np.abs(truth["lse"].value - other["lse"].value) <= bound.allowed["lse"]).all()


def test_operands_have_a_format_that_holds_them_and_a_descale_of_the_second_level_alone():
    problem = problem_of(2)

    one, two = (
        replayed(problem, replace(FUSED, quantisers=tuple(replace(each, of=name) for name in "qk")).at("float16"))
        for each in (MX, NV)
    )
    assert (one.q_descale, one.k_descale) == (None, None)
    assert two.q_descale.shape == (2, 4, 1, 1)
    assert [made.dtype_of(name) for made in (one, two) for name in "qk"] == ["float16"] * 4
    assert two.dtype_of("q_descale") == "float32"
    assert all(bits.is_representable(x, "float16") for x in (one.q, one.k, two.q, two.k))
