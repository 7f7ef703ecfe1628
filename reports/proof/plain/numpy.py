"""Plain attention in NumPy: the textbook in float32 and in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec import Contract, kernel

#: Nothing is rounded to another format; exp, log and tanh are NumPy's.
TEXTBOOK: dict[str, Any] = {
    "multiplicands": "work",
    "matrix_rounding": None,
    "exponent": "natural",
    "probabilities": "work",
    "score_gradients": "work",
    "kv_tile": None,
    "subnormals": "kept",
    "backward_weights": "stored",
}


def _weights(
    q: np.ndarray, k: np.ndarray, *, scale: float | None, causal: bool, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return maximum, exponentials and their sum, in the format of q."""
    scale = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    seen = np.ones((q.shape[2], k.shape[2]), dtype=bool)
    seen = np.tril(seen) if causal else seen
    s = np.where(seen if mask is None else seen & mask, q @ k.swapaxes(-1, -2) * scale, q.dtype.type(-np.inf))
    m = s.max(axis=-1, keepdims=True)
    m = np.where(np.isneginf(m), q.dtype.type(0), m)
    w = np.exp(s - m)
    return m, w, w.sum(axis=-1, keepdims=True)


@kernel(
    framework="numpy",
    dtypes=("float32",),
    contract=Contract(**TEXTBOOK, normalize="before_product", delta="probabilities"),
    supports=("scale", "causal", "mask", "dv", "cross", "lse"),
)
def numpy_float32(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute softmax(scale q k^T) v, as it is written."""
    with np.errstate(all="ignore"):
        m, w, l = _weights(q, k, scale=scale, causal=causal, mask=mask)
        return (w / np.where(l == 0, np.float32(1), l)) @ v, (m + np.log(l))[..., 0]


@numpy_float32.backward
def _numpy_float32(dout: np.ndarray, *saved: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    """Compute gradients by the formulas of a softmax layer."""
    q, k, v, _, _ = saved
    scale = np.float32(q.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"])
    with np.errstate(all="ignore"):
        _, w, l = _weights(q, k, **{"scale": None, "causal": False, "mask": None, **options})
        p = w / np.where(l == 0, np.float32(1), l)
        dp = dout @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        return ds @ k * scale, ds.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ dout


@kernel(
    framework="numpy",
    dtypes=("float64",),
    contract=Contract(**TEXTBOOK, normalize="after_product", delta="output"),
    supports=("scale", "causal", "mask", "dv", "cross", "lse"),
)
def numpy_float64(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the weighted mean of v, divided last."""
    with np.errstate(all="ignore"):
        m, w, l = _weights(q, k, scale=scale, causal=causal, mask=mask)
        return w @ v / np.where(l == 0, 1.0, l), (m + np.log(l))[..., 0]


@numpy_float64.backward
def _numpy_float64(dout: np.ndarray, *saved: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    """Compute gradients with delta from the output; dS is scaled before its products."""
    q, k, v, out, _ = saved
    scale = q.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    with np.errstate(all="ignore"):
        _, w, l = _weights(q, k, **{"scale": None, "causal": False, "mask": None, **options})
        p = w / np.where(l == 0, 1.0, l)
        ds = scale * p * (dout @ v.swapaxes(-1, -2) - (dout * out).sum(axis=-1, keepdims=True))
        return ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout
