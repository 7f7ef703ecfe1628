"""Attention in tiles of keys, forward and backward, as a torch.autograd.Function made of plain PyTorch operations.

Forward: each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalized output acc. When
a tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention (arXiv 2205.14135).

A sink z is where a row starts, with m = z and l = 1.

Backward: only q, k, v, bias, sinks, out and lse were saved. Each tile of weights is computed again, p = exp(s - lse),
and

    dp = dout v^T    delta = rowsum(dout * out) - dlse    da = p (dp - delta)    ds = da (1 - tanh^2) under a softcap
    dq = scale ds k    dk = scale ds^T q    dv = p^T dout    dbias = da summed over the axes the bias was broadcast on
    dsinks = -exp(z - lse) delta summed over rows, batch entries, and heads that share a sink

as in appendix B.2 of FlashAttention; dropout and descales of v multiply p, in p v and p^T dout, and dp by c = v_descale
keep / (1 - dropout_p). Descales of q and k multiply s, and da with its slope. p and ds are rounded to the dtype of q
before they are multiplied; sums are kept in float32.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_spec import kernel
from attn_spec.contract.presets import PRESETS

from .lengths import PADDED, behind_padding, first_aligned, within
from .rotary import OPTIONS as ROTARY
from .torch_rotary import places, turned
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

KV_TILE = 32
OPTIONS = ("scale", *BY_POSITION, "mask", "bias", "alibi_slopes", "softcap", "sinks", *ROTARY, *PADDED)
DROPOUT = ("dropout_keep", "dropout_p")
DESCALES = ("q_descale", "k_descale", "v_descale")
DESCALE_SHAPES = ("descale_by_head", "descale_by_key")
SHAPES = ("gqa", "dv", "cross", "empty")
#: Arithmetic by dtype.
CONTRACTS = {
    "float64": replace(PRESETS["fp64"], value_descale_on="probabilities"),
    **dict.fromkeys(("float32", "float16", "bfloat16"), replace(PRESETS["fused"], value_descale_on="probabilities")),
}


class Scores:
    """The scores of any tile of keys: what both passes compute and neither keeps."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        bias: Tensor | None,
        *,
        scale: float | None = None,
        causal_alignment: str = "top_left",
        mask: Tensor | None = None,
        seqused_q: Tensor | None = None,
        seqused_k: Tensor | None = None,
        leftpad_k: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
        softcap: float | None = None,
        rotary: str | None = None,
        rotary_base: float | None = None,
        rotary_dim: int | None = None,
        rotary_query_positions: Tensor | None = None,
        rotary_key_positions: Tensor | None = None,
        dropout_keep: Tensor | None = None,
        dropout_p: float | None = None,
        **by_position: Any,
    ) -> None:
        (B, Hq, Sq, D), Sk = q.shape, k.shape[2]
        self.first = first_aligned(causal_alignment, Sq, Sk, seqused_q, seqused_k, leftpad_k)
        self.seqused_q, self.seqused_k, self.leftpad_k = seqused_q, seqused_k, leftpad_k
        self.padding = 0 if leftpad_k is None else leftpad_k
        q, k = self.of_queries(q), self.of_keys(k)
        self.turn: Any = {"rotary": rotary, "rotary_base": rotary_base, "rotary_dim": rotary_dim}
        self.positions = {
            "q": places(rotary_query_positions, self.first, Sq, q.device),
            "k": places(rotary_key_positions, 0, Sk, k.device),
        }
        self.q, self.k = self.turned("q", wide(q)), per_query_head(self.turned("k", wide(k)), Hq)
        self.scale = 1 / math.sqrt(D) if scale is None else scale
        self.diagonal = torch.arange(Sq, device=q.device)[:, None] + self.first
        self.band = band(**by_position)
        self.mask, self.bias, self.keep = (
            None if x is None else x.expand(B, Hq, Sq, Sk) for x in (mask, bias, dropout_keep)
        )
        self.kept = 1 / (1 - (dropout_p or 0.0))
        self.slopes = None if alibi_slopes is None else wide(alibi_slopes)
        self.softcap = softcap
        of_q, of_k, of_v = (
            None if x is None else per_query_head(x, Hq).transpose(-1, -2) for x in (q_descale, k_descale, v_descale)
        )
        self.of_scores = of_k if of_q is None else of_q if of_k is None else of_q * of_k
        self.of_values = of_v

    def turned(self, side: str, x: Tensor, *, back: bool = False) -> Tensor:
        """Turn q or k, or its gradient, by its positions."""
        return turned(x, self.positions[side], **self.turn, back=back)

    def tile(self, cols: slice) -> tuple[Tensor, Tensor, Tensor | float]:
        """Return scores (-inf where masked), masked keys, and ds/dx of x = scale q.k: [B, Hq, Sq, cols]."""
        s, slope = self.q @ self.k[..., cols, :].transpose(-1, -2) * self.scale, 1.0
        if self.of_scores is not None:
            slope = of_tile(self.of_scores, cols)
            s = s * slope
        if self.softcap is not None:
            t = torch.tanh(s / self.softcap)
            s, slope = self.softcap * t, (1 - t * t) * slope
        if self.bias is not None:
            s = s + self.bias[..., cols]
        if self.slopes is not None:
            s = s - self.slopes * (self.diagonal - self.keys(cols)).abs()
        hidden = ~self.attended(cols)
        return s.masked_fill(hidden, -math.inf), hidden, slope

    def of_queries(self, x: Tensor) -> Tensor:
        """Return [B, H, Sq, ..] with 0 behind the lengths of queries, where anything may lie."""
        return cleared(x, self.seqused_q)

    def of_keys(self, x: Tensor) -> Tensor:
        """Return [B, H, Sk, ..] with 0 where no key of a sequence is, so that anything may lie there."""
        x = cleared(x, self.seqused_k)
        if self.leftpad_k is None:
            return x
        return x.masked_fill(torch.arange(x.shape[2], device=x.device)[:, None] < self.leftpad_k, 0.0)

    def keys(self, cols: slice) -> Tensor:
        """Return the keys of a tile, [cols]."""
        return torch.arange(cols.start, cols.stop, device=self.q.device)

    def tiles(self) -> list[slice]:
        """Return the tiles of keys of which some query may attend to a key by its position; the others are skipped."""
        first, last = self.first, self.first + self.q.shape[2] - 1
        return [cols for cols in slices(self.k.shape[2]) if self.band.reaches(first, last, cols, self.padding)]

    def dropped(self, p: Tensor, cols: slice) -> Tensor:
        """Multiply a tile [B, Hq, Sq, cols] of weights, or of their gradients, by the factors c of values."""
        if self.of_values is not None:
            p = p * of_tile(self.of_values, cols)
        return p if self.keep is None else (p * self.kept).masked_fill(~self.keep[..., cols], 0.0)

    def attended(self, cols: slice) -> Tensor:
        """Return whether query i may attend key j: boolean that broadcasts to [B, Hq, Sq, cols]."""
        j = self.keys(cols)
        i = torch.arange(self.q.shape[2], device=j.device)[:, None]
        allowed = self.band.sees(self.diagonal, j, self.padding)
        allowed = allowed & within(i, self.seqused_q) & within(j, self.seqused_k) & behind_padding(j, self.leftpad_k)
        if self.mask is not None:
            allowed = allowed & self.mask[..., cols]
        if self.bias is not None:
            allowed = allowed & (self.bias[..., cols] != -math.inf)
        return allowed


def of_tile(x: Tensor, cols: slice) -> Tensor:
    """Return the numbers of a tile of keys, from those of all keys or from one for all of them."""
    return x if x.shape[-1] == 1 else x[..., cols]


def cleared(x: Tensor, length: Tensor | None) -> Tensor:
    """Return [B, H, S, ..] with 0 behind the lengths [B, 1, 1, 1] of its sequences."""
    if length is None:
        return x
    behind = torch.arange(x.shape[2], device=x.device)[:, None] >= length
    return x.masked_fill(behind, 0.0)


def wide(x: Tensor) -> Tensor:
    """Copy x into the arithmetic of its dtype: float64 stays, everything else becomes float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def per_query_head(x: Tensor, query_heads: int) -> Tensor:
    """Widen k or v and repeat its heads: query head h reads head h // (Hq // Hkv)."""
    return wide(x).repeat_interleave(query_heads // x.shape[1], dim=1)


def slices(length: int) -> list[slice]:
    """Return slices of at most KV_TILE keys."""
    return [slice(start, min(start + KV_TILE, length)) for start in range(0, length, KV_TILE)]


def online_softmax(scores: Scores, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Fold the tiles of keys into out [B, Hq, Sq, Dv], in the dtype of v, and lse [B, Hq, Sq]."""
    stored, (B, Hq, Sq, _), Dv = v.dtype, scores.q.shape, v.shape[-1]
    v = per_query_head(scores.of_keys(v), Hq)
    m = v.new_full((B, Hq, Sq, 1), -math.inf) if sinks is None else wide(sinks).expand(B, Hq, Sq, 1)
    l, acc = (m > -math.inf).to(m.dtype), v.new_zeros(B, Hq, Sq, Dv)
    for cols in scores.tiles():
        s, _, _ = scores.tile(cols)
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        reference = m_new.masked_fill(m_new == -math.inf, 0.0)  # nothing seen yet: -inf - -inf would be NaN
        alpha = torch.exp(m - reference)
        p = torch.exp(s - reference)
        l = l * alpha + p.sum(dim=-1, keepdim=True)
        acc = acc * alpha + scores.dropped(p, cols).to(stored).to(acc.dtype) @ v[..., cols, :]
        m = m_new
    l = l.masked_fill(l == 0, 1.0)  # a query that saw neither key nor sink: out = 0 and lse = -inf
    return (acc / l).to(stored), (m + torch.log(l)).squeeze(-1)


def recomputed(
    scores: Scores, v: Tensor, dout: Tensor, *, delta: Tensor, lse: Tensor, stored: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield each tile of keys with its p, da and ds [B, Hq, Sq, cols]; p and ds are rounded as they will be stored."""
    reference = lse.masked_fill(lse == -math.inf, 0.0)[..., None]  # an empty row: exp(-inf - 0) = 0
    for cols in scores.tiles():
        s, hidden, slope = scores.tile(cols)
        p = torch.exp(s - reference)
        dp = scores.dropped(dout @ v[..., cols, :].transpose(-1, -2), cols)
        da = (p * (dp - delta)).masked_fill(hidden, 0.0)
        p, ds = (x.to(stored).to(v.dtype) for x in (scores.dropped(p, cols), da * slope))
        yield cols, p, da, ds


class TiledAttention(torch.autograd.Function):
    """Softmax attention with a backward pass of its own: autograd records none of its operations."""

    @staticmethod
    def forward(  # noqa: PLR0917  (apply takes no keywords)
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Return out and lse, and save what the backward pass reads."""
        out, lse = online_softmax(Scores(q, k, bias, **options), v, sinks)
        ctx.save_for_backward(q, k, v, bias, sinks, out, lse)
        ctx.options = options
        return out, lse

    @staticmethod
    @once_differentiable  # its annotation makes ctx positional
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k, v, bias and sinks, None for each that is not needed."""
        dout, dlse = grad_outputs
        q, k, v, bias, sinks, out, lse = ctx.saved_tensors
        scores = Scores(q, k, bias, **ctx.options)
        v, dout = per_query_head(scores.of_keys(v), q.shape[1]), wide(scores.of_queries(dout))
        dq, dk, dv, dbias = (
            v.new_zeros(x.shape) if needed else None
            for x, needed in zip((scores.q, scores.k, v, bias), ctx.needs_input_grad, strict=False)
        )
        delta = (dout * out).sum(dim=-1, keepdim=True) - scores.of_queries(dlse[..., None])
        for cols, p, da, ds in recomputed(scores, v, dout, delta=delta, lse=lse, stored=q.dtype):
            if dq is not None:
                dq += scores.scale * (ds @ scores.k[..., cols, :])
            if dk is not None:
                dk[..., cols, :] = scores.scale * (ds.transpose(-1, -2) @ scores.q)
            if dv is not None:
                dv[..., cols, :] = p.transpose(-1, -2) @ dout
            if dbias is not None:
                part = dbias if dbias.shape[-1] == 1 else dbias[..., cols]
                part += da.sum_to_size(part.shape)
        dk, dv = (None if x is None else x.unflatten(1, (k.shape[1], -1)).sum(dim=2) for x in (dk, dv))
        dq = None if dq is None else scores.turned("q", dq, back=True)
        dk = None if dk is None else scores.turned("k", dk, back=True)
        dsinks = sink_gradient(sinks, lse, delta) if ctx.needs_input_grad[4] else None
        return *(None if x is None else x.to(q.dtype) for x in (dq, dk, dv, dbias, dsinks)), None


def sink_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """Return the gradient of sinks, of their shape; a head without a sink, -inf, gets 0."""
    z = wide(sinks)
    p = torch.exp(z - lse[..., None].masked_fill(z == -math.inf, 0.0))
    return -(p * delta).sum_to_size(z.shape)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract=CONTRACTS,
    supports=(*OPTIONS, *DESCALES, *DESCALE_SHAPES, *DROPOUT, *SHAPES, "lse", "backward", "lse_backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread", "unused_rows": "zero"},
)
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, sinks: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    return TiledAttention.apply(q, k, v, bias, sinks, options)
