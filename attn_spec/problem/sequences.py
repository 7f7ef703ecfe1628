"""The sequences of a batch: where the queries and keys of each batch entry begin and end, and its diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.problem.options import OPTIONS
from attn_spec.problem.shapes import Shapes

if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Sequences(Shapes):
    """Sequences of a batch. Entry b has the queries 0 .. n_b - 1, and the keys from f_b up to e_b - 1.

    The tensors have Sq queries and Sk keys for every entry. A query i >= n_b is not *there*: it sees no key, and no
    answer is asked of it.
    """

    #: Index of the key that each query is aligned with, int64 [Sq] or [B, Sq], if the queries are some rows of a longer
    #: problem. No kernel receives it. None: all rows, aligned as ``causal_alignment`` says.
    diagonal: np.ndarray | None = None

    @property
    def has_lengths(self) -> bool:
        """True if an option says where the queries or keys of batch entries begin or end."""
        return any(row.moves_diagonal and row.is_used(getattr(self, name)) for name, row in OPTIONS.items())

    @property
    def used_queries(self) -> np.ndarray:
        """Number n_b of queries of each batch entry, integers [B]."""
        return self._of_entries(self.seqused_q, self.query_length)

    @property
    def first_keys(self) -> np.ndarray:
        """First key f_b of each batch entry, integers [B]."""
        return self._of_entries(self.leftpad_k, 0)

    @property
    def end_keys(self) -> np.ndarray:
        """End e_b of the keys of each batch entry, integers [B]: the index behind the last key."""
        return self._of_entries(self.seqused_k, self.key_length)

    def _of_entries(self, given: Any, otherwise: int) -> np.ndarray:
        return np.broadcast_to(otherwise if given is None else given[:, 0, 0, 0], (self.batch,))

    @property
    def there(self) -> np.ndarray:
        """Queries of the sequences, bool [B, 1, Sq]; other rows are behind the last query of their batch entry."""
        return np.arange(self.query_length) < self.used_queries[:, None, None]

    @property
    def keys_there(self) -> np.ndarray:
        """Keys of the sequences, bool [B, 1, Sk]; others are before or behind the keys of their batch entry."""
        j = np.arange(self.key_length)
        return (self.first_keys[:, None, None] <= j) & (j < self.end_keys[:, None, None])

    @property
    def aligned_keys(self) -> np.ndarray:
        """Index of the key that each query is aligned with, integers [Sq], or [B, Sq] if sequences have lengths.

        That is i + f_b from the top-left corner of a sequence, and i + e_b - n_b from the bottom-right one.
        """
        if self.diagonal is not None:
            return self.diagonal
        is_last = self.causal_alignment == "bottom_right"
        first = self.end_keys - self.used_queries if is_last else self.first_keys
        rows = np.arange(self.query_length)
        return rows + first[:, None] if self.has_lengths else rows + (first[0] if self.batch else 0)

    @property
    def keys_from_first(self) -> np.ndarray:
        """Number j - f_b of each key, counted from the first key of its sequence, integers [1 or B, 1, 1, Sk]."""
        return np.arange(self.key_length) - self._padding

    @property
    def aligned_from_first(self) -> np.ndarray:
        """Number, counted from the first key, of the key that each query is aligned with, [1 or B, 1, Sq, 1]."""
        return np.atleast_2d(self.aligned_keys)[:, None, :, None] - self._padding

    @property
    def _padding(self) -> np.ndarray:
        """First key f_b of each batch entry, [B, 1, 1, 1]; one 0 without padding on the left."""
        return np.zeros((1, 1, 1, 1), dtype=np.int64) if self.leftpad_k is None else self.leftpad_k

    @cached_property
    def distances(self) -> np.ndarray:
        """Distance of each key from the key that the query is aligned with, integers [1 or B, 1, Sq, Sk]."""
        aligned = np.atleast_2d(self.aligned_keys)
        return np.arange(self.key_length) - aligned[:, None, :, None]
