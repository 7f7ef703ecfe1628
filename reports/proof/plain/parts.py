"""Parts that plain kernels share: masks, tiles of keys, and operations that torch has no name for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

LOG2E = math.log2(math.e)
LN2 = math.log(2)
HALVES = ("float16", "bfloat16")
DTYPES = ("float32", *HALVES)
#: Options of the plainest forward kernels.
OPTIONS = ("scale", "causal", "cross", "dv", "lse")


def hidden(
    q: Tensor,
    k: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    mask: Tensor | None = None,
    bottom_right: bool = False,
) -> Tensor:
    """Return the keys that a query does not see, for q, k [.., length, D]: bool, [Sq, Sk] or [B, H, Sq, Sk]."""
    Sq, Sk = q.shape[-2], k.shape[-2]
    i = torch.arange(Sq, device=q.device)[:, None] + (Sk - Sq if bottom_right else 0)
    j = torch.arange(Sk, device=q.device)
    left, right = window or (None, None)
    dark = torch.zeros(Sq, Sk, dtype=torch.bool, device=q.device)
    if causal:
        dark |= j > i
    if left is not None:
        dark |= j < i - left
    if right is not None:
        dark |= j > i + right
    return dark if mask is None else dark | ~mask


def tiles(length: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` keys."""
    return (slice(start, start + size) for start in range(0, length, size))


def heads_first(*tensors: Tensor) -> list[Tensor]:
    """Transpose [B, S, H, D] to [B, H, S, D], or back."""
    return [x.transpose(1, 2) for x in tensors]


def for_query_heads(x: Tensor, query_heads: int) -> Tensor:
    """Repeat each kv head for the query heads that read it."""
    return x.repeat_interleave(query_heads // x.shape[1], dim=1)


def nothing_seen(q: Tensor, value_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return maximum, row sum and output of no keys, in float32."""
    rows = q.shape[:-1]
    return (
        torch.full((*rows, 1), -math.inf, device=q.device),
        torch.zeros((*rows, 1), device=q.device),
        torch.zeros((*rows, value_dim), device=q.device),
    )


def finite(m: Tensor) -> Tensor:
    """Return a row's maximum, or 0 where it has none: -inf - -inf would be NaN."""
    return m.masked_fill(m == -math.inf, 0.0)


def ffma(a: Tensor, b: Tensor | float, c: Tensor) -> Tensor:
    """Compute a b + c in float32 with one rounding: float64 holds the product of two float32 exactly."""
    return (a.double() * b + c.double()).float()


def float32(x: float) -> float:
    """Round a constant to float32, as a kernel holds it."""
    return torch.tensor(x, dtype=torch.float32).item()


def through(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to a narrow format, and widen again for a product with float32 sums."""
    return x.to(dtype).float()


def sigma_of(q: Tensor, scale: float | None) -> float:
    """Return the scale as a float32."""
    return float32(q.shape[-1] ** -0.5 if scale is None else scale)


def online(scores: Iterable[Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    """Compute maximum and row sum of tiles of scores, by natural exponentials."""
    m, l, _ = nothing_seen(q, 0)
    for s in scores:
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        l = l * torch.exp(m - finite(m_new)) + torch.exp(s - finite(m_new)).sum(-1, keepdim=True)
        m = m_new
    return m, l
