"""Arithmetic that kernels in use do: each is within the bound of the contract that says so, by the smallest example.

Where another contract does not allow it, that one refutes the same answer.
"""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import EAGER, FUSED, SPLIT_KV, TF32
from attn_spec.emulation.arithmetic import Order, rounded
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.emulation.split import NormalizedSplitAttention
from attn_spec.judgement import measure
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import load_all
from tests.one_head import float32_head

LOG2E = float(np.log2(np.e))


def f32(x):
    return bits.nearest(x, "float32")


def ratio(problem, contract, **answer):
    """Return the largest error over bound; above 1 where the answer is refuted for certain."""
    judgement = measure.judge(problem, contract.at(problem.dtype), **answer)
    assert judgement.refuted == (judgement.ratio > 1)
    return judgement.ratio


def emulated_ratio(problem, contract, declared=None, order=None, **arguments):
    """Return the ratio of an emulated kernel's answer to a problem."""
    made = emulate("k", contract, order, dtypes=(problem.dtype,), **arguments)
    answer = Subject(made, problem.dtype)(problem)
    return ratio(problem, declared or contract, **answer)


def softmax(problem, s, cast=lambda w: w, base2=False):
    """Compute output and log-sum-exp of scores in float32, the output in the problem's dtype."""
    m = s.max(-1, keepdims=True)
    w = f32(np.exp2(f32(s - m)) if base2 else np.exp(f32(s - m)))
    l = f32(w.sum(-1, keepdims=True))
    out = bits.nearest(f32(f32(cast(w) @ problem.v) / l), problem.dtype)
    lse = f32(m + f32(np.log2(l) if base2 else np.log(l)))[..., 0]
    return {"output": out, "lse": f32(lse * f32(np.log(2))) if base2 else lse}


OPERANDS = replace(FUSED, scale_on="operands")


@pytest.mark.parametrize("factor", [1.0, LOG2E], ids=["scale", "scale and log2(e)"])
def test_a_query_may_be_scaled_in_half_before_the_product(factor):
    p = float32_head([(5, 5)], [(8, 8), (7.75, 7.75)], [0.0, 1.0], dtypes="bfloat16")
    q = bits.nearest(f32(p.q * f32(f32(p.scale_value) * f32(factor))), "bfloat16")

    answer = softmax(p, f32(q @ p.k.mT), lambda w: bits.nearest(w, "bfloat16"), base2=factor != 1)

    assert ratio(p, OPERANDS, **answer) < 1
    assert ratio(p, FUSED, **answer) > 10


def test_a_scaled_query_underflows_in_its_own_units():
    p = Recipe(regime="normal", query_length=16, key_length=16, head_dim=16, value_dim=16, scale=2.0**-10).problem()
    p = p.replace(k=f32(p.k * 2.0**6))
    half = replace(OPERANDS, multiplicands="float16", exponent="natural")
    q, k = bits.nearest(f32(p.q * 2.0**-10), "float16"), bits.nearest(p.k, "float16")

    answer = softmax(p, f32(q @ k.mT))

    assert ratio(p, half, **answer) < 1


def test_log2e_in_the_scale_leaves_no_score_exact():
    p = float32_head([(2, 2, 1)], [(865013, -865014, 1), (0, 0, 0)], [1.0, 0.0], scale=1.0)
    q = f32(p.q * f32(LOG2E))
    s = np.zeros((1, 1, 1, 2))
    for t in range(3):
        s = f32(s + f32(q[..., t, None] * p.k[..., t][:, :, None]))

    answer = softmax(p, s, base2=True)

    assert ratio(p, OPERANDS, **answer) < 1
    assert ratio(p, FUSED, **answer) > 1000


def test_merges_round_in_the_accumulators_formats():
    p = float32_head([1.0], [0.0], [1.0], scale=1.0)
    order = Order(kv_tile=17, inaccuracy=1.0, error_signs="down")
    for changed in ({"row_sum": "bfloat16"}, {"output_accumulation": "bfloat16"}):
        executed = replace(PRECISE, lse_merges=2, exp_of_zero_is_one=False, exp_error=8.0, log_error=4.0, **changed)
        declared = replace(executed, exp_error=8.01, kv_tile=17)
        assert emulated_ratio(p, executed, declared, order, steps=NormalizedSplitAttention) < 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_operand_that_is_flushed_makes_no_exact_score(dtype):
    p = float32_head([2.0**-128], [2.0**126, 0.0], [1.0, 2.0], scale=1.0, dtypes=dtype)
    wide = replace(PRECISE, score_accumulation="float64")

    assert emulated_ratio(p, replace(wide, subnormals="flushed")) < 1
    assert emulated_ratio(p, replace(wide, subnormals="flushed"), replace(wide, subnormals="kept")) > 1


def test_weights_may_be_normalized_by_a_reciprocal():
    keys = [0.0] + [-0.06475830078125] * 247
    p = float32_head([1.0], keys, [1.0] * 248, scale=1.0)
    c = replace(EAGER, softmax="float16", stored_scores="float16", probabilities="float16", lse="float32")
    half = lambda x: bits.nearest(x, "float16")  # noqa: E731
    w = half(np.exp(half(p.k[..., 0][:, :, None])))
    out = f32(half(w * half(1 / half(w.sum(-1, keepdims=True)))) @ p.v)

    assert 0.7 < ratio(p, c, output=out) < 1


def test_partial_outputs_may_wait_in_half():
    keys = [0.0] + [-0.5859375] * 31 + [0.0] + [-0.62109375] * 31
    p = float32_head([1.0], keys, [-1.2578125] * 32 + [1.3046875] * 32, scale=1.0, dtypes="bfloat16")
    half = lambda x: bits.nearest(x, "bfloat16")  # noqa: E731
    waiting = []
    for keys in (slice(0, 32), slice(32, 64)):
        part = p.replace(k=p.k[:, :, keys], v=p.v[:, :, keys])
        waiting.append(softmax(part, part.q @ part.k.mT, half))
    L = np.stack([part["lse"][..., None] for part in waiting])
    a = f32(np.exp(f32(L - L.max(0))))
    out = half(f32(sum(part["output"] * f32(x / f32(a.sum(0))) for part, x in zip(waiting, a, strict=True))))

    assert ratio(p, replace(SPLIT_KV, partial_outputs="input"), output=out) < 1
    assert ratio(p, SPLIT_KV, output=out) > 1.5


#: Products in a block of a matrix unit, and bits it keeps below the accumulator's last.
UNITS = {"V100": (4, 0), "A100": (8, 1), "H100": (16, 2)}


def cut_sum(terms, block, extra):
    """Sum over the last axis as a matrix unit does: aligned to the largest, truncated, added, truncated to 24 bits."""
    total = np.zeros(terms.shape[:-1])
    for start in range(0, terms.shape[-1], block):
        x = np.concatenate([total[..., None], terms[..., start : start + block]], -1)
        grid = np.ldexp(1.0, np.frexp(np.abs(x).max(-1, keepdims=True))[1] - 24 - extra)
        s = (np.trunc(x / grid) * grid).sum(-1)
        total = rounded(s, "float32", "toward_zero")
    return total


@pytest.mark.parametrize("unit", UNITS)
def test_a_matrix_unit_may_align_and_cut(unit):
    block, extra = UNITS[unit]
    keys = np.full(128, 2.0 ** (-3 - extra) * (1 - 2.0**-11))  # every product is cut to nothing,
    keys[1::block] *= 2.0**extra  # one of each block only when the sum is
    keys[0] = 2.0**5
    p = float32_head([np.r_[2.0**5, np.full(127, 2.0**-10)]], [keys], [1.0], dtypes="float16", scale=1.0)
    lse = cut_sum(p.q * p.k, block, extra)

    assert ratio(p, FUSED, lse=lse) < 1
    if unit != "H100":
        assert ratio(p, replace(FUSED, matrix_rounding=None), lse=lse) > 1
    assert ratio(p, replace(FUSED, matrix_block=block, matrix_extra_bits=extra), lse=lse) < 1


def test_the_row_sum_may_be_a_product_with_ones_on_a_matrix_unit():
    """One weight of 1, and 2^16 that are cut off beside it: e^-16 is 0.94 units in the last place of 1."""
    n = 2**16
    p = float32_head([1.0], [0.0] + [-16.0] * n, [1.0] * (n + 1), scale=1.0, dtypes="bfloat16")
    weights = bits.nearest(np.exp(p.k[..., 0]), "bfloat16")
    lse = np.log(cut_sum(weights, 4, 0))[:, :, None].reshape(1, 1, 1)

    assert ratio(p, replace(FUSED, row_sum_of="cast"), lse=lse) < 1
    assert ratio(p, replace(FUSED, row_sum_of="uncast"), lse=lse) > 1


def test_operands_may_be_cut_to_tf32():
    p = float32_head([1 + 2.0**-10 - 2.0**-23], [1 + 2.0**-10 - 2.0**-23], [1.0], scale=1.0)
    cut = rounded(p.q, "tf32", "toward_zero")

    assert ratio(p, TF32, lse=f32(cut * cut)[..., 0]) < 1
    assert ratio(p, replace(TF32, entry_rounding=None), lse=f32(cut * cut)[..., 0]) > 1


def test_weights_of_float32_may_be_cut_to_tf32_where_they_enter():
    """One key, whose weight of dropout is 1 / (1 - p) = 1.11; as an H200 gave it, which cuts this and the value."""
    v = bits.nearest(1.0087175, "float32").item()
    keep = {"dropout_keep": np.ones((1, 1, 1, 1), dtype=bool), "dropout_p": 0.1}
    p = float32_head([1.0], [1.0], [v], **keep)
    kept = rounded(f32(1 / (1 - 0.1)), "tf32", "toward_zero")
    answer = f32(kept * rounded(p.v, "tf32", "toward_zero"))

    assert 0.8 < ratio(p, TF32, output=answer) < 1
    assert ratio(p, replace(TF32, probabilities="tf32"), output=answer) > 1  # weights are rounded to nearest there


def test_float16_subnormals_may_be_flushed_on_entry():
    p = float32_head([0.0], [0.0], [2.0**-20], dtypes="float16")
    answer = {"output": np.zeros((1, 1, 1, 1))}

    assert ratio(p, replace(FUSED, float16_subnormals="flushed_on_entry"), **answer) < 1
    assert ratio(p, FUSED, **answer) > 10


#: Problems whose constants, or largest weights, fit no format of a contract that would have to hold them.
NO_ROOM = {
    "a scale": ({"scale": 1e5}, {"score_accumulation": "float16"}),
    "a softcap": ({"softcap": 1e5}, {"score_accumulation": "float16"}),
    "the inverse of a softcap": ({"softcap": 2.0**-20}, {"score_accumulation": "float16"}),
    "a scale of float32": ({"scale": 1e39}, {}),
    "a scale that is flushed": ({"scale": 2.0**-130}, {"subnormals": "flushed"}),
}


@pytest.mark.parametrize("what", NO_ROOM)
def test_a_constant_that_fits_no_format_is_outside_the_domain(what):
    options, changed = NO_ROOM[what]
    p = float32_head([0.5], [0.0, 0.0], [1.0, 2.0], dtypes="float16", **options)
    contract = replace(PRECISE, **changed)

    assert not measure.judge(p, contract.at("float16"), output=np.full((1, 1, 1, 1), np.nan)).exercised


def test_weights_above_the_range_of_their_format_are_outside_the_domain():
    p = float32_head([1.0], [0.0, 11.875], [1.0, 1.0], scale=1.0)
    lazy = replace(PRECISE, reference_slack=12.0, probabilities="float16")

    assert not measure.judge(p, lazy.at("float32"), output=np.full((1, 1, 1, 1), np.inf)).exercised


def test_scores_so_large_that_the_rounding_of_the_reference_overflows_are_outside_the_domain():
    """exp2(s c - fl(m c)) with one rounding is exp2 of the rounding of m c, for the largest score."""
    p = float32_head([2.0**60], [1.5 * 2.0**50], [1.0], scale=1.0)
    fused, order = replace(PRECISE, exponent="base2_fused"), Order(exponent_folded=True)
    out = Subject(emulate("k", fused, order), "float32")(p)["output"]

    assert not np.isfinite(out).all()
    assert not measure.judge(p, fused.at("float32"), output=out).exercised
    for contract in (PRECISE, replace(PRECISE, exponent="base2"), FUSED):
        assert ratio(p, contract, output=out) == np.inf


@pytest.mark.parametrize("presentation", PRESENTATIONS)
def test_a_sound_kernel_of_any_presentation_reads_expanded_views(presentation):
    property_ = load_all()["independence.expanded_views_are_read_right"]
    supports = [each for each in ("cross",) if PRESENTATIONS[presentation].can_say(each)]
    sound = Subject(emulate("k", PRECISE, presentation=presentation, supports=supports), "float32")
    queries = (sound.kernel.limits.query_lengths or (3,))[0]
    keys = sound.kernel.limits.largest.get("K", 4) if supports else queries
    merges, latent = (name in sound.kernel.limits.always for name in ("states", "latent"))
    shape = {"kv_heads": 1, "head_dim": 6, "value_dim": 4, "latent": True, "scale": 0.5} if latent else {"kv_heads": 2}
    recipe = Recipe(batch=2, query_heads=2, query_length=queries, key_length=keys, states=merges, **shape)
    problem = recipe.problem().replace(bias=np.zeros((1, 1, 1, 1)) if merges else None)

    property_.check(sound, problem)
