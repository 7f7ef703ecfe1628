"""Sums over rows that blocks of rows add up to."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

#: Metadata of a field that is the largest of its blocks', and of one that holds where it holds of every block.
MAXIMUM: dict[str, Any] = {"by": np.maximum}
CONJUNCTION: dict[str, Any] = {"by": np.logical_and}


@dataclass(frozen=True)
class BlockSums:
    """Facts of some rows, or heads: those of two blocks together are sums, unless a field says otherwise."""

    def __add__(self, other: Self) -> Self:
        both = ((part.name, part.metadata.get("by", operator.add)) for part in fields(self))
        return replace(self, **{name: by(getattr(self, name), getattr(other, name)) for name, by in both})

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Return these sums with ``change`` applied to every field."""
        return replace(self, **{part.name: change(getattr(self, part.name)) for part in fields(self)})
