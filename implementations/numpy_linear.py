"""Linear attention in NumPy, forward and backward, tile by tile: as scores inside a tile, as a state before it.

    w_ij = a_i.b_j    a = phi(q)    b = phi(k)    o_i = sum_j w_ij v_j / (epsilon + sum_j w_ij)

Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236). Values get one more column of ones, so that numerator
and denominator are one sum u_i = sum_j w_ij [v_j, 1]. Keys that all queries of a tile see have been added up before, as
the state S = sum_j b_j [v_j, 1]^T, and u_i begins with a_i S; the others are scores. In the backward pass

    du_i = [dout_i, dlse_i - dout_i.o_i] / n_i    da_i = sum_j (du_i.[v_j, 1]) b_j
    db_j = sum_i (du_i.[v_j, 1]) a_i              dv_j = sum_i w_ij dout_i / n_i

where what b and v meet of later tiles is a state of queries, sum_i a_i du_i^T, so the tiles are visited from the last.
Work grows as Sq D Dv, memory not with Sq Sk.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_spec import Contract, kernel

from .numpy_tiled import slices, wide
from .rotary import first_position

TILE = 16
DTYPES = ("float64", "float32", "float16")

DECLARED: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": DTYPES,
    # Features and states stay in the arithmetic of the tiles.
    "contract": dict.fromkeys(DTYPES, Contract(operands="work", subnormals="kept", kv_tile=TILE)),
    "always": ("feature_map",),
    "conventions": {"empty_row": "zero", "batch_invariant": True},
}
OPTIONS = ("feature_map", "feature_epsilon", "causal", "causal_alignment")
SHAPES = ("gqa", "dv", "cross", "empty", "lse", "lse_backward")


#: Feature maps phi(x) and their derivatives phi'(x), by name.
FEATURES = {
    "elu_plus_one": (
        lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
        lambda x: np.exp(np.minimum(x, 0)),
    ),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(x.dtype)),
    "exp": (np.exp, np.exp),
}


def features(x: np.ndarray, feature_map: str) -> np.ndarray:
    """Return the features phi(x)."""
    phi, _ = FEATURES[feature_map]
    return phi(x)


def slopes(x: np.ndarray, feature_map: str) -> np.ndarray:
    """Return the derivative phi'(x)."""
    _, slope = FEATURES[feature_map]
    return slope(x)


class Tiles:
    """Queries by tiles: the keys that a tile adds to the state before it, and those that are scores in it."""

    def __init__(self, Sq: int, Sk: int, *, causal: bool, causal_alignment: str) -> None:
        self.Sq, self.Sk, self.causal = Sq, Sk, causal
        self.first = first_position(causal_alignment, Sq, Sk)

    @property
    def empty(self) -> np.ndarray:
        """Queries that see no key, bool [Sq, 1]."""
        last = np.arange(self.Sq)[:, None] + self.first if self.causal else np.full((self.Sq, 1), self.Sk - 1)
        return np.minimum(last, self.Sk - 1) < 0

    def __iter__(self) -> Iterator[tuple[slice, slice, slice, np.ndarray]]:
        """Yield rows, keys for the state, keys that some of the rows see, and a mask of the latter for each row."""
        known = 0
        for rows in slices(self.Sq, TILE):
            position = np.arange(rows.start, rows.stop)[:, None] + self.first
            seen = np.clip([position[0, 0] + 1, position[-1, 0] + 1], 0, self.Sk) if self.causal else [self.Sk] * 2
            before, cols = slice(known, int(seen[0])), slice(int(seen[0]), int(seen[1]))
            known = int(seen[0])
            yield rows, before, cols, np.arange(cols.start, cols.stop) <= position


def with_ones(v: np.ndarray) -> np.ndarray:
    """Return [v, 1]: the values with one more column, of ones."""
    return np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)


def transposed(x: np.ndarray) -> np.ndarray:
    """Return ``x`` with its last two axes exchanged."""
    return x.swapaxes(-1, -2)


@kernel(**DECLARED, supports=(*OPTIONS, *SHAPES))
@np.errstate(over="ignore", invalid="ignore")  # beyond the range, answer Inf or NaN as hardware does
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    feature_map: str,
    feature_epsilon: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    group = q.shape[1] // k.shape[1]
    a, b = features(wide(q), feature_map), np.repeat(features(wide(k), feature_map), group, axis=1)
    values = np.repeat(with_ones(wide(v)), group, axis=1)
    u = np.empty((*a.shape[:-1], values.shape[-1]), dtype=a.dtype)
    state = np.zeros((*a.shape[:2], a.shape[-1], values.shape[-1]), dtype=a.dtype)
    tiles = Tiles(q.shape[2], k.shape[2], causal=causal, causal_alignment=causal_alignment)
    for rows, before, cols, seen in tiles:
        state += transposed(b[..., before, :]) @ values[..., before, :]
        w = np.where(seen, a[..., rows, :] @ transposed(b[..., cols, :]), 0)
        u[..., rows, :] = a[..., rows, :] @ state + w @ values[..., cols, :]
    n = np.where(tiles.empty, 0, u[..., -1:] + a.dtype.type(feature_epsilon or 0.0))
    some = np.where(n == 0, 1, n)
    return (u[..., :-1] / some).astype(q.dtype), np.where(n == 0, -math.inf, np.log(some))[..., 0]


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
    feature_map: str,
    feature_epsilon: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
) -> tuple[np.ndarray, ...]:
    """Compute the gradients (dq, dk, dv), each of the shape and dtype of its input."""
    del feature_epsilon  # the log-sum-exp holds it
    (B, Hkv, Sk, _), Hq, stored = k.shape, q.shape[1], q.dtype
    wide_q, wide_k, dout = wide(q), wide(k), wide(dout)
    a, b = features(wide_q, feature_map), np.repeat(features(wide_k, feature_map), Hq // Hkv, axis=1)
    values = np.repeat(with_ones(wide(v)), Hq // Hkv, axis=1)
    inverse = np.where(np.isneginf(lse), 0, np.exp(-lse))[..., None]
    dn = -(dout * wide(out)).sum(axis=-1, keepdims=True) + (0 if dlse is None else dlse[..., None])
    du = inverse * np.concatenate([dout, dn], axis=-1)
    da, db, dvalues = np.zeros_like(a), np.zeros_like(b), np.zeros_like(values)

    tiles = list(Tiles(q.shape[2], Sk, causal=causal, causal_alignment=causal_alignment))
    state = np.zeros((*a.shape[:2], a.shape[-1], values.shape[-1]), dtype=a.dtype)
    for rows, before, _, _ in tiles:
        state += transposed(b[..., before, :]) @ values[..., before, :]
        da[..., rows, :] = du[..., rows, :] @ transposed(state)
    state[...] = 0
    for rows, before, cols, seen in reversed(tiles):
        a_, du_, b_, values_ = a[..., rows, :], du[..., rows, :], b[..., cols, :], values[..., cols, :]
        dw, w = (np.where(seen, x @ transposed(y), 0) for x, y in ((du_, values_), (a_, b_)))
        da[..., rows, :] += dw @ b_
        db[..., cols, :] += transposed(dw) @ a_
        dvalues[..., cols, :] += transposed(w) @ du_
        state += transposed(a_) @ du_
        db[..., before, :] += values[..., before, :] @ transposed(state)
        dvalues[..., before, :] += b[..., before, :] @ state

    db, dvalues = (x.reshape(B, Hkv, Hq // Hkv, *x.shape[2:]).sum(axis=2) for x in (db, dvalues))
    found = da * slopes(wide_q, feature_map), db * slopes(wide_k, feature_map), dvalues[..., :-1]
    return tuple(x.astype(stored) for x in found)
