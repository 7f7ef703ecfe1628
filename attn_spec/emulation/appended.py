"""Quantisers of what a call appends, executed: codes and scales of new tokens, on their way to the caches.

Each step of :class:`AppendedQuantising` is a seam: a mutant (``reports.proof.zoo``) is a subclass that overrides one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.quantisers import Quantiser
from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.kernels.presentations.appending import quantised_writes
from attn_spec.kernels.presentations.appending.append import CACHES, NEW, Append
from attn_spec.numbers import bits

from .arithmetic import Order
from .quantisers import Quantising
from .sequences import sequences_of


class AppendedQuantising(Quantising):
    """Steps by which a call quantises the new keys or values that it appends."""

    def __init__(self, order: Order, count: int) -> None:
        self.chance = np.random.default_rng(order.seed)
        self.where = sequences_of(count, count, {})

    def __call__(self, quantiser: Quantiser, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return codes [B, n, Hkv, D] and scales [B, n, Hkv, 1] of new keys or values, as the caches store them."""
        x = bits.nearest(new, quantiser.arithmetic).swapaxes(1, 2)
        with np.errstate(all="ignore"):
            scales = self.scales(quantiser, self.largest_of_blocks(quantiser, x))
            codes = self.codes(quantiser, x, scales)
        return codes.swapaxes(1, 2), self.stored_scales(quantiser, scales).swapaxes(1, 2)

    def stored_scales(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:  # noqa: ARG002 - a seam
        """Return the scales [B, Hkv, n, 1] that the cache of scales gets."""
        return scales


def written(
    shown: Append,
    contract: ResolvedContract,
    quantise: AppendedQuantising,
    tensors: Sequence[Any],
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Write the scales of new tokens to their caches; return the tensors of a call, with codes for new tokens."""
    given = dict(zip(shown.tensors, tensors, strict=True))
    for name, quantiser in quantised_writes.of_contract(contract).items():
        new, cache = given[NEW[name]], given[CACHES[name]]
        codes, scales = quantise(quantiser, values_of(new))
        own, of_scales = of(cache), options[f"{name}_descale"]
        given[NEW[name]] = own.give(codes, own.dtype_of(cache), "cpu")
        stored = own.give(scales, own.dtype_of(of_scales), "cpu")
        shown.append(of_scales[..., None], stored, shown.after(options, new.shape[1]))
    return tuple(given.values())
