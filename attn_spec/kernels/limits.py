"""Limits of a kernel on problems whose options and abilities it declares, and one check of all limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from attn_spec.problem.problem import Problem

#: Axes whose lengths ``largest`` may limit, each with its name in messages.
MEASURED = {
    "B": "batch entries",
    "H": "query heads",
    "BH": "batch entries times query heads",
    "Q": "queries",
    "K": "keys",
}
#: Largest number of blocks in the second and third axis of a CUDA grid (CUDA C++ Programming Guide, compute
#: capabilities).
GRID = 65535
#: Largest length of problems that are drawn entry by entry.
TINY = 3


class NotTaken(Exception):  # noqa: N818 -- no error: it says that a problem is none of the kernel's
    """A kernel does not take a problem; the message says why."""


@dataclass(frozen=True)
class _Widths:
    """Widths that ``head_dims`` allow, all in the order of the pairs (D, Dv)."""

    pairs: tuple[tuple[int, int], ...]
    #: Each D with the Dv beside it, and each Dv with the D beside it.
    of_query: Mapping[int, tuple[int, ...]]
    of_value: Mapping[int, tuple[int, ...]]
    equal: tuple[int, ...]


@cache
def _widths(head_dims: tuple[int | tuple[int, int], ...]) -> _Widths:
    """Return the widths that ``head_dims`` allow, once for each: all dimensions up to 512 make 262,144 pairs."""
    alone = [dim for dim in head_dims if isinstance(dim, int)]
    each = [[(dim, other) for other in alone] if isinstance(dim, int) else [dim] for dim in head_dims]
    pairs = tuple(dict.fromkeys(itertools.chain.from_iterable(each)))
    of_query: dict[int, list[int]] = {}
    of_value: dict[int, list[int]] = {}
    for dim, other in pairs:
        of_query.setdefault(dim, []).append(other)
        of_value.setdefault(other, []).append(dim)
    return _Widths(
        pairs=pairs,
        of_query={dim: tuple(others) for dim, others in of_query.items()},
        of_value={dim: tuple(others) for dim, others in of_value.items()},
        equal=tuple(dim for dim, other in pairs if dim == other),
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that a kernel sets to problems. No property is searched beyond them."""

    #: Head dimensions; None is any. A number is a dimension of queries and of values: (64, 128) takes all four
    #: combinations. A pair (D, Dv) takes this dimension of queries beside this one of values, as ((576, 512),).
    head_dims: tuple[int | tuple[int, int], ...] | None = None
    #: Numbers of query heads; None is any. (32,) is a kernel that is written for one model.
    query_heads: tuple[int, ...] | None = None
    #: Numbers of kv heads; None is any. (1,) is multi-query attention, and latent attention as engines decode with it.
    kv_heads: tuple[int, ...] | None = None
    #: Numbers of query heads that each kv head may have; None is any. (1, 2, 4, 8) are the groups that a kernel is
    #: compiled for.
    group_sizes: tuple[int, ...] | None = None
    #: Required divisors of the query length ("Q") and of the key length ("K").
    multiples: Mapping[str, int] = field(default_factory=dict)
    #: Largest numbers of batch entries ("B"), query heads ("H"), batch entries times query heads ("BH"), queries ("Q")
    #: and keys ("K"), for instance 65,535 where each is a block in an axis of a CUDA grid.
    largest: Mapping[str, int] = field(default_factory=dict)
    #: Query lengths, of a call and of its sequences; None is any. (1,) is a kernel for decoding. A sequence may also
    #: have no query.
    query_lengths: tuple[int, ...] | None = None
    #: True if the key length must be at least the query length, of each sequence.
    keys_reach_queries: bool = False
    #: Least number of keys of each sequence: 1 if a sequence without keys is never asked for.
    least_keys: int = 0
    #: True if each sequence has as many keys as queries, as in self-attention.
    equal_lengths: bool = False
    #: Numbers of keys that a page of a cache may have; None is any.
    page_sizes: tuple[int, ...] | None = None
    #: True if no buffer has a slot, and no list of pages a number, behind those of the last sequence. Some sequence has
    #: a query then, and some a key, since engines pass no buffer without slots.
    tight_buffers: bool = False
    #: Largest position of ``rotary``, for instance the last row of a table of cosines; None is any.
    largest_position: int | None = None
    #: True if the scale must be above 0, as in a kernel that takes the maximum of unscaled scores.
    positive_scale: bool = False
    #: True if the kernel refuses tensors that are not contiguous, such as views of a transposed or larger one.
    contiguous: bool = False
    #: Options that every problem must use.
    always: tuple[str, ...] = ()
    #: Pairs of options that the kernel does not combine, e.g. ("causal", "mask").
    exclusive: tuple[tuple[str, str], ...] = ()
    #: Options that the kernel takes only beside one of others, e.g. {"window": ("causal",)}.
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def step(self, axes: str) -> int:
        """Return the least length that is divisible by the divisors of all these axes."""
        return math.lcm(*(self.multiples.get(axis, 1) for axis in axes))

    @property
    def takes_any_shape(self) -> bool:
        """True if no limit, but abilities alone, restrict shapes of at most ``TINY`` of everything."""
        lengths = self.step("QK") == 1 and min(self.largest.values(), default=math.inf) >= TINY
        shapes = (self.head_dims, self.query_heads, self.kv_heads, self.group_sizes, self.query_lengths)
        return lengths and all(limit is None for limit in shapes) and not self.keys_reach_queries

    def most(self, axis: str) -> float:
        """Return the largest length of an axis, a key of ``MEASURED``, that no limit forbids; infinity if none does."""
        own = {name: self.largest.get(name, math.inf) for name in MEASURED}
        if axis == "BH":
            return min(own["BH"], own["B"] * own["H"])
        if axis in "BH":
            return min(own[axis], own["BH"])
        found = min(own["Q"], self.most("K")) if axis == "Q" and self.keys_reach_queries else own[axis]
        return found if math.isinf(found) else found // self.step(axis) * self.step(axis)

    @property
    def widths(self) -> tuple[tuple[int, int], ...] | None:
        """Pairs (D, Dv) of the head dimensions that the kernel takes, in the order of ``head_dims``; None is any."""
        return None if self.head_dims is None else _widths(self.head_dims).pairs

    @property
    def query_dims(self) -> tuple[int, ...] | None:
        """Head dimensions D of queries, in the order of ``head_dims``; None is any."""
        return None if self.head_dims is None else tuple(_widths(self.head_dims).of_query)

    @property
    def equal_dims(self) -> tuple[int, ...] | None:
        """Head dimensions of queries and of values that are as wide, in the order of ``head_dims``; None is any."""
        return None if self.head_dims is None else _widths(self.head_dims).equal

    @property
    def value_dims(self) -> tuple[int, ...] | None:
        """Head dimensions Dv of values, in the order of ``head_dims``; None is any."""
        return None if self.head_dims is None else tuple(_widths(self.head_dims).of_value)

    def value_dims_beside(self, query_dim: int) -> tuple[int, ...]:
        """Return the head dimensions of values that ``head_dims`` have beside this one of queries."""
        return () if self.head_dims is None else _widths(self.head_dims).of_query.get(query_dim, ())

    def query_dim(self, value_dim: int) -> int:
        """Return a dimension D of queries that the kernel takes beside values of Dv: the same if it does, else the
        least.
        """
        taken = () if self.head_dims is None else _widths(self.head_dims).of_value.get(value_dim, ())
        return value_dim if value_dim in taken or not taken else min(taken)

    def value_dim(self, query_dim: int) -> int:
        """Return a dimension Dv of values that the kernel takes beside queries of D: the same if it does, else the
        largest.
        """
        taken = self.value_dims_beside(query_dim)
        return query_dim if query_dim in taken or not taken else max(taken)

    def heads(self, drawn: tuple[int, int]) -> tuple[int, int]:
        """Return numbers (Hq, Hkv) of heads that the kernel takes, grouped as ``drawn`` if it takes any such.

        Without ``query_heads`` groups stay as large as drawn, or as near to it as ``group_sizes`` has it. With them the
        number of query heads nearest to the drawn one is chosen. ``largest`` may ask for fewer.
        """
        heads, kv_heads = drawn
        if self.group_sizes is not None:
            alike = [size for size in self.group_sizes if (size == 1) == (heads == kv_heads)] or self.group_sizes
            heads = kv_heads * min(alike, key=lambda size: abs(size - heads // kv_heads))
        if self.kv_heads is not None and kv_heads not in self.kv_heads:
            heads, kv_heads = heads // kv_heads * self.kv_heads[0], self.kv_heads[0]
        if self.query_heads is None:
            return heads, kv_heads
        alike = [pair for pair in self.pairs_of_heads if (pair[0] == pair[1]) == (drawn[0] == drawn[1])]
        near = min(abs(pair[0] - heads) for pair in alike or self.pairs_of_heads)
        able = [pair for pair in alike or self.pairs_of_heads if abs(pair[0] - heads) == near]
        return min(able, key=lambda pair: abs(pair[1] - kv_heads))

    @property
    def pairs_of_heads(self) -> list[tuple[int, int]]:
        """Numbers (Hq, Hkv) of heads that the kernel takes, if it limits those of query heads; else none."""
        every = self.query_heads or ()
        pairs = [(heads, n) for heads in every for n in self.kv_heads or range(1, heads + 1) if heads % n == 0]
        return [pair for pair in pairs if self.group_sizes is None or pair[0] // pair[1] in self.group_sizes]

    @property
    def needed(self) -> tuple[str, ...]:
        """Options and abilities that every problem uses: those in ``always``, dv if no pair of widths is equal, and gqa
        if no pair of numbers of heads is.
        """
        unequal = ["dv"] if self.equal_dims == () else []
        no_pair = self.query_heads is not None and all(heads != other for heads, other in self.pairs_of_heads)
        if no_pair or (self.group_sizes is not None and 1 not in self.group_sizes):
            unequal.append("gqa")
        return (*self.always, *(name for name in unequal if name not in self.always))

    def alone(self, used: Collection[str]) -> list[str]:
        """Return those of the used options that ``beside`` wants beside others, none of which is used."""
        return [name for name, others in self.beside.items() if name in used and set(others).isdisjoint(used)]

    @property
    def of_sequences(self) -> bool:
        """True if a limit restricts the lengths of sequences."""
        reach = self.keys_reach_queries or self.equal_lengths or self.tight_buffers
        return self.query_lengths is not None or reach or self.least_keys > 0

    def within(self, other: Limits) -> Limits:
        """Return these limits with those that ``other`` sets, of a presentation or of the backward pass.

        Raises :class:`ValueError` if no number, of those that both allow for something, is within both.
        """
        numbers = {name: _common(name, getattr(self, name), getattr(other, name)) for name in _NUMBERS}
        flags = {name: getattr(self, name) or getattr(other, name) for name in _FLAGS}
        lists = {name: tuple(dict.fromkeys((*getattr(self, name), *more))) for name, more in _set_lists(other).items()}
        positions = [most for most in (self.largest_position, other.largest_position) if most is not None]
        own = self.widths if other.head_dims is not None else self.head_dims
        return replace(
            self,
            **numbers,
            **flags,
            **{"always": tuple(self.always), **lists},
            head_dims=_common("head_dims", own, other.widths),
            multiples=_joined(math.lcm, self.multiples, other.multiples),
            largest=_joined(min, self.largest, other.largest),
            least_keys=max(self.least_keys, other.least_keys) if other.least_keys else self.least_keys,
            largest_position=min(positions) if other.largest_position is not None else self.largest_position,
            beside=_joined(lambda one, two: tuple(name for name in one if name in two), self.beside, other.beside),
        )

    def refusal(self, problem: Problem) -> str:
        """Return why the kernel does not take the problem; an empty text if it does."""
        return next(self._reasons(problem), "")

    def _reasons(self, problem: Problem) -> Iterator[str]:
        Q, K, used = problem.query_length, problem.key_length, problem.options()
        if problem.diagonal is not None:
            yield "it is some rows of a longer problem; give the kernel all rows"
        yield from self._reasons_of_heads(problem)
        for axis, length in (("Q", Q), ("K", K)):
            if length % self.step(axis):
                yield f"the length of {axis} must be a multiple of {self.step(axis)}"
        yield from self._too_many(problem)
        yield from self._reasons_of_lengths(problem)
        if self.largest_position is not None and largest_position(problem) > self.largest_position:
            yield f"positions must be at most {self.largest_position}"
        if self.positive_scale and problem.scale_value <= 0:
            yield "the scale must be above 0"
        yield from (f"it always uses {name}" for name in self.always if name not in used)
        yield from (f"it does not combine {' and '.join(pair)}" for pair in self.exclusive if used.issuperset(pair))
        yield from (f"it takes {name} only beside {' or '.join(self.beside[name])}" for name in self.alone(used))

    def _reasons_of_lengths(self, problem: Problem) -> Iterator[str]:
        """Yield why the kernel does not take the lengths of the sequences of a problem."""
        Q, K = problem.query_length, problem.key_length
        queries, keys = problem.used_queries, np.maximum(problem.end_keys - problem.first_keys, 0)
        if self.query_lengths is not None and not {Q, *queries[queries > 0].tolist()} <= set(self.query_lengths):
            yield f"the number of queries must be among {self.query_lengths}"
        if self.equal_lengths and (K != Q or (problem.end_keys != queries).any() or problem.first_keys.any()):
            yield "there must be as many keys as queries"
        if self.keys_reach_queries and (K < Q or (keys < queries).any()):
            yield "there must be a key for every query"
        if self.tight_buffers and not (queries.sum() and keys.sum()):
            yield "there must be a query and a key"
        if keys.min(initial=self.least_keys) < self.least_keys:
            yield f"each sequence must have at least {self.least_keys} keys"

    def _too_many(self, problem: Problem) -> Iterator[str]:
        """Yield what a problem has more of than ``largest`` allows."""
        for axis, length in measured(problem).items():
            if length > self.largest.get(axis, math.inf):
                yield f"the number of {MEASURED[axis]} must be at most {self.largest[axis]}"

    def _reasons_of_heads(self, problem: Problem) -> Iterator[str]:
        """Yield why the kernel does not take the widths and the number of the heads of a problem."""
        width = problem.head_value_dim if problem.states else problem.scored_width  # a state has a value alone
        if self.head_dims is not None and problem.head_value_dim not in self.value_dims_beside(width):
            yield f"head dimensions must be among {self.head_dims}"
        heads = 1 if problem.projects else problem.query_heads
        if self.query_heads is not None and heads not in self.query_heads:
            yield f"the number of query heads must be among {self.query_heads}"
        if self.kv_heads is not None and problem.kv_heads not in self.kv_heads:
            yield f"the number of kv heads must be among {self.kv_heads}"
        if self.group_sizes is not None and heads // max(problem.kv_heads, 1) not in self.group_sizes:
            yield f"the number of query heads for each kv head must be among {self.group_sizes}"


#: Limits that are numbers, any of which a problem may have; those that are true or false; and those that are lists.
_NUMBERS = ("query_heads", "kv_heads", "group_sizes", "query_lengths", "page_sizes")
_FLAGS = ("keys_reach_queries", "equal_lengths", "tight_buffers", "positive_scale", "contiguous")
_LISTS = ("always", "exclusive")


def _set_lists(limits: Limits) -> dict[str, tuple[Any, ...]]:
    """Return the limits that are lists and have an entry, by name."""
    return {name: found for name in _LISTS if (found := getattr(limits, name))}


def _common(name: str, own: Any, other: tuple[Any, ...] | None) -> Any:
    """Return the numbers of the limit ``name`` that are within both tuples; None is any number.

    Raises :class:`ValueError` if there are none.
    """
    if other is None or not isinstance(own, tuple):
        return own if other is None else other
    if not (common := tuple(n for n in other if n in own)):
        raise ValueError(f"{name}={own} has none of the numbers {other}")
    return common


def _joined(of_both: Callable[[Any, Any], Any], own: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what either mapping has, and ``of_both`` values that both have; without others the own stay unchanged."""
    changed = {name: of_both(own[name], value) if name in own else value for name, value in other.items()}
    return {**own, **changed} if other else own


def measured(problem: Problem) -> dict[str, int]:
    """Return the lengths that ``largest`` may limit, by axis."""
    lengths = {axis: problem.lengths[axis] for axis in "BHQK"}
    return {**lengths, "BH": lengths["B"] * lengths["H"]}


def largest_position(problem: Problem) -> int:
    """Return the largest position of ``rotary``, given or counted along the longer of queries and keys; 0 without
    rotary.
    """
    if problem.rotary is None:
        return 0
    given = (problem.rotary_query_positions, problem.rotary_key_positions)
    counted = max(problem.query_length, problem.key_length, 1) - 1
    return max(counted if places is None else int(places.max(initial=0)) for places in given)
