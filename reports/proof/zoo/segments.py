"""Mutants of calls with segment ids: sound kernels that compare the ids of queries and keys wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.places import Segments, integers

from .lengths import ALONE, CORNER, TILE
from .packed import Sequences, packed_mutant


@packed_mutant(source="made up: ids of keys loaded one place too late", named_by=ALONE, presentation="segments")
class IdsOfShiftedKeys(Segments):
    """The id of a query is compared with that of the key behind the one that it is multiplied by."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        return np.maximum(starts - 1, 0), np.where(starts > 0, lengths, np.maximum(lengths - 1, 0))


@packed_mutant(
    source="made up: the id of the first key of a tile for all of them", named_by=ALONE, presentation="segments"
)
class IdOfATile(Segments):
    """The keys of a tile have the id of its first one."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        ids = integers(arguments["kv_segment_ids"])
        of_tile = ids[np.arange(len(ids)) // TILE * TILE]
        return super().sequences(buffer, {**arguments, "kv_segment_ids": of_tile})


@packed_mutant(
    source="made up: ids compared by order, so that a filled-up row attends to its padding",
    named_by=ALONE,
    presentation="segments",
)
class PaddingOfTheLastSegment(Segments):
    """Padding behind the last sequence is taken for keys of it."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        if len(lengths):
            lengths[-1] += (integers(arguments["kv_segment_ids"]) == 0).sum() * (lengths[-1] > 0)
        return starts, lengths


@packed_mutant(
    source="made up: one diagonal of the row, right where sequences have as many queries as keys",
    named_by=CORNER,
    presentation="segments",
)
class DiagonalOfTheRow(Packed):
    """The causal diagonal compares places in the row, where sequences before may have had fewer queries than keys."""

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = super().options_of(arguments)
        if found.pop("causal", False):
            queries, keys = (self.slots(side, self._buffer_of(side, arguments), arguments).of for side in "qk")
            found["mask"] = (keys[:, None] <= queries[:, :, None])[:, None]
        return found
