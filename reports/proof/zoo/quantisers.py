"""Mutants of quantisers: scales of other blocks or heads, codes rounded otherwise, means that are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.contract.quantisers import Quantiser
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.quantisers import QuantisingAttention
from attn_spec.emulation.sequences import LENGTHS
from attn_spec.emulation.sound import PRECISE
from attn_spec.numbers import bits

from .mutants import mutant

BLOCKS = "quantisers.each_block_has_the_scale_of_its_own_largest_number"
TIES = "quantisers.halves_are_rounded_as_declared"
MEANS = "quantisers.a_vector_added_to_all_keys_moves_the_log_sum_exp"
BEHIND = "quantisers.what_lies_behind_a_sequence_enters_no_scale"
SHARE = "quantisers.the_quantisation_error_is_what_is_declared"
ACCURATE = "accuracy.output_is_within_its_bound"
#: Short blocks, as short sequences have several of.
_QUERIES, _KEYS = Quantiser(of="q", block=4, division_error=0.0), Quantiser(of="k", block=8, division_error=0.0)
_PLAIN = (_QUERIES, _KEYS)
_SMOOTH = (_QUERIES, replace(_KEYS, subtracts="mean_of_keys"))
_VALUES = (*_PLAIN, Quantiser(of="v", block=8, format="float8_e4m3fn", division_error=0.0))


def told(*quantisers: Quantiser, **fields: Any) -> dict[str, Any]:
    """Return what a kernel with these quantisers declares and executes; what keys lack is not in bent scores."""
    own: dict[str, Any] = {"quantisers": quantisers}
    smooths = any(one.subtracts for one in quantisers)
    return {
        "contract": replace(FUSED, kv_tile=8, **own, **fields),
        "executes": replace(PRECISE, **own),
        "order": Order(kv_tile=8),
        "lacks": ("softcap",) if smooths else (),
    }


@mutant(source="made up: a scale in memory that is read a block too late", named_by=BLOCKS, **told(*_PLAIN))
class ScaleOfTheNextBlock(QuantisingAttention):
    """Products of a block of keys have the scale of the next block."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        if quantiser.of != "k" or not isinstance(quantiser.block, int):
            return scales
        return scales[:, :, np.minimum(np.arange(scales.shape[2]) + quantiser.block, scales.shape[2] - 1)]


@mutant(source="made up: one scale for all of a tensor", named_by=BLOCKS, **told(*_PLAIN))
class ScaleOfTheTensor(QuantisingAttention):
    """Keys are quantised by the largest magnitude of all blocks and heads."""

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        found = super().largest_of_blocks(quantiser, x)
        return np.full(found.shape, found.max(initial=0.0)) if quantiser.of == "k" else found


@mutant(source="made up: scales indexed as query heads are", named_by=BLOCKS, **told(*_PLAIN))
class ScaleOfTheNextHead(QuantisingAttention):
    """Products with keys have the scales of the next kv head."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return np.roll(scales, -1, axis=1) if quantiser.of == "k" else scales


@mutant(source="made up: a scale that is stored in half", named_by=BLOCKS, **told(*_PLAIN))
class ScaleStoredInHalf(QuantisingAttention):
    """The scales that multiply products are rounded to float16; quotients have them before."""

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return bits.nearest(scales, "float16")


@mutant(source="made up: a conversion that cuts", named_by=TIES, **told(*_PLAIN))
class CodesCut(QuantisingAttention):
    """Quotients are cut to integers."""

    def rounded_to_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.trunc(np.clip(t, -127, 127))


@mutant(source="made up: 1/2 is added before the cut, where ties to even are declared", named_by=TIES, **told(*_PLAIN))
class TiesAwayFromZero(QuantisingAttention):
    """Ties of quotients are rounded away from zero."""

    def rounded_to_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.trunc(np.clip(t, -127, 127) + np.copysign(0.5, t))


@mutant(source="made up: the range of int8 taken for that of codes", named_by=BLOCKS, **told(*_PLAIN))
class ScaleBy128(QuantisingAttention):
    """The largest magnitude over its scale is 128, and codes of 128 saturate at 127, but -128 is kept."""

    def scales(self, quantiser: Quantiser, most: np.ndarray) -> np.ndarray:
        return bits.nearest(most / 128, quantiser.scale_dtype)

    def rounded_to_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.clip(np.rint(t), -128, 127)


@mutant(source="made up: a block that ends one token early", named_by=ACCURATE, **told(*_PLAIN))
class LastKeyNotQuantised(QuantisingAttention):
    """The code of the last key is 0."""

    def codes(self, quantiser: Quantiser, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        found = super().codes(quantiser, x, scales)
        if quantiser.of == "k":
            found[:, :, -1:] = 0.0
        return found


@mutant(source="ROCm/aiter#3349", named_by=MEANS, **told(*_SMOOTH))
class MeanNotInTheLse(QuantisingAttention):
    """The log-sum-exp lacks the query's product with the mean of keys."""

    def with_mean(self, lse: Any) -> Any:
        return lse


@mutant(source="made up: a product with the mean that is not scaled", named_by=MEANS, **told(*_SMOOTH))
class MeanWithoutTheScale(QuantisingAttention):
    """The query's product with the mean enters the log-sum-exp without the scale of scores."""

    def factor(self) -> Any:
        return np.ones(()) if self.in_lse else super().factor()

    in_lse = False

    def with_mean(self, lse: Any) -> Any:
        self.in_lse = True
        return super().with_mean(lse)


@mutant(source="flashinfer-ai/flashinfer#3838", named_by=MEANS, **told(*_SMOOTH))
class MeanOfTheNextHead(QuantisingAttention):
    """Keys of a head lack the mean of the next head, which the log-sum-exp has again."""

    def mean_of_keys(self, quantiser: Quantiser, k: np.ndarray, order: Order) -> np.ndarray:
        return np.roll(super().mean_of_keys(quantiser, k, order), -1, axis=1)


@mutant(source="made up: keys are stored as they come", named_by=MEANS, **told(*_SMOOTH))
class MeanNotSubtracted(QuantisingAttention):
    """Nothing is subtracted from the keys, nor added to the log-sum-exp."""

    def mean_of_keys(self, quantiser: Quantiser, k: np.ndarray, order: Order) -> np.ndarray:  # noqa: ARG002
        return np.zeros((*k.shape[:2], 1, k.shape[3]))


@mutant(source="thu-ml/SageAttention#232", named_by=BEHIND, takes=LENGTHS, **told(*_SMOOTH))
class MeanOfTheBuffer(QuantisingAttention):
    """The mean of keys counts what lies behind a sequence."""

    def mean_of_keys(self, quantiser: Quantiser, k: np.ndarray, order: Order) -> np.ndarray:
        return super().mean_of_keys(replace(quantiser, over="buffer"), k, order)


@mutant(
    source="made up: padding that is not masked before the maximum", named_by=BEHIND, takes=LENGTHS, **told(*_PLAIN)
)
class ScaleOfThePadding(QuantisingAttention):
    """The largest magnitude of a block of keys counts what lies behind a sequence."""

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        return super().largest_of_blocks(replace(quantiser, over="buffer"), x)


@mutant(source="made up: values read with the scale of keys", named_by=BLOCKS, **told(*_VALUES))
class ScaleOfKeysForValues(QuantisingAttention):
    """Codes of values are multiplied by the scales of keys."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.given_descales["v_descale"] = self.given_descales["k_descale"]


@mutant(
    source="made up: a promise of a finer quantiser",
    named_by=SHARE,
    **told(*_VALUES, quantisation_within=0.001),
)
class CoarserThanPromised(QuantisingAttention):
    """Nothing is wrong, but the quantisation error of 8 bits is more than the 0.1 % that is declared."""
