"""Functions with the signatures of flash-attention 2 and 3 that append to a cache, written in PyTorch."""
# ruff: noqa: PLR0917 -- the parameters are those of the libraries

import torch

from tests.kernels.signatures.own_functions import attend, descaled, each, of_entry, of_pair


def rotated(x, first, cos, sin, *, pairs):
    """Rotate x [B, S, H, D] by positions from ``first`` [B] on; ``pairs`` has neighbours as pairs, else halves."""
    if cos is None or x is None:
        return x
    place = first.long()[:, None] + torch.arange(x.shape[1])
    c, s = (table[place][:, :, None] for table in (cos, sin))
    turned, rest = x[..., : 2 * c.shape[-1]], x[..., 2 * c.shape[-1] :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if pairs else turned.chunk(2, -1)
    one, other = a * c - b * s, a * s + b * c
    both = torch.stack((one, other), -1).flatten(-2) if pairs else torch.cat((one, other), -1)
    return torch.cat((both, rest), -1)


def with_cache(
    q,
    caches,
    new,
    before,
    *,
    rows=None,
    leftpad=None,
    table=None,
    slopes=None,
    empty_lse,
    turn=(None, None),
    descales=(None,) * 3,
    **masking,
):
    """Append new keys and values in place, and return out [B, S, Hq, D] and the natural LSE [B, Hq, S].

    ``turn`` has the tables of cosines and sines, and whether a pair is two neighbours.
    """
    found, (cos, sin, *pairs) = [], turn
    q, key = (rotated(x, before, cos, sin, pairs=pairs == [True]) for x in (q, new[0]))
    new = () if key is None else (key, new[1])
    for b, first in enumerate(before.tolist()):
        end, start = first + (key.shape[1] if new else 0), 0 if leftpad is None else int(leftpad[b])
        place = torch.arange(end)
        row = torch.full_like(place, b if rows is None else int(rows[b]))
        if table is not None:
            size = caches[0].shape[1]
            row, place = table[b].long()[place // size], place % size
        for cache, x in zip(caches, new, strict=False):
            cache[row[first:], place[first:]] = x[b]
        keys, values = (cache[row[start:], place[start:]] for cache in caches)
        real = descaled(q[b], keys, values, descales, b)
        found.append(attend(*real, slopes=of_entry(slopes, b), **masking))
    return each(found, q, empty_lse=empty_lse)


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    lies = {"rows": cache_batch_idx, "leftpad": cache_leftpad, "table": block_table, "slopes": alibi_slopes}
    lies["turn"] = (rotary_cos, rotary_sin, rotary_interleaved)
    new = (k, v)
    out, lse = with_cache(q, (k_cache, v_cache), new, cache_seqlens, empty_lse=torch.inf, **lies, **masking)
    return (out, lse) if return_softmax_lse else out


def flash_attn_3_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    masking = {"scale": softmax_scale, "causal": causal, "window": of_pair(window_size), "softcap": softcap}
    lies = {"rows": cache_batch_idx, "leftpad": cache_leftpad, "table": page_table, "chunk": attention_chunk}
    lies |= {"turn": (rotary_cos, rotary_sin, rotary_interleaved), "descales": (q_descale, k_descale, v_descale)}
    new = (k, v)
    out, lse = with_cache(q, (k_cache, v_cache), new, cache_seqlens, empty_lse=-torch.inf, **lies, **masking)
    return (out, lse) if return_softmax_lse else out
