"""Attention that appends to pages of 8 bits, and makes a scale of each new token and kv head itself.

The caches of scales, [pages, size, Hkv], lie beside those of keys and values. The scale of a token is the largest
magnitude of its numbers over the largest code, at least 1e-6. Its codes are its numbers over that scale, rounded to the
nearest. Queries attend to codes times scales, as the caches have them after the call. vLLM's cache dtypes
``int8_per_token_head`` and ``fp8_per_token_head`` are like this.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, Quantiser, kernel

from .torch_append import DECLARED, places, write_to_pages
from .torch_paged import gathered
from .torch_tiled import CONTRACTS, SHAPES, Scores, online_softmax

#: Caches of scales, of keys and of values.
SCALE_CACHES = ("k_descale", "v_descale")
#: Least scale of a token.
LEAST = 1e-6
#: Largest code by the dtype of a cache.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


def quantises(cache: str) -> Contract:
    """Return the contract of a kernel with caches of this dtype."""
    steps: dict[str, Any] = {
        "format": cache,
        "block": 1,
        "over": "appended",
        "least_scale": LEAST,
        "division_error": 0.0,
    }
    made = tuple(Quantiser(of=name, **steps) for name in "kv")
    return replace(CONTRACTS["bfloat16"], quantisers=made)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return codes [B, n, Hkv, D] in a dtype of 8 bits and scales [B, n, Hkv] of new keys or values."""
    x, largest = x.float(), LARGEST[dtype]
    scale = (x.abs().amax(-1) / largest).clamp(min=LEAST)
    codes = (x / scale[..., None]).clamp(-largest, largest)
    return (codes if dtype.is_floating_point else codes.round()).to(dtype), scale


@kernel(
    framework="torch",
    dtypes=({"q": "bfloat16", "kv": "int8"}, {"q": "bfloat16", "kv": "float8_e4m3fn"}),
    contract={f"q:bfloat16,kv:{cache}": quantises(cache) for cache in ("int8", "float8_e4m3fn")},
    supports=(
        "scale",
        "causal",
        "causal_alignment",
        *SCALE_CACHES,
        "descale_by_head",
        "descale_by_key",
        *SHAPES,
        "lse",
    ),
    always=SCALE_CACHES,
    option_dtypes=dict.fromkeys(SCALE_CACHES, "float32"),
    conventions=DECLARED["conventions"],
    presentation="append_paged",
    devices=("cpu",),  # on a GPU PyTorch divides by a number as it multiplies by the reciprocal
    slowness=8.0,  # sequences are taken one after the other, in Python
)
def per_token_head(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_table: Tensor,
    cache_seqlens: Tensor,
    k_descale: Tensor,
    v_descale: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [B, n, Hq, D] to out [B, n, Hq, Dv], lse [B, Hq, n]: over caches [pages, size, Hkv, D] and new k, v.

    Codes and scales of new k, v [B, n, Hkv, D] are written to the caches first.
    """
    new, ends = places(cache_seqlens, k.shape[1]), cache_seqlens.long() + k.shape[1]
    (codes_k, of_k), (codes_v, of_v) = quantised(k, k_cache.dtype), quantised(v, v_cache.dtype)
    write_to_pages((k_cache, v_cache), (codes_k, codes_v), new, block_table)
    write_to_pages((k_descale, v_descale), (of_k, of_v), new, block_table)
    out, lse = q.new_empty(*q.shape[:3], v_cache.shape[-1]), q.new_empty(len(q), *q.shape[2:0:-1], dtype=torch.float32)
    for entry, end in enumerate(ends.tolist()):
        pages, queries = block_table[entry], q[entry].transpose(0, 1)[None]
        keys, values = (gathered(cache, pages, end).to(q.dtype) for cache in (k_cache, v_cache))
        of_k, of_v = (gathered(cache[..., None], pages, end) for cache in (k_descale, v_descale))
        scores = Scores(queries, keys, None, k_descale=of_k, v_descale=of_v, **options)
        found = online_softmax(scores, values, None)
        out[entry], lse[entry] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse
