"""Mutants of decoding: memory from one call to the next, and chunks of queries beside a cache of keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.tile import Tile

from .mutants import mutant

STEPS = "decoding.steps_in_a_growing_cache_give_the_whole_sequence"
CHUNKS = "decoding.chunks_of_queries_give_the_whole_sequence"
PREFIXES = "decoding.one_prefix_serves_every_continuation"
LAST = "decoding.one_query_of_a_group_of_any_size_gets_the_last_row"
#: Keys in a page.
PAGE = 16


class Remembering(TiledAttention):
    """A kernel with a memory that lasts between its calls."""

    @property
    def memory(self) -> dict[Any, Any]:
        """Return the memory of this kernel alone."""
        made = type(self)
        if "kept" not in vars(made):
            made.kept = {}  # type: ignore[attr-defined]
        return vars(made)["kept"]


@mutant(source="made up: a step of decoding written as that of a recurrent layer", named_by=STEPS)
class StepGoesOnFromTheLast(Remembering):
    """A query with one key more than the last call's continues that call's sums, which are another query's."""

    def fold(self, tiles: Iterable[Tile]) -> tuple[Any, ...]:
        shape = (*self.q.shape, self.Dv)
        before = self.memory.get((*shape, self.Sk - 1)) if self.Sq == 1 else None
        self.goes_on = before
        found = super().fold(tiles)
        self.memory.clear()
        self.memory[*shape, self.Sk] = found
        return found

    def tiles(self) -> Iterator[Tile]:
        for tile in super().tiles():
            newest = tile.cols == self.Sk - 1
            if self.goes_on is None or newest.any():
                seen = tile.visible if self.goes_on is None else tile.visible & newest
                yield Tile(tile.cols, seen, tile.is_last)

    def nothing_seen(self) -> tuple[Any, ...]:
        return super().nothing_seen() if self.goes_on is None else self.goes_on


@mutant(source="made up: the number of pages rounded down", named_by=STEPS)
class NewestPageUnread(TiledAttention):
    """A single query reads full pages of 16 keys only, if there are any: the newest keys are lost."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        full = self.Sk // PAGE * PAGE
        return cols < (full if self.Sq == 1 and full else self.Sk)


@mutant(source="made up: the length of the cache counted in pages", named_by=CHUNKS)
class ChunkAtPage(TiledAttention):
    """The diagonal of a chunk starts at the first key of a page of 16."""

    def diagonal(self) -> np.ndarray:
        late = super().diagonal()
        return late - (late[:1] % PAGE if self.alignment == "bottom_right" and 1 < self.Sq < self.Sk else 0)


@mutant(source="made up: a threshold below which queries are taken for steps of decoding", named_by=CHUNKS)
class ChunkTakenForDecoding(TiledAttention):
    """Up to four queries beside a longer cache see all of it, also the keys after them."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        self.causal = self.causal and not self.Sq <= 4 < self.Sk
        return super().on_band(cols)


@mutant(source="kvcache-ai/Mooncake#4153", named_by=PREFIXES)
class PrefixHitInPart(Remembering):
    """A sequence whose first half is cached gets the keys and values of the cached sequence, to the end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        half = np.asarray(self.k[:, :, : self.Sk // 2], dtype=np.float64)
        key = (self.k.shape, self.v.shape, half.tobytes() if self.Sk > 1 else np.asarray(self.k).tobytes())
        self.k, self.v = self.memory.setdefault(key, (self.k, self.v))


@mutant(source="made up: heads of a group packed into rows of a tile, whose number is a power of 2", named_by=LAST)
class GroupsOfPowersOfTwo(TiledAttention):
    """A single query takes the heads of a group for as many as the next power of 2 when it looks for their kv head."""

    def map_kv_head(self) -> np.ndarray:
        mapped = super().map_kv_head()
        group = self.q.shape[1] // self.k.shape[1]
        return np.arange(len(mapped)) // 2 ** (group - 1).bit_length() if self.Sq == 1 else mapped


@mutant(source="pytorch/executorch#20346, pytorch/executorch#21857", named_by=STEPS)
class WindowLostAtOneQuery(TiledAttention):
    """A single query sees the keys before its window too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.Sq == 1:
            self.window = (None, self.window[1])
