"""Plain eager attention: matmul, softmax, matmul, each result stored, with autograd or with a backward pass by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel
from attn_spec.contract.presets import EAGER

from .parts import DTYPES, HALVES, finite, for_query_heads, hidden, online, tiles

#: The softmax reads and writes half, and is float32 inside.
SOFTMAX32 = replace(EAGER, softmax="work", exponent="natural")
OPTIONS = ("scale", "causal", "mask", "gqa", "dv", "cross")


def softmax32(s: Tensor, dark: Tensor) -> Tensor:
    """Compute the softmax in float32 over the visible keys; 0 in rows without any."""
    return s.masked_fill(dark, -math.inf).softmax(-1, dtype=torch.float32).masked_fill(dark, 0.0)


@kernel(
    framework="torch",
    dtypes=("float32", "bfloat16"),  # in float16 scores may overflow, and then a masked key has the largest
    contract=SOFTMAX32,
    supports=("scale", "causal", "bias", "softcap", "gqa", "dv", "cross", "backward"),
    conventions={"empty_row": "mean_of_v"},
)
def hf_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attend as Hugging Face's eager attention: kv heads by expand, the least finite number for a masked key."""
    B, Hkv, Sk, _ = k.shape
    group = q.shape[1] // Hkv
    k, v = (x[:, :, None].expand(B, Hkv, group, Sk, -1).reshape(B, Hkv * group, Sk, -1) for x in (k, v))
    s = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else torch.tanh(s / softcap) * softcap
    s = s if bias is None else s + bias
    least = torch.finfo(s.dtype).min
    s = s.clamp_min(least).masked_fill(hidden(q, k, causal=causal), least)
    return torch.matmul(torch.nn.functional.softmax(s, dim=-1, dtype=torch.float32).to(q.dtype), v)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(SOFTMAX32, scale_on="operands"),
    supports=(*OPTIONS, "window", "backward"),
)
def query_scaled_in_half(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **seen: Any) -> Tensor:
    """Attend with the query multiplied by the scale in its own format, as Llama-like and Whisper-like models do."""
    k, v = for_query_heads(k, q.shape[1]), for_query_heads(v, q.shape[1])
    s = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    return softmax32(s, hidden(q, k, **seen)).to(q.dtype) @ v


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=replace(SOFTMAX32, sink_reference="maximum"),
    supports=(*OPTIONS, "sinks", "backward"),
)
def sink_column(
    q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None = None, scale: float | None = None, **seen: Any
) -> Tensor:
    """Attend as GPT-OSS's eager attention: the sink is one more column of the scores, whose weight is dropped."""
    k, v = for_query_heads(k, q.shape[1]), for_query_heads(v, q.shape[1])
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    dark = hidden(q, k, **seen)
    if sinks is not None:
        s = torch.cat([s, sinks.to(s.dtype).expand(*s.shape[:3], 1)], dim=-1)
        dark = torch.cat([dark.expand(*s.shape[:3], -1), s[..., -1:] == -math.inf], dim=-1)
    return softmax32(s, dark)[..., : k.shape[2]].to(q.dtype) @ v


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=replace(SOFTMAX32, products="input", stored_scores="work"),
    supports=(*OPTIONS, "window", "backward"),
)
def products_in_half(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **seen: Any) -> Tensor:
    """Attend by products of tensors and their sums in float32, as kernels for one query at a time do."""
    k, v = for_query_heads(k, q.shape[1]), for_query_heads(v, q.shape[1])
    s = (q[..., None, :] * k[..., None, :, :]).sum(-1, dtype=torch.float32)
    p = softmax32(s * (q.shape[-1] ** -0.5 if scale is None else scale), hidden(q, k, **seen)).to(q.dtype)
    return (p[..., None] * v[..., None, :, :]).sum(-2, dtype=torch.float32).to(q.dtype)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(SOFTMAX32, scale_on="operands"),
    supports=("scale", "causal", "cross", "dv", "backward"),
)
def roots_of_the_scale(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False) -> Tensor:
    """Attend as Whisper does: the root of the scale multiplies q and k, each stored."""
    sigma = q.shape[-1] ** -0.5 if scale is None else scale
    s = (q * abs(sigma) ** 0.5) @ (k * math.copysign(abs(sigma) ** 0.5, sigma)).mT
    return softmax32(s, hidden(q, k, causal=causal)).to(q.dtype) @ v


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=SOFTMAX32,
    supports=("scale", "causal", "bias", "cross", "dv", "backward"),
)
def bloom(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> Tensor:
    """Attend as BLOOM does: baddbmm makes bias + scale q.k in one operation, on batch and heads as one axis."""
    shape = (*q.shape[:3], k.shape[2])
    sigma = q.shape[-1] ** -0.5 if scale is None else scale
    before = q.new_zeros(()) if bias is None else bias
    dark = hidden(q, k, causal=causal) | (before == -math.inf)
    before = before.masked_fill(before == -math.inf, 0.0).expand(shape).flatten(0, 1)
    s = torch.baddbmm(before, q.flatten(0, 1), k.flatten(0, 1).mT, alpha=sigma).view(shape)
    return torch.bmm(softmax32(s, dark).to(q.dtype).flatten(0, 1), v.flatten(0, 1)).unflatten(0, shape[:2])


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(EAGER, exponent="natural"),
    supports=(*OPTIONS, "softcap", "lse"),
)
def stored_weights(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, softcap: float | None = None, **seen: Any
) -> tuple[Tensor, Tensor]:
    """Attend with every result in half, and the softmax spelled out: maximum, exp, sum, division."""
    m, l, p = _half_weights(_half_scores(q, k, scale, softcap), hidden(q, k, **seen))
    return p @ for_query_heads(v, q.shape[1]), (m + torch.log(l)).squeeze(-1)


def _half_scores(q: Tensor, k: Tensor, scale: float | None, softcap: float | None) -> Tensor:
    """Compute scores, each step stored in half, masked keys included."""
    s = q @ for_query_heads(k, q.shape[1]).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return s if softcap is None else torch.tanh(s / softcap) * softcap


def _half_weights(s: Tensor, dark: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute maximum, row sum and weights of scores, each step stored in half."""
    m = finite(s.masked_fill(dark, -math.inf).amax(-1, keepdim=True))
    w = torch.exp(s - m).masked_fill(dark, 0.0)
    l = w.sum(-1, keepdim=True)
    return m, l, w / torch.where(l == 0, 1, l)


@stored_weights.backward
def _stored_weights(
    dout: Tensor, *saved: Tensor, scale: float | None = None, softcap: float | None = None, **seen: Any
) -> tuple[Tensor, ...]:
    """Compute gradients from the weights that the forward stored, dS = P dP - P D; kv heads are summed last."""
    q, k, v, _, _ = saved
    (Hkv, heads), sigma = (k.shape[1], q.shape[1]), q.shape[-1] ** -0.5 if scale is None else scale
    s = _half_scores(q, k, scale, softcap)
    _, _, p = _half_weights(s, hidden(q, k, **seen))
    p_dp = p * (dout @ for_query_heads(v, heads).mT)
    ds = (p_dp.float() - p.float() * p_dp.float().sum(-1, keepdim=True)).to(q.dtype)
    if softcap is not None:
        ds = ds * (1 - (s / softcap) ** 2)
    ds = ds * sigma
    dk, dv = (x.unflatten(1, (Hkv, heads // Hkv)).sum(2) for x in (ds.mT @ q, p.mT @ dout))
    return ds @ for_query_heads(k, heads), dk, dv


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(SOFTMAX32, kv_tile=32, lse="work"),
    supports=("scale", "causal", "bias", "cross", "dv", "lse"),
)
def compiled_eager(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as compiled eager attention does: the row sum comes from one pass, tile by tile, over stored scores."""
    m, l, s = _compiled(q, k, bias, scale, causal=causal)
    p = torch.exp(s - finite(m)) / torch.where(l == 0, 1.0, l)
    return p.to(q.dtype) @ v, (finite(m) + torch.log(l)).squeeze(-1)


def _compiled(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum and row sum of scores that were stored in half, and those scores."""
    s = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = (s if bias is None else s + bias).float().masked_fill(hidden(q, k, causal=causal), -math.inf)
    return *online((s[..., cols] for cols in tiles(k.shape[2], 32)), q), s


@compiled_eager.backward
def _compiled_eager(
    dout: Tensor, *saved: Tensor, bias: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, ...]:
    """Compute the weights again, from the saved maximum and row sum; dP is stored, dS is P dP - P D in one pass."""
    q, k, v, _, _ = saved
    m, l, s = _compiled(q, k, bias, scale, causal=causal)
    p = torch.exp(s - finite(m)) / torch.where(l == 0, 1.0, l)
    weighted = p * (dout @ v.mT).float()
    da = (weighted - p * weighted.sum(-1, keepdim=True)).to(q.dtype)
    ds = da * (q.shape[-1] ** -0.5 if scale is None else scale)
    found = (ds @ k, ds.mT @ q, p.to(q.dtype).mT @ dout)
    return found if bias is None else (*found, da.sum_to_size(bias.shape))


#: Nothing is stored between the operations, which are torch's.
WHOLE = Contract(
    exponent="natural",
    matrix_rounding=None,
    multiplicands="work",
    exp_error=32,
    probabilities="work",
    score_gradients="work",
    normalize="before_product",
    kv_tile=None,
    backward_weights="stored",
    delta="probabilities",
)


@kernel(
    framework="torch",
    dtypes=("float64", "float32"),
    contract={"float64": replace(WHOLE, exp_error=8, subnormals="kept"), "float32": WHOLE},
    supports=(*OPTIONS, "window", "bias", "softcap", "backward"),
)
def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    **seen: Any,
) -> Tensor:
    """Attend by two einsums and a softmax with autograd; a group of query heads is an axis of its own."""
    Hkv, D = k.shape[1], k.shape[-1]
    grouped = q.unflatten(1, (Hkv, -1))
    s = torch.einsum("bhgqd,bhkd->bhgqk", grouped, k).flatten(1, 2) * (D**-0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    dark = hidden(q, k, **seen) | (s == -math.inf)
    p = s.masked_fill(dark, -math.inf).softmax(-1).masked_fill(dark, 0.0)
    return torch.einsum("bhgqk,bhkv->bhgqv", p.unflatten(1, (Hkv, -1)), v).flatten(1, 2)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=WHOLE,
    supports=("scale", "dv", "cross", "lse", "backward", "lse_backward"),
)
def softmax_and_logsumexp(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Call torch twice on one score: the softmax divides by its own row sum, logsumexp finds the sum again."""
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return s.softmax(-1) @ v, s.logsumexp(-1)
