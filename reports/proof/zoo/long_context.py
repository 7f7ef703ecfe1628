"""Mutants of chunks and of windows with sinks: which chunk a query is in, and which edges sinks pass."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import LONG_CONTEXT
from attn_spec.problem import masks

from .loops import BN, Blocked
from .mutants import mutant

OUTSIDE = "chunks.keys_outside_the_chunk_change_nothing"
CHUNK = "chunks.a_chunk_is_the_mask_of_its_keys"
OWN = "chunks.each_chunk_is_attention_of_its_own"
WHOLE = "chunks.a_chunk_of_all_keys_hides_none"
BETWEEN = "window_sinks.keys_between_sinks_and_window_change_nothing"
SINKS = "window_sinks.sinks_are_seen_past_the_left_edge_alone"
EDGE = "window_sinks.the_edge_of_a_chunk_masks_sinks"
EVERY = "window_sinks.as_many_sinks_as_keys_take_the_left_edge_away"


@mutant(source="sgl-project/sglang#8649", named_by=CHUNK, takes=LONG_CONTEXT)
class ChunkByRow(TiledAttention):
    """A query's chunk is that of its own index, not of the key that it is aligned with."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return masks.in_chunk(np.arange(self.Sq)[:, None], cols, self.chunk)


@mutant(source="made up: integer division as in C", named_by=CHUNK, takes=LONG_CONTEXT)
class ChunkTruncated(TiledAttention):
    """The quotient of a place before key 0 is rounded towards 0, so that its query is in the first chunk."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return cols // self.chunk == np.trunc(self.diagonal() / self.chunk)


@mutant(source="made up: a chunk taken for a sliding window", named_by=OWN, takes=LONG_CONTEXT)
class ChunkAsWindow(TiledAttention):
    """A query sees the last c keys up to its own place, in place of a chunk."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return masks.band(cols - self.diagonal(), self.chunk - 1, 0)


@mutant(source="made up: an inclusive end where an exclusive one was meant", named_by=OUTSIDE, takes=LONG_CONTEXT)
class ChunkOneTooLong(TiledAttention):
    """A chunk ends with the first key of the next one."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return super().in_chunk(cols) | super().in_chunk(cols - 1)


@mutant(source="made up: masked keys, but values that are loaded", named_by=OUTSIDE, takes=LONG_CONTEXT)
class ValuesOutsideChunk(TiledAttention):
    """Keys outside the chunk are masked, but their values are loaded and multiplied by zero."""

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        found = super().accumulate_output(acc, w, v)
        if self.chunk is None:
            return found
        outside = ~self.in_chunk(self.tile.cols)
        leaked = np.where(outside[..., None] & (w[..., None] == 0), w[..., None] * v[:, :, None], 0.0)
        return found + leaked.sum(axis=-2)


@mutant(source="made up: a shift in place of a division", named_by=OWN, takes=LONG_CONTEXT)
class ChunkOfPowersOfTwo(TiledAttention):
    """The chunk is rounded down to a power of 2, by which a shift divides."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return masks.in_chunk(self.diagonal(), cols, 1 << (self.chunk.bit_length() - 1))


@mutant(source="made up: a loop over the tiles of one chunk", named_by=OWN, takes=LONG_CONTEXT)
class ChunkLoopStartsLate(Blocked):
    """The loop over keys starts at the chunk of the last query of a block, which may hold queries of two chunks."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        last = np.minimum(self.block_start() + 23, self.diagonal()[-1:])
        start = last // self.chunk * self.chunk
        return super().in_chunk(cols) & (cols >= start // BN * BN)


@mutant(source="made up: chunks as a branch of the causal mask", named_by=CHUNK, takes=LONG_CONTEXT)
class ChunkOnlyIfCausal(TiledAttention):
    """Without causal attention there are no chunks."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return super().in_chunk(cols) | (not self.causal)


@mutant(source="made up: a chunk that must fit into a tile", named_by=WHOLE, takes=LONG_CONTEXT)
class ChunkOfATile(TiledAttention):
    """A chunk has at most 16 keys, those of one tile."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return masks.in_chunk(self.diagonal(), cols, min(self.chunk, BN))


@mutant(source="made up: the number of sinks is hard-coded", named_by=EVERY, takes=LONG_CONTEXT)
class SinksAtMostFour(TiledAttention):
    """A window has four sinks at most, as many as the paper uses."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        self.window_sinks = min(self.window_sinks, 4)
        return super().on_band(cols)


@mutant(source="made up: the loop over a window skips the tiles before it", named_by=SINKS, takes=LONG_CONTEXT)
class SinksSkipped(Blocked):
    """The loop over keys starts at the window of a block's first query, so that sinks in earlier tiles are lost."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        left = self.window[0]
        start = -np.inf if left is None else (self.block_start() - left) // BN * BN
        return super().on_band(cols) & (cols >= start)


@mutant(source="made up: sinks are always visible", named_by=SINKS, takes=LONG_CONTEXT)
class SinksPastTheDiagonal(TiledAttention):
    """Sinks pass the causal diagonal and the right edge too, so that queries see sinks after them."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        seen = super().on_band(cols) | (cols < self.window_sinks)
        return seen if self.chunk is None else seen & self.in_chunk(cols)


@mutant(source="made up: sinks tested after the chunk, as in hopper/mask.h", named_by=EDGE, takes=LONG_CONTEXT)
class SinksPastTheChunk(TiledAttention):
    """Sinks pass the edge of a chunk: queries of every chunk see the first keys."""

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        return super().in_chunk(cols) | (cols < self.window_sinks)


@mutant(source="made up: columns counted from the start of a tile", named_by=BETWEEN, takes=LONG_CONTEXT)
class SinksOfEveryTile(TiledAttention):
    """Columns are counted from the start of a tile, so that every tile has sinks of its own."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        seen = super().on_band(cols)
        if self.window[0] is None:
            return seen
        open_left, (left, right) = self.window_sinks, self.window
        self.window, self.window_sinks = (None, right), 0
        without_left = super().on_band(cols)
        self.window, self.window_sinks = (left, right), open_left
        return seen | (without_left & (cols % BN < open_left))


@mutant(source="made up: <= for < in the test of sinks", named_by=BETWEEN, takes=LONG_CONTEXT)
class OneSinkTooMany(TiledAttention):
    """The key after the last sink is visible as well."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        given, self.window_sinks = self.window_sinks, self.window_sinks + 1 if self.window_sinks else 0
        seen = super().on_band(cols)
        self.window_sinks = given
        return seen
