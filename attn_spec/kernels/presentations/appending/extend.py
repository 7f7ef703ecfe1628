"""Calls that extend sequences: new keys lie beside their queries, and the keys before them in a pool.

The call reads both and writes neither. So a problem is the attention of the last queries of each sequence, which has as
many new keys as queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.kernels.presentations import placement
from attn_spec.kernels.presentations.appending.append import CACHES, NEW
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.pages import ListedPages
from attn_spec.kernels.presentations.packing.places import Further, integers
from attn_spec.kernels.presentations.presentation import Handed
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Extend(Packed):
    """Queries and new keys one behind the other, and a pool [slots, H, D] of the keys before them.

    ``qo_indptr`` bounds the queries and the new keys of each sequence. ``kv_indptr`` and ``kv_indices`` list the slots
    of its earlier keys. The pool has room for the new keys too, which holds poison.
    """

    #: Places of the keys before the new ones.
    keys: ListedPages

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("q", *NEW.values(), *CACHES.values())

    @property
    def recognised_by(self) -> tuple[str, ...]:
        return (*self.tensors[1:], *self.says_where)

    def refusal(self, option: str) -> str:
        if option in ("backward", "lse_backward"):
            return "since keys are apart from those before them, and no gradients of both are asked for"
        if option in (*FACTORS, *DESCALE_AXES):
            return "since new keys are not stored yet, and those before them alone have a descale"
        return super().refusal(option)

    def further(self, problem: Problem) -> Further:
        table, needed = self.keys.drawn(problem, self.placement)
        before = needed - problem.used_queries
        listed = self.keys.listed(table, before, tight=self.placement.is_tight(problem))
        return self.queries.further(problem, self.placement) | listed

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        whole, count = super().handed(problem, unread=unread), problem.query_length
        tensors = {CACHES.get(name, name): x for name, x in whole.tensors.items()}
        first = (problem.end_keys - problem.used_queries)[:, None] + np.arange(count)
        at = np.minimum(first, max(problem.key_length - 1, 0))[:, None, :, None]
        buffer = self.queries.buffer(problem, self.placement)
        slots = self.queries.slots(buffer, whole.further, count)
        for name, new in NEW.items():
            own = np.take_along_axis(getattr(problem, name), at, axis=2)
            filled = slots.fill(own, placement.poison(problem, name, unread))
            tensors[new] = self.queries.laid_out(self.queries.axes, filled, buffer)
        return Handed(tensors, whole.further)

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        """Return the queries, and keys and values of which the new ones lie behind the pool's."""
        del arguments
        q, *others = tensors
        k, v = (_behind(pool, new) for pool, new in zip(others[2:], others[:2], strict=True))
        return q, k, v

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return q, k and v of a call, and its options, in which ``kv_indices`` lists the new keys too."""
        return self.apart(*tensors), self.listing(options, int(tensors[3].shape[0]))

    def listing(self, options: Mapping[str, Any], pool: int) -> dict[str, Any]:
        """Return the options of a call with lists of all keys, where new ones lie behind the slots of a ``pool``."""
        starts, bounds, listed = (integers(options[name]) for name in ("qo_indptr", "kv_indptr", "kv_indices"))
        every = [
            np.append(listed[a:b], pool + np.arange(m, n))
            for a, b, m, n in zip(bounds[:-1], bounds[1:], starts[:-1], starts[1:], strict=True)
        ]
        ends = np.cumsum([0, *map(len, every)])
        found = np.concatenate([*every, np.zeros(0, dtype=np.int64)])
        return {**options, "kv_indptr": ends.astype(np.int32), "kv_indices": found.astype(np.int32)}


def _behind(pool: Any, new: Any) -> Any:
    """Return the slots of two tensors of a framework as one tensor, on the CPU."""
    both = np.concatenate([values_of(pool), values_of(new)])
    return of(new).give(both, of(new).dtype_of(new), "cpu")
