"""Inputs on which the tests run the in-tree kernels themselves: ragged, grouped, with every option."""

import importlib.util

import numpy as np
import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:  # through triton_tiled, which chooses the interpreter before it imports triton
    from attn_spec.implementations import triton_tiled

interpreted = pytest.mark.skipif(
    not (HAS_TRITON and triton_tiled.INTERPRETED), reason="needs Triton, and a machine where it interprets"
)

BROADCASTS = [
    tuple(full if keep else 1 for full, keep in zip((2, 6, 37, 41), kept, strict=True))
    for kept in np.ndindex(2, 2, 2, 2)
]
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "bottom right": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window": (5, 3)},
    "half window, bottom right": {"window": (None, 2), "causal_alignment": "bottom_right"},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 2.0},
    "mask with empty rows": {"mask": np.arange(41) % 5 > (np.arange(37) % 7)[None, None, :, None] - 1},
    "bias with -inf": {"bias": np.where(np.arange(41) % 6 == np.arange(37)[None, None, :, None] % 6, -np.inf, 0.3)},
    "everything hidden": {"mask": np.zeros((1, 1, 37, 41), dtype=bool)},
}


def inputs(seed=0, *, B=2, Hq=6, Hkv=2, Sq=37, Sk=41, D=20, Dv=12, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = (B, Hq, Sq, D), (B, Hkv, Sk, D), (B, Hkv, Sk, Dv)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def to_torch(options, dtype=torch.float64):
    arrays = {key: torch.from_numpy(x) for key, x in options.items() if isinstance(x, np.ndarray)}
    return options | {key: x if x.dtype == torch.bool else x.to(dtype) for key, x in arrays.items()}
