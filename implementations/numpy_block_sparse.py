"""Block-sparse attention, forward and backward, in NumPy: tiles of which no query sees a key are not visited.

Before any product a block map marks each tile of queries by keys as hidden (all masked), partial or full. Hidden tiles
cost nothing, and only partial ones are masked: algorithm 5 of FlashAttention (arXiv 2205.14135), with the block map of
FlexAttention (arXiv 2412.05496). Of n queries that see s keys each, in whole tiles, that is n s scores in place of n^2.

Heads and batch entries are computed one by one, since each may see other tiles. The rest is as in ``numpy_tiled``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attn_spec import kernel

from .rotary import first_position
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

#: Queries, and keys, of a tile.
TILE = 16
HIDDEN, PARTIAL, FULL = range(3)


def wide(x: np.ndarray) -> np.ndarray:
    """Copy x into the arithmetic of its dtype; contiguous, so that no layout of a view can reach the BLAS."""
    return x.astype(np.promote_types(x.dtype, np.float32), order="C")


def attended(
    shape: tuple[int, int, int, int],
    *,
    causal_alignment: str = "top_left",
    mask: np.ndarray | None = None,
    **by_position: Any,
) -> np.ndarray:
    """Return whether query i may attend key j: boolean [B, Hq, Sq, Sk]."""
    Sq, Sk = shape[2:]
    aligned = np.arange(Sq)[:, None] + first_position(causal_alignment, Sq, Sk)
    allowed = band(**by_position).sees(aligned, np.arange(Sk))
    return np.broadcast_to(allowed if mask is None else allowed & mask, shape)


def block_map(allowed: np.ndarray, tile: int = TILE) -> np.ndarray:
    """Return HIDDEN, PARTIAL or FULL for each tile of ``allowed`` [.., Sq, Sk]: [.., ceil(Sq / tile), ceil(Sk / tile)].

    A tile that reaches past the edge is FULL if every query inside sees every key inside.
    """
    *outer, Sq, Sk = allowed.shape
    rows, cols = (np.arange(0, n, tile) for n in (Sq, Sk))
    if not (len(rows) and len(cols)):
        return np.zeros((*outer, len(rows), len(cols)), dtype=int)
    seen = np.add.reduceat(np.add.reduceat(allowed, rows, axis=-2, dtype=int), cols, axis=-1)
    size = np.minimum(tile, Sq - rows)[:, None] * np.minimum(tile, Sk - cols)
    return np.where(seen == 0, HIDDEN, np.where(seen == size, FULL, PARTIAL))


class Visit(NamedTuple):
    """One tile that some query sees."""

    rows: slice
    cols: slice
    #: Scores [rows, cols], -inf where masked.
    s: np.ndarray
    #: True where the query sees the key, [rows, cols].
    allowed: np.ndarray


@dataclass(frozen=True, eq=False)
class Head:
    """One head of one batch entry."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    allowed: np.ndarray
    blocks: np.ndarray
    scale: float
    tile: int

    def visits(self, row: int) -> Iterator[Visit]:
        """Yield the tiles of one tile of queries, from the first key on; tiles without a visible key are left out."""
        rows = slice(row * self.tile, (row + 1) * self.tile)
        for col in np.flatnonzero(self.blocks[row]):
            cols = slice(col * self.tile, (col + 1) * self.tile)
            s, allowed = self.scale * (self.q[rows] @ self.k[cols].T), self.allowed[rows, cols]
            yield Visit(rows, cols, s if self.blocks[row, col] == FULL else np.where(allowed, s, -np.inf), allowed)


def heads(q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: int, options: dict[str, Any]) -> Iterator[Any]:
    """Yield pairs of an index (batch entry, query head) and its :class:`Head`."""
    (B, Hq, Sq, D), (_, Hkv, Sk, _) = q.shape, k.shape
    scale = options.pop("scale", None)
    allowed = attended((B, Hq, Sq, Sk), **options)
    blocks = block_map(allowed, tile)
    q, k, v = wide(q), wide(k), wide(v)
    for at in np.ndindex(B, Hq):
        of_group = (at[0], at[1] // (Hq // Hkv))
        yield (
            at,
            Head(
                q[at],
                k[of_group],
                v[of_group],
                allowed[at],
                blocks[at],
                1 / math.sqrt(D) if scale is None else scale,
                tile,
            ),
        )


def weighted_sum(p: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Multiply p v so that a masked key contributes 0 even if its value is Inf or NaN (0 * NaN is NaN)."""
    poisoned = ~np.isfinite(v)
    out = p @ np.where(poisoned, 0, v)
    for j in np.flatnonzero(poisoned.any(axis=-1)):
        out += np.where(allowed[:, j, None] & poisoned[j], p[:, j, None] * v[j], 0)
    return out


def online_softmax(head: Head, row: int, stored: np.dtype) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute out and lse of a tile of queries; return them with the number of tiles of keys that were visited."""
    rows = len(head.q[row * head.tile : (row + 1) * head.tile])
    m = np.full((rows, 1), -np.inf, dtype=head.q.dtype)
    l, acc, visits = np.zeros_like(m), np.zeros((rows, head.v.shape[1]), dtype=head.q.dtype), 0
    for visits, visit in enumerate(head.visits(row), start=1):  # noqa: B007 - the last number is the count
        m_new = np.maximum(m, visit.s.max(axis=-1, keepdims=True))
        reference = np.where(m_new == -np.inf, 0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha, p = np.exp(m - reference), np.exp(visit.s - reference)
        l = l * alpha + p.sum(axis=-1, keepdims=True)
        acc = acc * alpha + weighted_sum(p.astype(stored).astype(acc.dtype), head.v[visit.cols], visit.allowed)
        m = m_new
    l = np.where(l == 0, 1, l)  # a query that saw no key: out = 0 and lse = -inf
    return (acc / l).astype(stored), (m + np.log(l))[:, 0], visits


@np.errstate(over="ignore", invalid="ignore")  # beyond the range, answer Inf or NaN as hardware does
def block_sparse_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, tile: int = TILE, **options: Any
) -> tuple[np.ndarray, np.ndarray, int]:
    """Compute out [B, Hq, Sq, Dv] and lse [B, Hq, Sq]; return them with the number of tiles visited in all heads.

    Each visit costs tile^2 (D + Dv) multiplications, less at the edges.
    """
    out = np.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype)
    lse, total = np.empty(q.shape[:3], dtype=np.promote_types(q.dtype, np.float32)), 0
    for at, head in heads(q, k, v, tile, options):
        for row, start in enumerate(range(0, q.shape[2], tile)):
            rows = np.s_[start : start + tile]
            out[at][rows], lse[at][rows], visits = online_softmax(head, row, q.dtype)
            total += visits
    return out, lse, total


@kernel(
    framework="numpy",
    dtypes=("float64", "float32", "float16"),
    contract={"float64": "fp64", "float32": "fused", "float16": "fused"},
    supports=(
        *("scale", *BY_POSITION, "mask"),
        *("gqa", "dv", "cross", "empty", "lse", "lse_backward"),
    ),
    conventions={"empty_row": "zero", "masked_nonfinite": "excluded", "batch_invariant": True},
)
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    return block_sparse_attention(q, k, v, **options)[:2]


@attention.backward
@np.errstate(over="ignore", invalid="ignore")
def gradients(  # noqa: PLR0917  (the arguments of every backward pass)
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    *,
    dlse: np.ndarray | None = None,
    tile: int = TILE,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Compute (dq, dk, dv), each of the shape and dtype of its input, over the tiles that the forward pass visits."""
    stored, dout, group = q.dtype, wide(dout), q.shape[1] // k.shape[1]
    delta = (dout * wide(out)).sum(axis=-1) - (0 if dlse is None else dlse)
    dq, dk, dv = (np.zeros_like(wide(x)) for x in (q, k, v))
    for at, head in heads(q, k, v, tile, options):
        of_group = (at[0], at[1] // group)
        for row in range(len(head.blocks)):
            for rows, cols, s, allowed in head.visits(row):
                p = np.where(allowed, np.exp(s - lse[at][rows, None]), 0)
                dp = dout[at][rows] @ head.v[cols].T
                ds = np.where(allowed, p * (dp - delta[at][rows, None]), 0).astype(stored).astype(dq.dtype)
                p = p.astype(stored).astype(dq.dtype)
                dq[at][rows] += head.scale * weighted_sum(ds, head.k[cols], allowed)
                dk[of_group][cols] += head.scale * weighted_sum(ds.T, head.q[rows], allowed.T)
                dv[of_group][cols] += weighted_sum(p.T, dout[at][rows], allowed.T)
    return tuple(x.astype(stored) for x in (dq, dk, dv))
