"""Mutants of quantisers with blocks of columns, scales in two levels, rotated vectors and packed codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.quantisers import Quantiser
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.quantisers import QuantisingAttention
from attn_spec.numbers import bits

from .mutants import mutant
from .quantisers import BLOCKS, told

COLUMNS = "quantisers.each_block_of_columns_has_a_scale_of_its_own"
ROTATED = "quantisers.an_outlier_in_one_column_is_rotated_as_declared"
#: Narrow blocks, as narrow heads have several of.
_MX = Quantiser.of_both(
    format="float8_e4m3fn", block=1, columns=4, scale_dtype="float8_e8m0fnu", scale_rounding="up", division_error=0.0
)
_NV = Quantiser.of_both(
    format="float4_e2m1fn", block=1, columns=4, scale_dtype="float8_e4m3fn", second_level="tensor", division_error=0.0
)
_ROTATED = Quantiser.of_both(format="float8_e4m3fn", rotates="hadamard", signs=(1, -1, -1), division_error=0.0)
#: Codes that are either of two, so that a wrong scale is beyond what is open, and a code a step away is not.
_EITHER = Quantiser.of_both(block=1, rounding="either", division_error=0.0)
_INT4 = Quantiser.of_both(format="int4", block=8, division_error=0.0)


# Codes with exponents change with a power of 2 in their exponents alone, so that other blocks would show in few.
@mutant(source="made up: columns counted from 1", named_by=COLUMNS, **told(*_NV))
class BlockOfColumnsOffByOne(QuantisingAttention):
    """Blocks of columns of keys begin one column too early."""

    def block_of_columns(self, quantiser: Quantiser, head_dim: int) -> np.ndarray:
        columns = np.arange(head_dim) + (quantiser.of == "k")
        return columns // quantiser.columns if quantiser.columns else np.zeros(head_dim, dtype=np.int64)


@mutant(source="made up: a scale in memory that is read too late", named_by=COLUMNS, **told(*_MX))
class ScaleOfTheNextColumns(QuantisingAttention):
    """Codes of keys are multiplied by the scales of the next block of columns."""

    def scales_of_codes(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        if quantiser.of != "k" or not quantiser.columns:
            return scales
        D = scales.shape[-1]
        return scales[..., np.minimum(np.arange(D) + quantiser.columns, D - 1)]


@mutant(source="made up: a scale that is kept as it was divided", named_by=COLUMNS, **told(*_MX))
class ScaleNoPowerOfTwo(QuantisingAttention):
    """Scales of blocks are float32 numbers, not powers of 2."""

    def stored_scale(self, quantiser: Quantiser, s: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return bits.nearest(s, "float32")


@mutant(source="made up: the rule of OCP MX 1.0, 6.3, where another one is declared", named_by=COLUMNS, **told(*_MX))
class ScaleRoundedDown(QuantisingAttention):
    """Scales are the power of 2 below, so that the largest numbers of a block saturate."""

    def stored_scale(self, quantiser: Quantiser, s: np.ndarray) -> np.ndarray:
        return super().stored_scale(replace(quantiser, scale_rounding="down"), s)


@mutant(source="made up: a scale of the tensor that is kept with those of blocks", named_by=COLUMNS, **told(*_NV))
class SecondLevelTwice(QuantisingAttention):
    """Products have the square of the scale of the keys' second level."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return scales**2 if quantiser.of == "k" else scales


@mutant(source="made up: a scale of the tensor that is forgotten", named_by=COLUMNS, **told(*_NV))
class SecondLevelDropped(QuantisingAttention):
    """Products lack the scale of the keys' second level."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return np.ones(scales.shape) if quantiser.of == "k" else scales


@mutant(source="made up: the largest magnitude of one head", named_by=COLUMNS, **told(*_NV))
class SecondLevelOfTheHead(QuantisingAttention):
    """Each head has a scale of the second level of its own."""

    def second_scales(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        return super().second_scales(replace(quantiser, second_level="head"), x)


@mutant(source="made up: the matrix of one tensor without the signs of the other", named_by=ROTATED, **told(*_ROTATED))
class KeysRotatedWithoutSigns(QuantisingAttention):
    """Keys are rotated without the signs of columns."""

    def signs(self, quantiser: Quantiser, head_dim: int) -> np.ndarray:
        return np.ones(head_dim) if quantiser.of == "k" else super().signs(quantiser, head_dim)


@mutant(source="made up: a rotation of one of two tensors", named_by=ROTATED, **told(*_ROTATED))
class QueriesNotRotated(QuantisingAttention):
    """Queries are quantised as they are, and keys are rotated."""

    def rotated(self, quantiser: Quantiser, x: np.ndarray, dtype: str, order: Order) -> np.ndarray:
        return x if quantiser.of == "q" else super().rotated(quantiser, x, dtype, order)


@mutant(source="made up: signs behind the matrix in place of before it", named_by=ROTATED, **told(*_ROTATED))
class SignsBehindTheMatrix(QuantisingAttention):
    """Signs multiply rotated numbers, of q and k alike, so that scores stay, and codes do not."""

    def rotated(self, quantiser: Quantiser, x: np.ndarray, dtype: str, order: Order) -> np.ndarray:
        found = super().rotated(quantiser, x, dtype, order)
        return found * QuantisingAttention.signs(self, quantiser, x.shape[-1])

    def signs(self, quantiser: Quantiser, head_dim: int) -> np.ndarray:  # noqa: ARG002
        return np.ones(head_dim)


@mutant(source="made up: a rotation that is not one", named_by=ROTATED, **told(*_ROTATED))
class RotationNotNormalised(QuantisingAttention):
    """Keys are multiplied by H, and not by H / sqrt(n)."""

    def rotated(self, quantiser: Quantiser, x: np.ndarray, dtype: str, order: Order) -> np.ndarray:
        found = super().rotated(quantiser, x, dtype, order)
        n = x.shape[-1] & -x.shape[-1]
        return found * np.sqrt(n) if quantiser.of == "k" else found


@mutant(source="made up: two codes of a byte in the other order", named_by=BLOCKS, **told(*_INT4))
class HalvesOfBytesSwapped(QuantisingAttention):
    """Codes of neighbouring columns of keys are exchanged."""

    def codes(self, quantiser: Quantiser, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        found = super().codes(quantiser, x, scales)
        if quantiser.of == "k":
            even = found.shape[-1] // 2 * 2
            pairs: Any = found[..., :even].reshape(*found.shape[:-1], even // 2, 2)
            found[..., :even] = pairs[..., ::-1].reshape(*found.shape[:-1], even)
        return found


@mutant(source="made up: a scale that is read too late, beside stochastic rounding", named_by=BLOCKS, **told(*_EITHER))
class StochasticWithTheScaleOfTheNextToken(QuantisingAttention):
    """Codes are rounded at random, and products of a key have the scale of the next one."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return np.roll(scales, -1, axis=2) if quantiser.of == "k" else scales
