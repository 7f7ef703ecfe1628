"""Mutants of calls that make the scales of what they append: sound kernels that store other scales or codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.contract.quantisers import Quantiser
from attn_spec.emulation.appended import AppendedQuantising
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.kernels.presentations.table import PRESENTATIONS

from .mutants import introduce

QUANTISED = "appending.new_tokens_are_quantised_as_declared"
LATER = "appending.later_calls_attend_to_what_earlier_ones_have_quantised"
#: Caches of scales.
SCALES = ("k_descale", "v_descale")
#: Options and abilities of the kernels.
TAKES = ("scale", "causal", "causal_alignment", "gqa", "dv", "cross", "lse", *SCALES)
#: Queries and caches of a call, and its options.
Begun = tuple[tuple[Any, ...], dict[str, Any]]
Wrong = TypeVar("Wrong", AppendedQuantising, Append)


def made(
    name: str, cache: str, presentation: str, *, fields_of: Mapping[str, Any] | None = None, **steps: Any
) -> Kernel:
    """Return a kernel with a cache of this dtype that makes the scales of what it appends, with some other steps.

    Its quantisers divide exactly, unless ``fields_of`` says otherwise.
    """
    exact = {"format": cache, "block": 1, "over": "appended", "division_error": 0.0}
    of = exact | dict(fields_of or {})
    quantisers = tuple(Quantiser(of=each, **of) for each in "kv")
    return emulate(
        name,
        replace(PRECISE, quantisers=quantisers),
        dtypes=(f"q:bfloat16,kv:{cache}",),
        contract=replace(FUSED, quantisers=quantisers),
        supports=(*TAKES, "descale_by_head", "descale_by_key"),
        always=SCALES,
        option_dtypes=dict.fromkeys(SCALES, "float32"),
        conventions={"unused": "unread"},
        presentation=presentation,
        **steps,
    )


def writes(
    *, source: str, named_by: str = QUANTISED, cache: str = "int8", presentation: str = "append_paged"
) -> Callable[[type[Wrong]], type[Wrong]]:
    """Register how a sound kernel quantises what it appends, or reads its calls, other than it must."""

    def register(wrong: type[Wrong]) -> type[Wrong]:
        def build(name: str, dtype: str) -> Kernel:
            del dtype  # the one of the cache
            if issubclass(wrong, AppendedQuantising):
                return made(name, cache, presentation, quantises=wrong)
            right = PRESENTATIONS[presentation]
            reads = wrong(**{item.name: getattr(right, item.name) for item in fields(right)})
            return made(name, cache, presentation, reads=reads)

        dtype = f"q:bfloat16,kv:{cache}"
        return introduce(wrong, build, source=source, named_by=named_by, dtype=dtype, dtypes=(dtype,))

    return register


@writes(source="made up: a reduction over all of a token")
class OneScaleForAllHeads(AppendedQuantising):
    """A token has one scale for all heads, of the largest number in any of them."""

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        found = super().largest_of_blocks(quantiser, x)
        return np.broadcast_to(found.max(axis=1, keepdims=True, initial=0.0), found.shape)


@writes(source="made up: a scale for each call, as of one token", presentation="append")
class ScaleOfTheFirstNewToken(AppendedQuantising):
    """All new tokens of a sequence have the scale of the first one, so that larger numbers saturate."""

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        found = super().largest_of_blocks(quantiser, x)
        return np.broadcast_to(found[:, :, :1], found.shape)


@writes(source="made up: a maximum without magnitudes", cache="float8_e4m3fn")
class LargestWithoutMagnitude(AppendedQuantising):
    """A scale is that of the largest number of a token, and not of the largest magnitude."""

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        return super().largest_of_blocks(quantiser, np.maximum(x, 0.0))


@writes(source="vllm-project/vllm#51091")
class ScalesFilledWithOnes(AppendedQuantising):
    """The cache of scales has 1 for new tokens, as if it were made only after their codes were written."""

    def stored_scales(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return np.ones_like(super().stored_scales(quantiser, scales))


@writes(source="made up: the factor that numbers were multiplied by", cache="float8_e4m3fn", presentation="append")
class StoredReciprocalOfTheScale(AppendedQuantising):
    """The cache of scales has their reciprocals."""

    def stored_scales(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return 1 / np.where(scales == 0, 1.0, super().stored_scales(quantiser, scales))


@writes(source="made up: the number of codes of one sign")
class ScaleOver128(AppendedQuantising):
    """A scale is the largest magnitude over 128, so that the largest number has no code."""

    def scales(self, quantiser: Quantiser, most: np.ndarray) -> np.ndarray:
        return super().scales(quantiser, most * (127 / 128))


@writes(source="made up: a conversion to integers that cuts", presentation="append_indexed")
class NewCodesCut(AppendedQuantising):
    """Codes of new tokens are cut, toward 0."""

    def rounded_to_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:
        return super().rounded_to_codes(replace(quantiser, rounding="toward_zero"), t)


@writes(source="made up: zeros over a scale of 0", cache="float8_e4m3fn")
class ZerosOverZero(AppendedQuantising):
    """A token of zeros has the codes of 0 / 0."""

    def codes(self, quantiser: Quantiser, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        return np.where(scales == 0, np.nan, super().codes(quantiser, x, scales))


@writes(source="vllm-project/vllm#49716")
class ScalesInTheNextSlot(AppendedQuantising):
    """The scale of a new token is written where that of the next new token belongs."""

    def stored_scales(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:
        return np.roll(super().stored_scales(quantiser, scales), 1, axis=2)


@writes(source="made up: scales that are copied for a recorded graph", named_by=LATER, presentation="append")
class ScalesOfTheFirstCall(Append):
    """Later calls attend with the scales that a cache had after the first call with it, 1 for tokens behind these."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        found, after = super().begun(tensors, options)
        for name, cache in zip(SCALES, tensors[1:3], strict=True):
            cache.kept = getattr(cache, "kept", after[name].clone().nan_to_num(1.0))
            after[name] = cache.kept
        return found, after
