"""Gradient of keys that are values too, as latent attention has them: v is the first columns of k."""

from __future__ import annotations

import numpy as np


def key_gradient(dk: np.ndarray, dv: np.ndarray) -> np.ndarray:
    """Return dK + [dV, 0] [B, Hkv, Sk, D], from dK [B, Hkv, Sk, D] and dV [B, Hkv, Sk, Dv].

    With v_jc = k_jc for c < Dv, the chain rule adds the gradient that reaches k_jc by v_jc to the one by the scores.
    The arrays may hold numbers of any arithmetic that adds.
    """
    whole = dk.copy()
    whole[..., : dv.shape[-1]] += dv
    return whole
