"""Attention that drops weights by chance, in NumPy, and draws the same mask again for its gradients.

    s = scale q k^T    P = softmax(s)    c_ij = 1 / (1 - p) with probability 1 - p, else 0    o = (c P) v

Philox makes random numbers from a key and a counter, so that no mask needs to be stored. The key is the seed, the
counter is the number of the tile of queries, and the backward pass draws the same numbers. A number below p drops.

    dv = (c P)^T dout    dp = c (dout v^T)    ds = P (dp - rowsum(P dp))    dq = scale ds k    dk = scale ds^T q
"""

import math
import secrets
from collections.abc import Iterator

import numpy as np

from attn_spec import Contract, kernel

#: Queries in a tile.
TILE = 32

#: The softmax sees whole rows, twice.
WHOLE_ROWS = Contract(normalize="before_product", kv_tile=None, backward_weights="stored", delta="probabilities")
SUPPORTS = ("dropout_by_chance", "dropout_seed", "scale", "causal", "dv", "cross")


def tiles(
    q: np.ndarray, k: np.ndarray, *, p: float, seed: int, causal: bool, scale: float
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield each tile's queries, their weights, and the factors of dropout on these weights, [B, H, rows, Sk]."""
    keys = np.arange(k.shape[2])
    for number, start in enumerate(range(0, q.shape[2], TILE)):
        rows = slice(start, min(start + TILE, q.shape[2]))
        s = scale * (q[:, :, rows] @ k.swapaxes(-1, -2))
        if causal:
            s = np.where(keys <= np.arange(rows.start, rows.stop)[:, None], s, -np.inf)
        w = np.exp(s - s.max(axis=-1, keepdims=True))
        drawn = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, number])).random(s.shape)
        yield rows, w / w.sum(axis=-1, keepdims=True), np.where(drawn >= p, q.dtype.type(1 / (1 - p)), q.dtype.type(0))


@kernel(
    framework="numpy",
    dtypes=("float64", "float32"),
    contract={"float64": WHOLE_ROWS, "float32": WHOLE_ROWS},
    supports=SUPPORTS,
)
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> np.ndarray:
    """Map q [B, H, Sq, D], k [B, H, Sk, D], v [B, H, Sk, Dv] to out [B, H, Sq, Dv].

    Without a seed every call draws another mask.
    """
    seed = secrets.randbits(64) if dropout_seed is None else dropout_seed
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = np.empty((*q.shape[:3], v.shape[-1]), q.dtype)
    for rows, weights, c in tiles(q, k, p=dropout_p, seed=seed, causal=causal, scale=scale):
        out[:, :, rows] = (c * weights) @ v
    return out


@attention.backward
def attention_gradients(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *_: np.ndarray | None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give dq, dk and dv of the call with this seed; without dropout it needs none.

    Raises ``ValueError`` for dropout without a seed: the mask of the forward call is not kept.
    """
    if dropout_p and dropout_seed is None:
        raise ValueError("gradients need the dropout_seed of the forward call; give both calls the same one")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dq, dk, dv = np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    for rows, weights, c in tiles(q, k, p=dropout_p, seed=dropout_seed or 0, causal=causal, scale=scale):
        dv += (c * weights).swapaxes(-1, -2) @ dout[:, :, rows]
        dp = c * (dout[:, :, rows] @ v.swapaxes(-1, -2))
        ds = weights * (dp - (weights * dp).sum(axis=-1, keepdims=True))
        dq[:, :, rows] = scale * (ds @ k)
        dk += scale * (ds.swapaxes(-1, -2) @ q[:, :, rows])
    return dq, dk, dv
