"""Slots of a buffer: where each query or key of a problem lies in it, in the order that packing or paging gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Slots:
    """A buffer of ``count`` slots [count, H, ..], and the slot of each query or key of a problem."""

    count: int
    #: Slot of each position of each batch entry, int64 [B, S]; -1 where no query or key is.
    of: np.ndarray

    @property
    def free(self) -> np.ndarray:
        """Slots that hold no query or key of the problem, bool [count]."""
        found = np.ones(self.count, dtype=bool)
        found[self.of[self.of >= 0]] = False
        return found

    def fill(self, x: np.ndarray, poison: float | None) -> np.ndarray:
        """Return an array [B, H, S, ..] as a buffer [count, H, ..].

        Free slots hold ``poison``. With None they hold the numbers of used slots in turn, those of the first sequence
        first; without used slots they hold 0.
        """
        entries, places = np.nonzero(self.of >= 0)
        buffer = np.full((self.count, x.shape[1], *x.shape[3:]), poison or 0.0)
        buffer[self.of[entries, places]] = x[entries, :, places]
        if poison is None and len(entries):
            free = np.flatnonzero(self.free)
            other = np.arange(len(free)) % len(entries)
            buffer[free] = x[entries[other], :, places[other]]
        return buffer

    def back(self, y: Any) -> Any:
        """Return a buffer [count, H, ..], an array or tensor, as [B, H, S, ..] with 0 where no query or key is."""
        if not self.of.size:
            return y[:0].reshape(*self.of.shape, *y.shape[1:]).swapaxes(1, 2)
        found = y[np.maximum(self.of, 0)]
        _as_bytes(found)[self.of < 0] = 0
        return found.swapaxes(1, 2)


def _as_bytes(x: Any) -> Any:
    """Return a tensor of numbers of 8 bits as its bytes, since PyTorch writes no number to it; others unchanged."""
    if not str(x.dtype).startswith("torch.float8"):
        return x
    import torch

    return x.view(torch.uint8)


def packed(starts: np.ndarray, lengths: np.ndarray, most: int, count: int) -> Slots:
    """Return the slots of sequences of these ``lengths`` [B], each of which begins at its start, [B, most]."""
    j = np.arange(most)
    return Slots(count, np.where(j < lengths[:, None], starts[:, None] + j, -1))


def paged(table: np.ndarray, lengths: np.ndarray, most: int, pages: int, size: int) -> Slots:
    """Return the slots of sequences whose pages, of ``size`` slots each, are the rows of a table [B, ..], [B, most].

    No sequence has keys past its row of the table.
    """
    j = np.arange(most)
    page = table[:, np.minimum(j // size, table.shape[1] - 1)]
    return Slots(pages * size, np.where(j < lengths[:, None], page * size + j % size, -1))
