"""Sound kernels of linear attention drawn at random, of the parts of an arithmetic that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_spec.contract.contract import Contract
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import CONVENTIONS, emulate_both
from attn_spec.emulation.linear import SUPPORTS as LINEAR
from attn_spec.emulation.linear import LinearAttention, LinearGradients, QuotientGradients, StateAttention
from attn_spec.kernels.kernel import Kernel

from .random_options import without_orphans

#: Contract fields of linear attention: it has no exponential, and neither merges nor normalizes tile by tile.
NO_SOFTMAX: dict[str, Any] = {
    "exponent": "natural",
    "scale_on": "scores",
    "normalize": "after_product",
    "backward_weights": "recomputed",
    "lse_merges": 0,
    "reference": "maximum",
    "reference_range": 0.0,
    "reference_slack": 0.0,
}


def linear_kernel(
    rng: np.random.Generator, name: str, executes: Contract, order: Order, *, beside: Sequence[str], **declared: Any
) -> Kernel:
    """Make a kernel of linear attention, with the parts of that arithmetic that it has, and the options of ``beside``.

    A parameter among these is left out if its option is.
    """
    needed = ("feature_map", "feature_epsilon", "lse")
    declared |= {
        "supports": without_orphans([*(name for name in LINEAR if name in needed or rng.random() < 0.85), *beside]),
        "always": ("feature_map",),
        "conventions": CONVENTIONS,
        "steps": (LinearAttention, StateAttention)[rng.integers(2)],
    }
    gradients = (LinearGradients, QuotientGradients)[rng.integers(2)]
    return emulate_both(name, executes, order, gradients=gradients, **declared)
