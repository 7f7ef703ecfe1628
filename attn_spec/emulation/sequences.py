"""The sequences of a call as a kernel reads them from its lengths: their queries, their keys and their diagonals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.options import OPTIONS

#: Options that say where sequences begin and end.
LENGTHS = tuple(name for name, row in OPTIONS.items() if row.moves_diagonal)


@dataclass(frozen=True)
class Sequences:
    """The places where sequences begin and end, integers [B, 1, 1, 1], or one number without lengths."""

    #: Number of queries.
    used_queries: Any
    #: Index of the first key.
    first_keys: Any
    #: Index behind the last key.
    end_keys: Any

    def first_diagonal(self, causal_alignment: str) -> Any:
        """Return the key that the first query is aligned with."""
        return self.end_keys - self.used_queries if causal_alignment == "bottom_right" else self.first_keys

    def aligned_keys(self, query_length: int, causal_alignment: str) -> np.ndarray:
        """Return the key that each query is aligned with, [Sq, 1] or [B, 1, Sq, 1]."""
        return np.arange(query_length)[:, None] + self.first_diagonal(causal_alignment)


def sequences_of(query_length: int, key_length: int, options: Mapping[str, Any]) -> Sequences:
    """Return the sequences of a call with these options; without lengths they have all queries and keys."""

    def given(name: str, otherwise: int) -> Any:
        value = options.get(name)
        return otherwise if value is None else values_of(value).astype(np.int64)

    return Sequences(given("seqused_q", query_length), given("leftpad_k", 0), given("seqused_k", key_length))
