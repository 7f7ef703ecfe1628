"""Mutants of descales: left out, applied twice, of another tensor, head or tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.forward import TiledAttention
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS

from .mutants import mutant

OWN = "descales.each_key_has_its_own_descale"
MOVED = "descales.a_power_of_two_moves_into_its_tensor"
KEYS = "descales.doubling_the_descale_of_keys_is_doubling_the_scale"
VALUES = "descales.doubling_the_descale_of_values_doubles_the_output"
#: Descales, and the abilities of kernels that take several numbers in each.
DESCALED = (*FACTORS, *DESCALE_AXES)
#: Tiles with so few keys that short sequences have several.
SHORT = Order(kv_tile=4)


@mutant(source="vllm-project/vllm#42580", named_by=MOVED, takes=DESCALED)
class DescaleMissing(TiledAttention):
    """The descale of the keys is left out where q has one too."""

    def read_descale(self, name: str) -> np.ndarray:
        d = super().read_descale(name)
        return np.ones_like(d) if name == "k_descale" and "q_descale" in self.given_descales else d


@mutant(source="sgl-project/sgl-kernel-xpu#252", named_by=MOVED, takes=DESCALED)
class DescaleScalar(TiledAttention):
    """The first number of a descale is read for all batch entries, heads and keys."""

    def read_descale(self, name: str) -> np.ndarray:
        d = super().read_descale(name)
        return np.broadcast_to(d[:1, :1, :1], d.shape)


@mutant(source="made up: descales indexed as queries are", named_by=MOVED, takes=DESCALED)
class DescaleOfQueryHead(TiledAttention):
    """Query head h has the descale of key head h, or of the last one, in place of that of head h // group."""

    def per_query_head(self, x: np.ndarray) -> np.ndarray:
        return x if x.shape[1] == 1 else x[:, np.minimum(np.arange(self.q.shape[1]), x.shape[1] - 1)]


@mutant(source="vllm-project/vllm#48016", named_by=KEYS, takes=DESCALED)
class DescaleTwice(TiledAttention):
    """The scores of dequantized keys are multiplied by the descale of the keys once more."""

    def apply_scale(self, s: Any) -> Any:
        s = super().apply_scale(s)
        return self.times(s, self.descales("k_descale"), "stored_scores") if "k_descale" in self.given_descales else s


@mutant(source="sgl-project/sglang#26852, in review", named_by=VALUES, takes=DESCALED)
class KScaleForV(TiledAttention):
    """Values are multiplied by the descale of the keys, if there is one."""

    def read_descale(self, name: str) -> np.ndarray:
        return super().read_descale("k_descale" if name == "v_descale" and "k_descale" in self.given_descales else name)


@mutant(
    source="made up: a scale in memory that is overwritten before its use",
    named_by=OWN,
    takes=DESCALED,
    order=SHORT,
)
class DescaleOfTheNextTile(TiledAttention):
    """The descales of the next tile have overwritten those of a tile before they are used."""

    def of_keys_of_tile(self, x: np.ndarray) -> np.ndarray:
        if x.shape[2] <= 1:
            return x
        size = len(self.tile.cols)
        return x[:, :, np.minimum(self.tile.cols + size, x.shape[2] - 1)]


@mutant(source="sgl-project/sglang#34765", named_by=VALUES, takes=(*DESCALED, "latent"))
class VScaleMissingInLatent(TiledAttention):
    """The descale of the values is left out where values are columns of the keys, which have a descale."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | ({"v_descale": None} if options.get("latent") else {}))
