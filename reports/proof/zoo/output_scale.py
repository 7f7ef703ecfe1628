"""Mutants of the scale of an output, and of the cast of the output to 8 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE

from .mutants import mutant

DIVIDED = "output_scale.an_output_is_divided_by_its_scale"
LARGEST = "output_scale.outputs_above_the_largest_number_become_it"
#: Outputs in float8_e4m3fn, whose cast saturates, as vLLM's Triton kernels write them.
EIGHT: dict[str, Any] = {"output": "float8_e4m3fn", "output_overflow": "saturates"}
OF_EIGHT: dict[str, Any] = {
    "contract": replace(FUSED, **EIGHT),
    "executes": replace(PRECISE, **EIGHT),
    "takes": ("o_scale",),
    "dtype": "float32",
}


@mutant(source="vllm-project/vllm#36297", named_by=DIVIDED, **OF_EIGHT)
class OutputScaleMultiplied(TiledAttention):
    """The output is multiplied by its scale in place of divided."""

    def output_scale(self) -> float:
        return 1 / super().output_scale()


@mutant(source="made up: a scale that the last step of a kernel is not given", named_by=DIVIDED, **OF_EIGHT)
class OutputScaleMissing(TiledAttention):
    """The output is stored without being divided by its scale."""

    def scaled_output(self, o: Any) -> Any:
        return o


@mutant(source="made up: a kernel and what is fused behind it both divide", named_by=DIVIDED, **OF_EIGHT)
class OutputScaleTwice(TiledAttention):
    """The output is divided by its scale twice."""

    def scaled_output(self, o: Any) -> Any:
        return super().scaled_output(super().scaled_output(o))


@mutant(source="sgl-project/sglang#40581", named_by=LARGEST, **OF_EIGHT)
class OutputSaturatesEarly(TiledAttention):
    """Outputs of the last binade, from 256 on in float8_e4m3fn, become the largest number."""

    def held_output(self, o: Any) -> Any:
        return np.where(np.abs(o) >= 256, np.copysign(self.c.format("output").largest, o), o)


@mutant(source="uxlfoundation/oneDNN#5626", named_by=LARGEST, **OF_EIGHT)
class OutputNanAbove448(TiledAttention):
    """An output above 464 becomes NaN in float8_e4m3fn, where 448 is declared."""

    def held_output(self, o: Any) -> Any:
        return o
