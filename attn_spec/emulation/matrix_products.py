"""Matrix products under any arithmetic: pieces of their factors, and accumulators that add one product or one block.

Matrix units that truncate are those of ``attn_spec.contract.products``. Such a unit aligns a block of exact products
and the accumulator to the largest of them. It truncates and adds them, and truncates the sum to the accumulator's
format.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from attn_spec.contract.products import on_matrix_unit

from .arithmetic import Arithmetic, rounded

Pair = Callable[[int], tuple[Any, Any]]


class MatrixProducts(Arithmetic):
    """Sums of products of numbers that were rounded on entry."""

    def enter(self, x: Any, source: str = "input") -> Any:
        """Return operands as a product reads them: the sum of their pieces. ``source`` is their stage or format."""
        return sum(self.pieces(x, source))

    def pieces(self, x: Any, source: str = "input") -> list[Any]:
        """Return pieces in the format of multiplicands: each rounds what the pieces before it left of x."""
        found = []
        for _ in range(self.c.multiplicand_pieces):
            found.append(self.convert(x, "multiplicands", source))
            x = x - found[-1]
        return found

    def products(self, x: Any, y: Any) -> list[Any]:
        """Return the products of pieces that are added for the product of two operands that have entered."""
        if self.c.multiplicand_pieces == 1:
            return [x * y if self.c.products is None else self.round(x * y, "products")]
        pairs = itertools.product(enumerate(self.pieces(x)), enumerate(self.pieces(y)))
        return [a * b for (i, a), (j, b) in pairs if i + j < self.c.multiplicand_pieces]

    def add_products(self, pair: Pair, count: int, stage: str, start: Any = 0.0) -> Any:
        """Return start + the sum over t below ``count`` of x y for (x, y) = pair(t), in the accumulators of a stage."""
        if self.c.inner_accumulation is None:
            return self._add_to(start, pair, list(self.visited(count)), stage)
        total = start
        products = self._all_products(pair, self.visited(count))
        while part := list(itertools.islice(products, self.c.inner_terms)):
            total = self.add(total, self._add_all(0.0, part, "inner_accumulation"), stage)
        return self.as_array(total)

    def _all_products(self, pair: Pair, terms: Iterable[int]) -> Iterator[Any]:
        return (p for t in terms for p in self.products(*pair(t)))

    def _add_to(self, total: Any, pair: Pair, terms: list[int], stage: str) -> Any:
        """Return total + the sum of some terms in the accumulator of a stage."""
        if self.order.sums == "pairwise" and terms and not on_matrix_unit(self.c):
            return self.add(total, self._tree(lambda t: sum(self.products(*pair(t))), 0, len(terms), stage), stage)
        return self._add_all(total, self._all_products(pair, terms), stage)

    def _add_all(self, total: Any, products: Iterable[Any], accumulator: str) -> Any:
        """Return total + the sum of products, added one by one or, on a matrix unit that truncates, in blocks."""
        if on_matrix_unit(self.c):
            return self._add_blocks(total, iter(products), accumulator)
        for p in products:
            total = self.add(total, p if self.order.fused else self.round(p, accumulator), accumulator)
        return self.as_array(total)

    def _add_blocks(self, total: Any, products: Iterator[Any], accumulator: str) -> Any:
        while block := list(itertools.islice(products, self.c.matrix_block)):
            total = self.add_block(total, block, accumulator)
        return self.as_array(total)

    def add_block(self, total: Any, block: list[Any], accumulator: str) -> Any:
        """Return total + the sum of a block, on a matrix unit."""
        form = self.c.format(accumulator)
        parts = np.stack(np.broadcast_arrays(total, *block))
        if self.c.matrix_block > 1:
            _, exponent = np.frexp(np.abs(parts).max(axis=0))
            grid = np.ldexp(1.0, np.maximum(exponent - form.precision - self.c.matrix_extra_bits, -1074))
            parts = np.where(np.isfinite(parts), np.trunc(parts / grid) * grid, parts)
        return rounded(parts.sum(axis=0), form.name, "toward_zero", flushed=self.c.flushes(form))
