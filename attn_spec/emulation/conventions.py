"""The tiled kernel under any conventions: the output of a query that sees no key, the diagonal, the logarithm's base.

A kernel that promises neither determinism nor batch invariance does without them: its orders change with every call, or
with the number of batch entries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.problem.conventions import OPEN, SAME, Conventions

from .arithmetic import Order
from .forward import TiledAttention
from .passes import steps_of

#: Log-sum-exp of a row without keys, and output of a row behind its sequence, under the convention "undeclared".
_ARBITRARY = 7.0


def varied(base: type[TiledAttention], agreed: Conventions) -> type[Any]:
    """Return a subclass of a tiled kernel, or of its backward pass, that follows the conventions."""
    name = f"Varied{base.__name__}"
    return type(name, (_Varied, base), {"agreed": agreed, "calls": itertools.count()})


class _Varied(TiledAttention if TYPE_CHECKING else object):
    """Steps that differ by convention, inherited before those of a kernel."""

    agreed: Conventions
    #: Counter of the calls of all instances.
    calls: Iterator[int]

    def __init__(self, contract: ResolvedContract, order: Order, *tensors: Any, **options: Any) -> None:
        super().__init__(contract, self.reordered(order, tensors[0]), *tensors, **options)

    def reordered(self, order: Order, first: Any) -> Order:
        """Return the order of this call."""
        change = 0
        if not self.agreed.deterministic:
            change += next(self.calls)
        if not self.agreed.batch_invariant:
            change += len(first)
        return replace(order, seed=order.seed + change)

    def __call__(self) -> Any:
        """Return the answer, whose log-sum-exp is that of the keys alone if the conventions say so."""
        found = super().__call__()
        if self.agreed.sink_in_lse or self.sinks is None:
            return found
        self.sinks = None
        return found[0], super().__call__()[1]

    def handed_over(self, out: np.ndarray, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.agreed_output(out), self.agreed_lse(lse)

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.agreed_output(super().finish(acc, l))

    def agreed_output(self, out: np.ndarray) -> np.ndarray:
        """Return the output with what the conventions say of queries that see no key, or are unused."""
        empty = self.empty_rows()[..., None]
        if self.agreed.unused_rows == OPEN:
            out = np.where(self.there()[..., None], out, _ARBITRARY)
        if self.agreed.empty_row_by_bias == SAME:
            return self.with_empty(out, empty, self.agreed.empty_row)
        by_bias = empty & self.visible_without_bias(np.arange(self.Sk)).any(axis=-1, keepdims=True)
        out = self.with_empty(out, empty & ~by_bias, self.agreed.empty_row)
        return self.with_empty(out, by_bias, self.agreed.empty_row_by_bias)

    def with_empty(self, out: np.ndarray, rows: np.ndarray, choice: str) -> np.ndarray:
        """Return the output with what a convention says of ``rows``, bool [B, Hq, Sq, 1]."""
        if choice == "nan":
            return np.where(rows, np.nan, out)
        return out if choice == "zero" else np.where(rows, self.mean_of_v(), out)

    def empty_rows(self) -> np.ndarray:
        """Return the queries that are there and see no key and no sink, [B, Hq, Sq].

        Other row sums may be 0 too, by underflow.
        """
        empty = np.logical_not(self.visible(np.arange(self.Sk)).any(axis=-1)) & self.there()
        return empty if self.sinks is None else empty & ~self.sees_sink()[..., 0]

    def there(self) -> np.ndarray:
        """Return the queries that are not behind the length of their sequence, [Sq] or [B, 1, Sq]."""
        return (np.arange(self.Sq)[:, None] < self.sequences.used_queries)[..., 0]

    def mean_of_v(self) -> np.ndarray:
        """Return the output of this arithmetic when all scores are 0."""
        steps = steps_of(self.c, self.order)  # without sinks: rows that have one get no mean
        tensors, dropped = (np.zeros(self.q.shape), np.zeros(self.k.shape), self.v), self.dropout_options()
        return steps(self.c, self.order, *tensors, **dropped, o_scale=self.given_descales.get("o_scale"))()[0]

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.agreed_lse(super().log_sum_exp(m, l))

    def agreed_lse(self, lse: np.ndarray) -> np.ndarray:
        """Return the log-sum-exp in the base of the conventions, with what they say of queries that see no key."""
        if self.agreed.lse_base == "2":
            lse = self.round(lse * self.round(math.log2(math.e), "lse"), "lse")
        empty = _ARBITRARY if self.agreed.empty_lse == OPEN else float(self.agreed.empty_lse)
        return np.where(self.empty_rows(), empty, lse)
