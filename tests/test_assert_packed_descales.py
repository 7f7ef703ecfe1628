"""assert_attention on packed and paged calls with descales: by sequence, or in caches of scales."""

import math

import numpy as np
import pytest
import torch

from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention, assert_attention
from tests.test_assert_packed import DV, HKV, KEYS, QUERIES, H, attention, bounds, packed, paged

B = len(KEYS)
NAMES = ("q_descale", "k_descale", "v_descale")


def drawn(*shape, seed=3):
    return 0.5 + torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def answered(scales):
    """Return the packed call whose descales are those of :func:`packed`'s q, k, v at each token, and its own words."""
    (_, q, k, v), _, words = packed()
    cu_q, cu_k = bounds(QUERIES), bounds(KEYS)
    out = torch.full((len(q), H, DV), math.nan)
    real = [x * d for x, d in zip((q, k, v), scales, strict=True)]
    for b in range(B):
        rows, of = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        out[rows], _ = attention(real[0][rows], real[1][of], real[2][of])
    return (out, q, k, v), words


def at_tokens(d, lengths, heads, count):
    """Return descales [B, Hkv] at the tokens [T, heads, 1] of sequences of these lengths; 1 behind the last one."""
    found = d.repeat_interleave(torch.tensor(lengths), 0).repeat_interleave(heads // HKV, 1)
    return torch.cat([found, torch.ones(count - len(found), heads)])[..., None]


def of_sequences():
    """Return a packed call with descales [B, Hkv]."""
    d = {name: drawn(B, HKV, seed=seed) for seed, name in enumerate(NAMES)}
    of_q = at_tokens(d["q_descale"], QUERIES, H, sum(QUERIES) + 2)
    of_keys = [at_tokens(d[name], KEYS, HKV, sum(KEYS) + 3) for name in NAMES[1:]]
    call, words = answered([of_q, *of_keys])
    return call, words, d


def of_slots():
    """Return a packed call with descales of keys and values [T, Hkv], NaN behind the last key."""
    scales = [drawn(sum(KEYS) + 3, HKV, seed=seed) for seed in (5, 6)]
    call, words = answered([torch.ones(1), *(x[..., None] for x in scales)])
    for x in scales:
        x[sum(KEYS) :] = math.nan
    return call, words, dict(zip(NAMES[1:], scales, strict=True))


@pytest.mark.parametrize("made", [of_sequences, of_slots])
def test_descales_of_a_packed_call_are_those_of_its_sequences_or_slots(made):
    call, words, descales = made()

    assert_attention(*call, **words, **descales, contract="fp32")
    for name, x in descales.items():
        with pytest.raises(NotAttention):
            assert_attention(*call, **words, **descales | {name: x.roll(1, 0).nan_to_num(1.0)}, contract="fp32")
        with pytest.raises(NotAttention):
            assert_attention(*call, **words, **descales | {name: x.flip(1)}, contract="fp32")


def test_names_of_other_libraries_and_one_number():
    call, words, descales = of_sequences()
    axes = descales["v_descale"][:, :, None, None]
    assert_attention(*call, **words, **descales | {"v_descale": axes}, contract="fp32")
    others = {"descale_q": descales["q_descale"], "k_scale": descales["k_descale"], "v_scale": descales["v_descale"]}
    assert_attention(*call, **words, **others, contract="fp32")

    call, words = answered([torch.ones(1), torch.tensor(0.5), torch.tensor(2.0)])
    assert_attention(*call, **words, k_descale=torch.tensor(0.5), v_descale=torch.tensor(2.0), contract="fp32")


@pytest.mark.parametrize("presentation", ["paged", "paged_hnd"])
@pytest.mark.parametrize("size", [1, 4])
def test_caches_of_scales_lie_beside_the_caches_of_keys(presentation, size):
    (_, q, k, v), _, words = paged(size)
    packed_call, _, descales = of_slots()
    cu_k, table = bounds(KEYS), words["block_table"]
    caches = {name: torch.full((*k.shape[:2], HKV), math.nan) for name in descales}
    for b, e in enumerate(KEYS):
        for j in range(e):
            for name, cache in caches.items():
                cache[table[b, j // size], j % size] = descales[name][cu_k[b] + j]
    if presentation == "paged_hnd":
        k, v, *rest = (x.transpose(1, 2) for x in (k, v, *caches.values()))
        caches = dict(zip(caches, rest, strict=True))

    given = (packed_call[0], q, k, v)
    assert_attention(*given, **words, **caches, presentation=presentation, contract="fp32")
    stale = caches | {"k_descale": caches["k_descale"][torch.arange(len(k)).roll(1)].nan_to_num(1.0)}
    with pytest.raises(NotAttention):
        assert_attention(*given, **words, **stale, presentation=presentation, contract="fp32")


def test_scales_have_a_dtype_of_their_own():
    (_, q, k, v), words, descales = of_slots()
    halves = [x.to(torch.bfloat16) for x in (q, k, v)]
    scales = {name: x.double() * (1 + 2.0**-30) for name, x in descales.items()}
    real = answered([torch.ones(1), *(x.float()[..., None].nan_to_num(1.0) for x in scales.values())])[0][0]
    assert_attention(real.to(torch.bfloat16), *halves, **words, **scales)
    with pytest.raises(NotAttention):
        assert_attention(2 * real.to(torch.bfloat16), *halves, **words, **scales)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "k_descale",
            (B, 3),
            r"k_descale must be one number, or \[B, Hkv\] = \(4, 2\) or \[T, H\] = \(23, 2\) here, not",
        ),
        ("q_descale", (23, 2), r"q_descale must be one number, or \[B, Hkv\] = \(4, 2\) here, not \(23, 2\)"),
        ("k_descale", (B, 2, 9, 1), r"k_descale must be one number, or \[B, Hkv\] = \(4, 2\) or \[T, H\] = \(23, 2\) "),
    ],
)
def test_a_descale_of_another_shape_is_refused(name, shape, message):
    call, words, _ = of_sequences()
    with pytest.raises(CallError, match=message):
        assert_attention(*call, **words, **{name: torch.ones(shape)})


def test_a_shape_of_sequences_and_of_slots_is_refused_until_it_says_which():
    q, k, v = (torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
    words = {name: torch.arange(4, dtype=torch.int32) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    d = drawn(3, 2)
    out = v * d[..., None]
    with pytest.raises(CallError, match=r"may have a number for each sequence or for each slot of the keys; pass v_de"):
        assert_attention(out, q, k, v, **words, v_descale=d)
    for given in (d[:, :, None, None], d[:, :, None]):
        assert_attention(out, q, k, v, **words, v_descale=given, contract="fp32")


def test_a_scale_that_is_not_above_zero_is_refused():
    call, words, descales = of_slots()
    descales["k_descale"][2] = -1.0
    with pytest.raises(CallError, match="k_descale must not contain a number that is not above 0"):
        assert_attention(*call, **words, **descales)
    assert not np.isfinite(descales["v_descale"].numpy()).all()
