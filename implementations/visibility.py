"""Visibility of keys by position: a diagonal, a window with its sinks, chunks.

A query is aligned with key a and may attend to key j of a sequence whose first key is f if

    -left <= j - a, or j - f < sinks,   and   j - a <= right,   and   floor((j - f) / c) = floor((a - f) / c)

where causal attention is right = 0, and c is the chunk. Keys before f are padding. Each condition holds if its number
is not given. Kernels of NumPy and of PyTorch share this file; the suite that judges them does not.
"""

from dataclasses import dataclass
from typing import Any

#: Options by which queries attend to keys by position, beside the corner of the diagonal.
OPTIONS = ("causal", "causal_alignment", "window", "window_sinks", "attention_chunk")


@dataclass(frozen=True)
class Band:
    """The keys that a query may attend to, relative to the key that it is aligned with; None is no condition."""

    left: int | None = None
    right: int | None = None
    #: Number of first keys that the left edge does not mask.
    sinks: int = 0
    chunk: int | None = None

    def sees(self, aligned: Any, j: Any, padding: Any = 0) -> Any:
        """Return whether queries aligned with ``aligned`` [.., Sq, 1] attend to the keys ``j`` [n], as [.., Sq, n].

        ``padding`` is the first key of each sequence, [B, 1, 1, 1], or 0. All are arrays of NumPy, or tensors of
        PyTorch.
        """
        distance = j - aligned
        seen = distance == distance  # noqa: PLR0124 - True everywhere, in the library of the arguments
        if self.left is not None:
            seen = (distance >= -self.left) | (j - padding < self.sinks)
        if self.right is not None:
            seen = seen & (distance <= self.right)
        if self.chunk is not None:
            seen = seen & ((j - padding) // self.chunk == (aligned - padding) // self.chunk)  # floors
        return seen

    def reaches(self, first: Any, last: Any, keys: slice, padding: Any = 0) -> bool:
        """Return False if no query aligned with ``first`` to ``last`` attends to any of the ``keys`` in any sequence.

        A tile of such queries and keys may be skipped. ``first``, ``last`` and ``padding`` are numbers, or [B, 1, 1, 1]
        for the sequences of a batch. Each condition is tested alone, so that some tiles without a visible key are kept.
        """
        found: Any = True
        if self.left is not None:
            found = (keys.stop - 1 >= first - self.left) | (keys.start < self.sinks + padding)
        if self.right is not None:
            found = found & (keys.start <= last + self.right)
        if self.chunk is not None:
            start, end = ((place - padding) // self.chunk for place in (keys.start, keys.stop - 1))
            found = found & (start <= (last - padding) // self.chunk) & (end >= (first - padding) // self.chunk)
        return found if isinstance(found, bool) else bool(found.any())


def band(
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    window_sinks: int | None = None,
    attention_chunk: int | None = None,
) -> Band:
    """Return the band of these options."""
    left, right = window or (None, None)
    return Band(left, 0 if causal else right, window_sinks or 0, attention_chunk)
