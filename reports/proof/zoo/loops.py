"""Mutants of loops over blocks of queries and tiles of keys: where they start and end, and which tiles need a mask.

Queries come in blocks of 24 and keys in tiles of 16, so that the edges of the two seldom meet.
"""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

DIAGONAL = "causality.the_diagonal_is_where_the_convention_says"
FUTURE = "causality.future_keys_change_nothing"
BAND = "masking.a_window_is_the_mask_of_its_band"
#: Queries in a block, and keys in a tile.
BM, BN = 24, 16


class Blocked(TiledAttention):
    """The kernel knows the block that each query belongs to."""

    def block_start(self) -> np.ndarray:
        """Return the key that the first query of each query's block is aligned with, [Sq, 1]."""
        return self.diagonal() - np.arange(self.Sq)[:, None] % BM


@mutant(source="made up: blocks of queries that are no multiple of the tiles of keys", named_by=DIAGONAL)
class CausalLoopEndsEarly(Blocked):
    """The last tile of a causal loop is the end of the block divided by the tile, rounded down."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        reached = cols < (self.block_start() + BM) // BN * BN
        return super().on_band(cols) & (reached | (not self.causal))


@mutant(source="made up: full tiles judged by their first key", named_by=FUTURE)
class DiagonalTileOpen(Blocked):
    """A tile counts as below the diagonal, and is not masked, when its first key is."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        below = self.causal & (cols[0] <= self.block_start()) & (self.window == (None, None))
        return super().on_band(cols) | below


@mutant(source="made up: a causal loop in two stages, full tiles and those on the diagonal", named_by=DIAGONAL)
class TileBetweenStagesSkipped(Blocked):
    """Full tiles end at the block's start rounded down, those on the diagonal start there rounded up."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        start = self.block_start()
        skipped = (cols >= start // BN * BN) & (cols < -(-start // BN) * BN)
        return super().on_band(cols) & ~(skipped & self.causal)


@mutant(source="made up: a window's loop bounds taken from the wrong end of the block", named_by=BAND)
class WindowLoopStartsLate(Blocked):
    """The loop over a window starts where the window of the block's last query does."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        left = np.inf if self.window[0] is None else self.window[0]
        last = np.minimum(self.block_start() + BM - 1, self.diagonal()[-1:])
        return super().on_band(cols) & (cols >= (last - left) // BN * BN)


@mutant(source="made up: a branch for windows that forgets the flag for causal attention", named_by=BAND)
class CausalLostWithWindow(TiledAttention):
    """With a window on the left, causal attention is not causal."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        self.causal = self.causal and self.window[0] is None
        return super().on_band(cols)


@mutant(source="made up: one diagonal for the flag and another for the window", named_by=BAND)
class WindowFromTopLeft(TiledAttention):
    """The window starts at the query's own index, whatever the alignment of the diagonal."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        left = self.window[0]
        near = cols >= np.arange(self.Sq)[:, None] - (np.inf if left is None else left)
        self.window = (None, self.window[1])
        seen = super().on_band(cols) & near
        self.window = (left, self.window[1])
        return seen
