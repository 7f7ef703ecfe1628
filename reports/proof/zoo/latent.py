"""Mutants of multi-head latent attention: a wrong scale, values read at wrong columns, a part of keys left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

ABSORBED = "latent.absorbing_the_projections_changes_nothing"
LATENT = ("latent",)


@mutant(source="ollama/ollama#13893", named_by=ABSORBED, takes=LATENT)
class AbsorbedScale(TiledAttention):
    """The scale is 1/sqrt(D), the width of a key with its compressed part, for whatever scale is passed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "scale": None})


@mutant(source="made up: a cache whose rotated part is thought to come first", named_by=ABSORBED, takes=LATENT)
class LatentVWithRope(TiledAttention):
    """Values are the last Dv columns of the keys, which end with the rotated part."""

    def load_v(self) -> np.ndarray:
        return self.load(self.k[..., self.k.shape[-1] - self.Dv :])


@mutant(source="ROCm/aiter#3698, the reverse", named_by=ABSORBED, takes=LATENT)
class ValuesOfPackedRows(TiledAttention):
    """Values are read from the buffer of the keys as if its rows had Dv columns."""

    def load_v(self) -> np.ndarray:
        rows = self.k.reshape(*self.k.shape[:2], -1)[..., : self.Sk * self.Dv]
        return self.load(rows.reshape(*rows.shape[:2], self.Sk, self.Dv))


@mutant(source="made up: scores that are products with the values", named_by=ABSORBED, takes=LATENT)
class RotatedPartLeftOut(TiledAttention):
    """Scores are products of the compressed parts alone."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return super().score(np.where(np.arange(self.D) < self.Dv, q, 0.0), k)
