"""Mutants of caches of int8: sound kernels that read other numbers than the codes, or make codes of the queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.options import FACTORS

from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
MOVED = "descales.a_power_of_two_moves_into_its_tensor"
#: Dtypes of the calls.
CACHE = "q:bfloat16,kv:int8"


def reads(*, source: str, named_by: str = OUTPUT) -> Callable[[type[TiledAttention]], type[TiledAttention]]:
    """Register how a sound kernel reads a cache of int8, other than it must."""
    told: dict[str, Any] = {"dtype": CACHE, "dtypes": (CACHE,), "takes": (*FACTORS, "descale_by_head")}
    return mutant(source=source, named_by=named_by, **told)


@reads(source="InfiniTensor/InfiniLM#553")
class ZeroPointOfValues(TiledAttention):
    """Codes of values are read less a zero point of 1, which symmetric codes do not have."""

    def load_v(self) -> Any:
        return super().load_v() - 1


@reads(source="made up: a cache of bytes that is read as unsigned integers")
class CodesReadUnsigned(TiledAttention):
    """Negative codes of keys are read as numbers from 128 to 255."""

    def load_k(self) -> Any:
        k = super().load_k()
        return self.xp.where(k < 0, k + 256, k)


@reads(source="made up: products in units of integers, which queries enter as codes too")
class QueriesRoundedToIntegers(TiledAttention):
    """Queries are rounded to multiples of 1/127 of the largest one of their head."""

    def __init__(self, contract: Any, order: Any, q: Any, *tensors: Any, **options: Any) -> None:
        x = values_of(q)
        unit = np.abs(x).max(axis=(2, 3), keepdims=True, initial=0.0) / 127
        super().__init__(contract, order, np.rint(x / np.where(unit > 0, unit, 1)) * unit, *tensors, **options)


@reads(source="sgl-project/sgl-kernel-xpu#252", named_by=MOVED)
class IntegersTimesDescaleOfTheNextHead(TiledAttention):
    """The codes of a key head are multiplied by the descale of the next one."""

    def read_descale(self, name: str) -> np.ndarray:
        d = super().read_descale(name)
        return d if name == "q_descale" else np.roll(d, -1, axis=1)


@reads(source="made up: a shift by a bit too many before codes are read")
class CodesReadIn7Bits(TiledAttention):
    """Values beyond 63 are read as 63 of their sign."""

    def load_v(self) -> Any:
        v = super().load_v()
        return self.xp.where(v > 63, 63 + 0 * v, self.xp.where(v < -63, -63 + 0 * v, v))
