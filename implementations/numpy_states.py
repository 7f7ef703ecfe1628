"""A merge of attention states in NumPy: softmax over the log-sum-exps of parts of the keys weights their outputs."""

import numpy as np

from attn_spec import kernel


@kernel(
    framework="numpy",
    dtypes=("float64",),
    contract="fp64",
    supports=("lse", "empty"),
    conventions={"empty_row": "zero", "empty_state": "either_inf", "masked_nonfinite": "excluded"},
    presentation="states",
    option_dtypes={"bias": "float64"},
)
def merge(v: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map outputs v [T, states, H, D] and log-sum-exps s [T, states, H] to out [T, H, D], lse [T, H].

    A log-sum-exp of plus infinity is that of a state without keys too, as flash-attention 2 writes it.
    """
    s = np.where(np.isinf(s), -np.inf, s)
    top = s.max(axis=1, initial=-np.inf)
    weights = np.exp(s - np.where(top == -np.inf, 0.0, top)[:, None])
    values = np.where(weights[..., None] == 0, 0.0, v)
    total = weights.sum(axis=1)
    out = (weights[..., None] * values).sum(axis=1) / np.where(total == 0, 1.0, total)[..., None]
    with np.errstate(divide="ignore"):
        return out, top + np.log(total)
