"""Cases that the adversary attacks beside ``cases``: the presets as they are, computed as their kernels compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import EAGER, FP32, FUSED, SPLIT_KV, TF32
from attn_spec.emulation.backward import StoredWeights
from attn_spec.emulation.split import NormalizedSplitAttention
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe

from .attack import Attack
from .cases import Way, attack

#: Presets with the order and the backward pass that their kernels have.
_PRESETS: tuple[tuple[str, Contract, Way, tuple[str, ...]], ...] = (
    ("fused", FUSED, Way(name="", order={"kv_tile": 16, "exponent_folded": True}), ("float32", "float16", "bfloat16")),
    ("fp32", FP32, Way(name=""), ("float32", "float16", "bfloat16")),
    ("tf32", TF32, Way(name="", order={"kv_tile": 16}), ("float32",)),
    (
        "eager",
        EAGER,
        Way(name="", order={"kv_tile": None}, gradients=StoredWeights),
        ("float32", "float16", "bfloat16"),
    ),
    ("split_kv", SPLIT_KV, Way(name="", steps=NormalizedSplitAttention), ("float32", "float16", "bfloat16")),
)


def presets(seed: int = 0) -> Iterator[tuple[str, str, Attack]]:
    """Yield every preset at its dtypes on rows of some length: preset and dtype, the regime, and the attack."""
    for name, contract, way, dtypes in _PRESETS:
        for dtype in dtypes:
            for regime in ("normal", "rising", "normal+v_offset", "uniform"):
                recipe = Recipe(
                    dtypes=dtype, regime=regime, query_length=2, key_length=32, head_dim=8, value_dim=2, seed=seed + 3
                )
                problem = recipe.problem()
                dO = bits.nearest(np.random.default_rng(seed).standard_normal(problem.output_shape), dtype)
                one_split = replace(contract, kv_tile=1) if name == "split_kv" else contract
                yield f"{name} {dtype}", regime, attack(way, problem, one_split, dO, seed)
