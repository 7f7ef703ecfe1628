"""The arithmetic of a contract on float64 arrays: one rounding per operation, sums in a chosen order.

Each operation computes in float64 and rounds to the format of its stage, so that tf32 or a bfloat16 accumulator
can be run where no hardware has it. A sum of exact products is first rounded to float64, which moves a result of at
most 24 bits by less than 2^-28 of its own rounding; in float64 itself a product is rounded before it is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec import bits
from attn_spec.contract import Contract
from attn_spec.formats import FORMATS

#: Formats that NumPy rounds to faster, the same bits as bits.nearest.
_NATIVE = {"float64", "float32", "float16"}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a contract leaves open: tiling, orders, and how much of the allowed error is spent."""

    #: Keys per tile; the last tile is padded with zeros. None is the whole row.
    kv_tile: int | None = 16
    #: "forward", "reverse" or "random".
    tiles: str = "forward"
    #: Order of every sum: "sequential", "pairwise" or "random".
    sums: str = "sequential"
    seed: int = 0
    #: Share of the contract's errors of exp, log and tanh committed; above 1 is a defect.
    inaccuracy: float = 0.0
    #: Signs of those errors: "random" (they look so), "up" (every result too large) or "down".
    error_signs: str = "random"


def rounded(x: np.ndarray, dtype: str, rounding: str = "nearest", subnormals: str = "kept") -> np.ndarray:
    """Round to a format as a contract's ``rounding`` and ``subnormals`` say; float64 has no bits to truncate."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if rounding == "toward_zero" and dtype != "float64":
            grid, largest = bits.spacing(x, dtype), FORMATS[dtype].largest
            y = np.where(np.isinf(x), x, np.clip(np.trunc(x / grid) * grid, -largest, largest))
        else:
            y = np.asarray(x, dtype).astype(np.float64) if dtype in _NATIVE else bits.nearest(x, dtype)
    if subnormals == "flushed" and FORMATS[dtype].emin == FORMATS["float32"].emin:
        y = np.where(np.abs(y) < FORMATS[dtype].smallest_normal, np.copysign(0.0, y), y)
    return y


class Arithmetic:
    """The operations of a kernel under a resolved contract."""

    def __init__(self, contract: Contract, order: Order) -> None:
        self.c, self.order = contract, order

    @property
    def is_base2(self) -> bool:
        """Whether scores are in units of ln 2 when they are exponentiated."""
        return self.c.exponent == "base2"

    @property
    def log2e(self) -> np.ndarray:
        return self.round(math.log2(math.e), "score_accumulation")

    def round(self, x: Any, stage: str) -> np.ndarray:
        """One result of a stage."""
        return rounded(np.asarray(x, np.float64), getattr(self.c, stage), self.c.rounding, self.c.subnormals)

    def enter(self, x: np.ndarray) -> np.ndarray:
        """Operands as a product reads them."""
        return self.round(x, "multiplicands")

    def exponential(self, x: np.ndarray) -> np.ndarray:
        """exp(x), or exp2(x) under a base-2 contract; exactly 1 at 0 if the contract says so."""
        y = np.exp2(x) if self.is_base2 else np.exp(x)
        exact = (x == 0) & self.c.exp_of_zero_is_one
        return self.round(y * (1 + np.where(exact, 0.0, self.error_of("exp_error", x))), "softmax")

    def logarithm(self, x: np.ndarray) -> np.ndarray:
        """The logarithm that inverts :meth:`exponential`."""
        y = np.log2(x) if self.is_base2 else np.log(x)
        return self.round(y + self.error_of("log_error", x) * (1 + np.abs(y)), "softmax")

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return self.round(np.tanh(x) + self.error_of("tanh_error", x), "stored_scores")

    def error_of(self, function: str, x: np.ndarray) -> np.ndarray:
        """The error committed at x: the order's share of what the contract allows, of the order's sign."""
        u = FORMATS["float64" if self.c.score_accumulation == "float64" else "float32"].unit_roundoff
        return self.order.inaccuracy * getattr(self.c, function) * u * self._sign_of_error(x)

    def _sign_of_error(self, x: np.ndarray) -> np.ndarray | float:
        if self.order.error_signs == "random":
            return np.where(np.sin(1e4 * x + 1) > 0, 1.0, -1.0)
        return {"up": 1.0, "down": -1.0}[self.order.error_signs]

    def accumulate(
        self, term: Callable[[int], np.ndarray], count: int, stage: str, start: np.ndarray | float = 0.0
    ) -> np.ndarray:
        """start + term(0) + .. + term(count - 1) in the stage's format, one rounding per addition."""
        if self.order.sums == "pairwise":
            return self.round(start + self._tree(term, 0, count, stage), stage)
        terms: Iterable[int] = range(count)
        if self.order.sums == "random":
            terms = np.random.default_rng(self.order.seed).permutation(count)
        total = np.asarray(start)
        for t in terms:
            total = self.round(total + term(t), stage)
        return total

    def _tree(self, term: Callable[[int], np.ndarray], first: int, last: int, stage: str) -> np.ndarray:
        if last - first == 1:
            return self.round(term(first), stage)
        middle = (first + last) // 2
        return self.round(self._tree(term, first, middle, stage) + self._tree(term, middle, last, stage), stage)
