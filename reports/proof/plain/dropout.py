"""Plain attention with dropout, as models write it and as fused kernels do, with a mask that is given or drawn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel

from .eager import SOFTMAX32, softmax32
from .parts import DTYPES, HALVES, for_query_heads, hidden

DROPOUT = ("dropout_keep", "dropout_p")
SEEN = ("causal", "mask", "cross", "dv", "gqa")


def shares(q: Tensor, k: Tensor, **seen: Any) -> Tensor:
    """Compute weights [B, Hq, Sq, Sk] in float32."""
    s = q @ for_query_heads(k, q.shape[1]).mT * (1 / math.sqrt(q.shape[-1]))
    return softmax32(s, hidden(q, k, **seen))


@kernel(framework="torch", dtypes=HALVES, contract=SOFTMAX32, supports=(*DROPOUT, *SEEN, "backward"))
def dropped_in_half(
    q: Tensor, k: Tensor, v: Tensor, *, dropout_keep: Tensor | None = None, dropout_p: float | None = None, **seen: Any
) -> Tensor:
    """Drop after the cast, as Hugging Face's eager attention: torch's dropout is a product with noise in half."""
    p = shares(q, k, **seen).to(q.dtype)
    if dropout_keep is not None:
        p = p * (dropout_keep.to(q.dtype) / (1 - (dropout_p or 0.0)))
    return p @ for_query_heads(v, q.shape[1])


@kernel(framework="torch", dtypes=("float32", *HALVES), contract=SOFTMAX32, supports=(*DROPOUT, *SEEN, "backward"))
def dropped_in_float32(
    q: Tensor, k: Tensor, v: Tensor, *, dropout_keep: Tensor | None = None, dropout_p: float | None = None, **seen: Any
) -> Tensor:
    """Drop between the softmax and the cast, as Megatron's fused softmax does."""
    p = shares(q, k, **seen)
    if dropout_keep is not None:
        p = torch.where(dropout_keep, p / (1 - (dropout_p or 0.0)), 0.0)
    return p.to(q.dtype) @ for_query_heads(v, q.shape[1])


@kernel(framework="torch", dtypes=DTYPES, contract="fused", supports=(*DROPOUT, "lse", "cross", "dv", "gqa"))
def output_raised(
    q: Tensor, k: Tensor, v: Tensor, *, dropout_keep: Tensor | None = None, dropout_p: float | None = None
) -> tuple[Tensor, Tensor]:
    """Clear weights after their cast, divide the output by the row sum and multiply it, as FlashAttention-2 does."""
    wide = torch.promote_types(q.dtype, torch.float32)
    s = q.to(wide) @ for_query_heads(k, q.shape[1]).to(wide).mT * (1 / math.sqrt(q.shape[-1]))
    w = torch.exp(s - s.amax(-1, keepdim=True))
    p = w.to(q.dtype)
    p = p if dropout_keep is None else p.masked_fill(~dropout_keep, 0.0)
    out = p.to(wide) @ for_query_heads(v, q.shape[1]).to(wide)
    out = out / w.sum(-1, keepdim=True) * (1 / (1 - (dropout_p or 0.0)))
    return out.to(q.dtype), torch.logsumexp(s, -1)


@output_raised.backward
def gradients_raised(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *outputs: Tensor,
    dropout_keep: Tensor | None = None,
    dropout_p: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cast (1 - p) dS, of delta times 1 - p, and multiply its products at the end, as FlashAttention-2 does."""
    out, lse = outputs
    wide, heads, scale = lse.dtype, k.shape[1], 1 / math.sqrt(q.shape[-1])
    keys, values = (for_query_heads(x, q.shape[1]).to(wide) for x in (k, v))
    kept = torch.tensor(1 - (dropout_p or 0.0), dtype=wide)
    p = torch.exp(q.to(wide) @ keys.mT * scale - lse[..., None])
    delta = (dout.to(wide) * out.to(wide)).sum(-1, keepdim=True) * kept
    dp, dropped = dout.to(wide) @ values.mT, p
    if dropout_keep is not None:
        dp, dropped = dp.masked_fill(~dropout_keep, 0.0), p.masked_fill(~dropout_keep, 0.0)
    ds, weights = (x.to(q.dtype).to(wide) for x in (p * (dp - delta), dropped))
    dq, raised = ds @ keys * (scale / kept), (ds.mT @ q.to(wide) * (scale / kept), weights.mT @ dout.to(wide) / kept)
    dk, dv = (x.unflatten(1, (heads, -1)).sum(2) for x in raised)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


@kernel(framework="torch", dtypes=HALVES, contract=SOFTMAX32, supports=("dropout_by_chance", *SEEN, "backward"))
def drawn_in_half(q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0, **seen: Any) -> Tensor:
    """Drop by torch.nn.functional.dropout after the cast, as Hugging Face's eager attention calls it."""
    p = torch.nn.functional.dropout(shares(q, k, **seen).to(q.dtype), dropout_p)
    return p @ for_query_heads(v, q.shape[1])


@kernel(
    framework="torch",
    dtypes=("float32", *HALVES),
    contract=SOFTMAX32,
    supports=("dropout_by_chance", "dropout_seed", *SEEN, "backward"),
)
def drawn_in_float32(
    q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0, seed: int | None = None, **seen: Any
) -> Tensor:
    """Compare numbers of a generator with a seed, or of the common one, with p between the softmax and the cast."""
    p = shares(q, k, **seen)
    generator = None if seed is None else torch.Generator(q.device).manual_seed(seed)
    drawn = torch.rand(p.shape, generator=generator, device=q.device)
    p = torch.where(drawn >= dropout_p, p / (1 - dropout_p), 0.0)
    return p.to(q.dtype) @ for_query_heads(v, q.shape[1])
