"""Attention in Triton, forward and backward: online softmax over tiles, the score matrix is never stored.

Algorithms 1 and 2 of FlashAttention-2 (Dao, arXiv 2307.08691). Forward, one program per tile of queries folds tiles
of keys. Backward, each tile of weights is computed again from the log-sum-exp, p = exp(s - lse), and

    dp = dout v^T    delta = rowsum(dout * out) - dlse    da = p (dp - delta)    ds = da (1 - tanh^2) under a softcap
    dq = scale ds k    dk = scale ds^T q    dv = p^T dout    dbias = da summed over the axes the bias was broadcast on

where dropout multiplies p, in p v and p^T dout, and dp by c = keep / (1 - dropout_p).
One program per tile of queries finds delta and sums dq; then one per tile of keys sums dk and dv over the queries of
all heads that read it: every sum has one owner and one order, without atomics. Only a bias has da written out whole.
Every mask by position is one band, i + offset - left <= j <= i + offset + right, with causal as
right = 0. The left edge hides no sink, j < sinks, and a chunk of keys may cut the band. Tiles outside the band are
never read, except those of sinks. A kernel receives tensors as `triton_tiles` hands them over, q and k and their
gradients in parts of WIDTHS columns (`triton_rotary`), the angles = (of queries, of keys) that turn them, geometry =
(Hq, Hkv, Sq, Sk, offset, left, right, sinks, chunk, lift) and scoring = (scale, softcap, mask, bias, slopes, keep,
kept), kept being 1 / (1 - dropout_p).
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec import kernel

from .rotary import OPTIONS as ROTARY
from .rotary import first_position

# By way of the tiles, which choose the interpreter before they import triton.
from .triton_rotary import Turn, inner_products, load_rows, no_rows, store_gradient, weighted_rows
from .triton_tiles import (
    INTERPRETED,
    format_of,
    load_tile,
    online_step,
    padded,
    part,
    product,
    store_tile,
    strided,
    tl,
    triton,
)
from .visibility import OPTIONS as BY_POSITION

INTERPRETER_TILES = {"BLOCK_Q": 32, "BLOCK_K": 32}
# (BLOCK_Q, BLOCK_K, warps, stages); the first fits float32 heads of 128 in 64 KiB of shared memory, forward and
# backward, and in 80 KiB where they are turned. Tiles of one stage wait for each load; of two, the next is on its way.
TILES = [
    triton.Config({"BLOCK_Q": block_q, "BLOCK_K": block_k}, num_warps=warps, num_stages=stages)
    for block_q, block_k, warps, stages in [
        (16, 16, 4, 1), (32, 32, 4, 1), (64, 32, 4, 1), (64, 64, 4, 1), (64, 64, 4, 2), (128, 64, 8, 1), (128, 64, 8, 2)
    ]
]  # fmt: skip
# A GPU measures them when it first meets a format with head dimensions in long sequences, except those that its
# shared memory or registers do not hold, which Triton refuses to launch. To compile them all takes longer than short
# sequences ever run, which have the first.
SHORT = 256
tuned = (lambda jitted: jitted) if INTERPRETED else triton.autotune(TILES, key=["FORMAT", "WIDTHS", "Dv"])


def chosen() -> dict[str, str]:
    """Return the tiles by kernel with format and head dimensions: a GPU's choices so far, or the interpreter's."""
    if INTERPRETED:
        return {"interpreted": str(INTERPRETER_TILES)}
    tuners: tuple[Any, ...] = forward, backward_queries, backward_keys
    return {
        f"{tuner.fn.__name__} {' '.join(map(str, key[:3]))}": str(config)
        for tuner in tuners
        for key, config in tuner.cache.items()
    }


@part
def chunk_start(place, geometry):
    """Compute the first key of the chunk of each place, below 0 for places before key 0.

    The lift, a multiple of the chunk, makes the remainder that of a number of 0 or more: others have another sign.
    """
    return place - (place + geometry[9]) % geometry[8]


@part
def key_tiles(first, geometry, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """Compute the tiles of keys that queries from ``first`` on see: starts and numbers of those of sinks and the rest.

    Tiles of sinks are those before the window, as far as the chunk reaches.
    """
    _, _, _, Sk, offset, left, right, sinks, chunk, _ = geometry
    end = tl.minimum(first + BLOCK_Q + offset + right, Sk)
    front, begin = first * 0, tl.maximum(first + offset - left, 0)
    if chunk is not None:
        front = tl.maximum(chunk_start(first + offset, geometry), 0)
        begin = tl.maximum(begin, front)
        end = tl.minimum(end, chunk_start(first + BLOCK_Q - 1 + offset, geometry) + chunk)
    front, begin = front // BLOCK_K * BLOCK_K, begin // BLOCK_K * BLOCK_K
    early = tl.maximum(tl.cdiv(tl.minimum(tl.minimum(begin, end), sinks) - front, BLOCK_K), 0)
    return front, early, begin, tl.maximum(tl.cdiv(end - begin, BLOCK_K), 0)


@part
def score_tile(q_i, k_j, b, h, i, j, geometry, scoring, FORMAT: tl.constexpr):
    """Compute the scores of queries i and keys j, -inf where masked, and ds/dx for x before the softcap."""
    _, _, Sq, Sk, offset, left, right, sinks, chunk, _ = geometry
    scale, softcap, mask, bias, slopes, _, _ = scoring
    s = inner_products(q_i, k_j, FORMAT) * scale
    slope = 1.0
    if softcap is not None:
        t = 2 * tl.sigmoid(2 * s / softcap) - 1  # tanh(s / softcap)
        s, slope = softcap * t, 1 - t * t
    if bias is not None:
        s += load_tile(bias, b, h, i, j, Sq, Sk).to(tl.float32)
    distance = j[None, :] - i[:, None] - offset
    if slopes is not None:
        base, strides = slopes
        s -= tl.load(base + b * strides[0] + h * strides[1]).to(tl.float32) * tl.abs(distance).to(tl.float32)
    allowed = ((distance >= -left) | (j[None, :] < sinks)) & (distance <= right)
    allowed &= (i[:, None] < Sq) & (j[None, :] < Sk)
    if chunk is not None:
        start = chunk_start(i + offset, geometry)[:, None]
        allowed &= (j[None, :] >= start) & (j[None, :] < start + chunk)
    if mask is not None:
        allowed &= load_tile(mask, b, h, i, j, Sq, Sk) != 0
    return tl.where(allowed, s, -float("inf")), slope


@part
def dropped(x, b, h, i, j, geometry, scoring):
    """Compute c x for weights of queries i and keys j, or for their gradients."""
    keep, kept = scoring[5], scoring[6]
    if keep is not None:
        x = tl.where(load_tile(keep, b, h, i, j, geometry[2], geometry[3]) != 0, x * kept, 0.0)
    return x


@tuned
@triton.jit
def forward(
    q, k, v, out, lse, angles, geometry, scoring,
    WIDTHS: tl.constexpr, Dv: tl.constexpr, FORMAT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [BLOCK_Q, Dv] and lse [BLOCK_Q] for query tile program_id(1) of batch and head program_id(0)."""
    Hq, Hkv, Sq, Sk = geometry[0], geometry[1], geometry[2], geometry[3]
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    first = tl.program_id(1) * BLOCK_Q
    i, c = first.to(tl.int64) + tl.arange(0, BLOCK_Q), tl.arange(0, padded(Dv))
    q_i = load_rows(q, angles[0], b, h, i, Sq, WIDTHS, FORMAT)

    m, l = tl.full([BLOCK_Q], -float("inf"), tl.float32), tl.full([BLOCK_Q], 0, tl.float32)
    acc = tl.full([BLOCK_Q, padded(Dv)], 0, tl.float32)
    front, early, begin, late = key_tiles(first, geometry, BLOCK_Q, BLOCK_K)
    for visit in range(early + late):
        start = tl.where(visit < early, front, begin - early * BLOCK_K) + visit * BLOCK_K
        j = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_j = load_rows(k, angles[1], b, h // (Hq // Hkv), j, Sk, WIDTHS, FORMAT)
        v_j = load_tile(v, b, h // (Hq // Hkv), j, c, Sk, Dv)
        s, _ = score_tile(q_i, k_j, b, h, i, j, geometry, scoring, FORMAT)
        m, l, alpha, p = online_step(s, m, l)
        acc = product(dropped(p, b, h, i, j, geometry, scoring), v_j, acc * alpha[:, None], FORMAT)

    l = tl.where(l == 0, 1.0, l)  # a query that saw no key: out = 0 and lse = -inf
    store_tile(tl.div_rn(acc, l[:, None]), out, b, h, i, c, Sq, Dv)
    tl.store(lse + (b * Hq + h) * Sq + i, m + tl.log(l), mask=i < Sq)


@part
def gradient_tile(q_i, k_j, v_j, dout_i, lse, delta, b, h, i, j, geometry, scoring, FORMAT: tl.constexpr):
    """Compute c p, da and ds of queries i and keys j again: exactly zero where masked, whatever the LSE."""
    s, slope = score_tile(q_i, k_j, b, h, i, j, geometry, scoring, FORMAT)
    p = tl.exp(s - tl.where(lse == -float("inf"), 0.0, lse)[:, None])  # an empty row: exp(-inf - 0) = 0
    dp = dropped(product(dout_i, tl.trans(v_j), None, FORMAT), b, h, i, j, geometry, scoring)
    da = tl.where(s == -float("inf"), 0.0, p * (dp - delta[:, None]))
    return dropped(p, b, h, i, j, geometry, scoring), da, da * slope


@tuned
@triton.jit
def backward_queries(
    q, k, v, out, dout, lse, dlse, delta, dq, da, angles, geometry, scoring,
    WIDTHS: tl.constexpr, Dv: tl.constexpr, FORMAT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write delta, dq and da of query tile program_id(1) of batch and head program_id(0)."""
    Hq, Hkv, Sq, Sk = geometry[0], geometry[1], geometry[2], geometry[3]
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    first = tl.program_id(1) * BLOCK_Q
    i, c = first.to(tl.int64) + tl.arange(0, BLOCK_Q), tl.arange(0, padded(Dv))
    q_i = load_rows(q, angles[0], b, h, i, Sq, WIDTHS, FORMAT)
    dout_i = load_tile(dout, b, h, i, c, Sq, Dv)
    rows = (b * Hq + h) * Sq + i
    lse_i = tl.load(lse + rows, mask=i < Sq, other=0)
    delta_i = tl.sum(dout_i.to(tl.float32) * load_tile(out, b, h, i, c, Sq, Dv).to(tl.float32), 1)
    if dlse is not None:
        delta_i -= tl.load(dlse + rows, mask=i < Sq, other=0)
    tl.store(delta + rows, delta_i, mask=i < Sq)

    acc = no_rows(BLOCK_Q, WIDTHS)
    front, early, begin, late = key_tiles(first, geometry, BLOCK_Q, BLOCK_K)
    for visit in range(early + late):
        start = tl.where(visit < early, front, begin - early * BLOCK_K) + visit * BLOCK_K
        j = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_j = load_rows(k, angles[1], b, h // (Hq // Hkv), j, Sk, WIDTHS, FORMAT)
        v_j = load_tile(v, b, h // (Hq // Hkv), j, c, Sk, Dv)
        _, da_ij, ds = gradient_tile(q_i, k_j, v_j, dout_i, lse_i, delta_i, b, h, i, j, geometry, scoring, FORMAT)
        if da is not None:
            store_tile(da_ij, da, b, h, i, j, Sq, Sk)
        acc = weighted_rows(ds, k_j, acc, FORMAT)
    store_gradient(acc, scoring[0], dq, angles[0], b, h, i, Sq, WIDTHS)


@tuned
@triton.jit
def backward_keys(
    q, k, v, dout, lse, delta, dk, dv, angles, geometry, scoring,
    WIDTHS: tl.constexpr, Dv: tl.constexpr, FORMAT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write dk [BLOCK_K, D] and dv [BLOCK_K, Dv] for key tile program_id(1) of batch and kv head program_id(0)."""
    Hq, Hkv, Sq, Sk, offset, left, right, sinks, chunk, _lift = geometry
    b, h_kv = (tl.program_id(0) // Hkv).to(tl.int64), (tl.program_id(0) % Hkv).to(tl.int64)
    first = tl.program_id(1) * BLOCK_K
    j, c = first.to(tl.int64) + tl.arange(0, BLOCK_K), tl.arange(0, padded(Dv))
    k_j = load_rows(k, angles[1], b, h_kv, j, Sk, WIDTHS, FORMAT)
    v_j = load_tile(v, b, h_kv, j, c, Sk, Dv)

    dk_acc, dv_acc = no_rows(BLOCK_K, WIDTHS), tl.full([BLOCK_K, padded(Dv)], 0, tl.float32)
    begin = tl.maximum(first - offset - right, 0) // BLOCK_Q * BLOCK_Q
    end = tl.minimum(tl.where(first < sinks, Sq, first + BLOCK_K - offset + left), Sq)
    if chunk is not None:
        begin = tl.maximum(chunk_start(first, geometry) - offset, begin) // BLOCK_Q * BLOCK_Q
        end = tl.minimum(chunk_start(first + BLOCK_K - 1, geometry) + chunk - offset, end)
    for h in range(h_kv * (Hq // Hkv), (h_kv + 1) * (Hq // Hkv)):
        for start in range(begin, end, BLOCK_Q):
            i = start + tl.arange(0, BLOCK_Q).to(tl.int64)
            q_i = load_rows(q, angles[0], b, h, i, Sq, WIDTHS, FORMAT)
            dout_i = load_tile(dout, b, h, i, c, Sq, Dv)
            rows = (b * Hq + h) * Sq + i
            lse_i, delta_i = tl.load(lse + rows, mask=i < Sq, other=0), tl.load(delta + rows, mask=i < Sq, other=0)
            p, _, ds = gradient_tile(q_i, k_j, v_j, dout_i, lse_i, delta_i, b, h, i, j, geometry, scoring, FORMAT)
            dv_acc = product(tl.trans(p), dout_i, dv_acc, FORMAT)
            dk_acc = weighted_rows(tl.trans(ds), q_i, dk_acc, FORMAT)
    store_gradient(dk_acc, scoring[0], dk, angles[1], b, h_kv, j, Sk, WIDTHS)
    store_tile(dv_acc, dv, b, h_kv, j, c, Sk, Dv)


def arguments(
    q: Tensor, k: Tensor, v: Tensor, *, tf32: bool, scale: float | None = None, causal: bool = False,
    causal_alignment: str = "top_left", window: tuple[int | None, int | None] | None = None,
    window_sinks: int | None = None, attention_chunk: int | None = None,
    mask: Tensor | None = None, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    softcap: float | None = None, rotary: str | None = None, rotary_base: float | None = None,
    rotary_dim: int | None = None, rotary_query_positions: Tensor | None = None,
    rotary_key_positions: Tensor | None = None, dropout_keep: Tensor | None = None,
    dropout_p: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what every kernel receives, by name."""
    (B, Hq, Sq, D), (_, Hkv, Sk, Dv) = q.shape, v.shape
    offset = first_position(causal_alignment, Sq, Sk)
    left, right = (Sq + Sk if side is None else min(side, Sq + Sk) for side in window or (None, None))
    # A chunk of all keys and aligned places is as good as a longer one, whose length may need more than 32 bits.
    chunk = None if attention_chunk is None else min(attention_chunk, max(Sq + Sk, 1))
    lift = 0 if chunk is None else -(-Sq // chunk) * chunk
    scale = 1 / math.sqrt(D) if scale is None else scale
    mask, bias, keep = (None if x is None else x.expand(B, Hq, Sq, Sk) for x in (mask, bias, dropout_keep))
    slopes = None if alibi_slopes is None else alibi_slopes.expand(B, Hq, 1, 1)
    kept = None if keep is None else 1 / (1 - (dropout_p or 0.0))
    turn = Turn(D, rotary, rotary_base, rotary_dim)
    return {
        "q": turn.parts(q), "k": turn.parts(k), "v": strided(v),
        "turn": turn,
        "angles": (turn.angles(q, rotary_query_positions, offset), turn.angles(k, rotary_key_positions, 0)),
        "geometry": (
            *(Hq, Hkv, Sq, Sk, offset, left, 0 if causal else right),
            *(min(window_sinks or 0, Sk), chunk, lift),
        ),
        "scoring": (scale, softcap, *map(strided, (mask, bias, slopes, keep)), kept),
        "WIDTHS": turn.widths, "Dv": Dv, "FORMAT": "tf32" if tf32 else format_of(q),
    }  # fmt: skip


def launch(jitted: Any, programs: int, length: int, block: str, known: dict[str, Any]) -> None:
    """Run a kernel on the arguments of ``known`` that it takes, in programs for every tile of the length."""
    taken = {name: x for name, x in known.items() if name in jitted.arg_names}
    # Products and sums in one rounding, which is the default of some versions of Triton and not of others.
    taken |= INTERPRETER_TILES if INTERPRETED else {"enable_fp_fusion": True}
    # Triton launches on the current device, whatever device the tensors are on. The interpreter computes in NumPy,
    # which warns where hardware silently answers Inf or NaN.
    with torch.cuda.device_of(known["v"][0]), np.errstate(over="ignore", invalid="ignore"):
        if programs and length:
            if not INTERPRETED and max(known["geometry"][2:4]) <= SHORT:
                jitted, taken = jitted.fn, taken | TILES[0].all_kwargs()
            jitted[lambda tiles: (programs, triton.cdiv(length, tiles[block]))](**taken)


DECLARED: dict[str, Any] = {
    "framework": "torch",
    "supports": (
        *("scale", *BY_POSITION, "mask", "bias", "alibi_slopes", "softcap", *ROTARY),
        *("dropout_keep", "dropout_p"),
        *("gqa", "dv", "cross", "empty", "lse", "lse_backward"),
    ),
    # Compiled anew for strides that are 1 or a multiple of 16, a kernel adds in another order, and a batch entry alone
    # may have other strides than in its batch.
    "conventions": {"empty_row": "zero", "masked_nonfinite": "may_leak", "batch_invariant": INTERPRETED},
    "devices": ("cuda", "cpu") if INTERPRETED else ("cuda",),
    "slowness": 32 if INTERPRETED else 1,
    # Each set of options and each new head dimension is compiled, in seconds, and the latter for every one of TILES
    # where sequences are long.
    "signatures": None if INTERPRETED else 4,
}


@kernel(dtypes=("float32", "float16", "bfloat16"), contract="fused", **DECLARED)
def attention(q: Tensor, k: Tensor, v: Tensor, *, tf32: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
    """Multiply float32 in full precision; half precision on matrix units, accumulated in float32."""
    (B, Hq, Sq, _), known = q.shape, arguments(q, k, v, tf32=tf32, **options)
    out, lse = known["v"][0].new_empty(B, Hq, Sq, v.shape[-1]), q.new_empty(B, Hq, Sq, dtype=torch.float32)
    launch(forward, B * Hq, Sq, "BLOCK_Q", known | {"out": strided(out), "lse": lse})
    return out.to(q.dtype), lse


@attention.backward
def gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    *, dlse: Tensor | None = None, tf32: bool = False, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return dq, dk, dv and, if there is a bias, dbias, each of the shape and dtype of its input."""
    (B, Hq, Sq, _), (_, Hkv, Sk, _), known = q.shape, k.shape, arguments(q, k, v, tf32=tf32, **options)
    dq, dk, dv = (known["v"][0].new_empty(x.shape) for x in (q, k, v))
    da = None if options.get("bias") is None else q.new_zeros(B, Hq, Sq, Sk, dtype=torch.float32)
    tensors = {"out": out, "dout": dout, "dv": dv, "da": da}
    rows = {"lse": lse, "dlse": dlse, "delta": torch.empty_like(lse)}
    known |= {name: strided(x) for name, x in tensors.items()}
    known |= {"dq": known["turn"].parts(dq), "dk": known["turn"].parts(dk)}
    known |= {name: None if x is None else x.contiguous() for name, x in rows.items()}
    launch(backward_queries, B * Hq, Sq, "BLOCK_Q", known)
    launch(backward_keys, B * Hkv, Sk, "BLOCK_K", known)
    dbias = () if da is None else (da.sum_to_size(options["bias"].shape),)
    return tuple(x.to(q.dtype) for x in (dq, dk, dv, *dbias))


@kernel(dtypes=("float32",), contract="tf32", **DECLARED)
def attention_tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Multiply float32 on tensor cores, which truncate each fraction to 10 bits (the interpreter reads all 23)."""
    return attention(q, k, v, tf32=True, **options)


@attention_tf32.backward
def gradients_tf32(*saved: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Multiply as the forward pass did."""
    return gradients(*saved, tf32=True, **options)
