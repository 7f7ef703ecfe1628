"""Presentations of a whole call: from a problem to the arguments of a kernel, and from its answer to the problem.

In a presentation without the batch axis, or without batch and head axes, the kernel is called once for each entry. In
one that packs, tensors are buffers of slots, and integers beside them say which sequence has which slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attn_spec.kernels import memory, slots
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.layout import Layout
from attn_spec.kernels.slots import Slots
from attn_spec.numbers import bits
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import QUANTITIES

#: Tensors and quantities in the presentation's layout, each with the argument that has its number of heads if heads are
#: joined. All others have their own axes [B, H, ..], without those that the layout lacks.
LAID_OUT = {
    **dict.fromkeys(("q", "output", "dq"), "query_heads"),
    **dict.fromkeys(("k", "v", "dk", "dv"), "kv_heads"),
}

#: Arguments of a call that are no options: tensors, numbers of heads, and where sequences lie.
_NO_OPTIONS = {"q", "k", "v", "query_heads", "kv_heads"}


@dataclass(frozen=True)
class Handed:
    """The arguments of one call, by attn-spec's own names."""

    #: Arrays of q, k, v and the options in use, with the axes that the kernel sees.
    tensors: dict[str, np.ndarray]
    #: Keyword arguments that the presentation adds: numbers, and int32 arrays of them.
    further: Mapping[str, int | np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """A row of the table of presentations."""

    #: Axes of the tensors that a kernel is given, in words.
    says: str
    #: Layout of q, k, v, the output and their gradients.
    layout: Layout
    #: Options that travel in the arguments of the presentation. They are not passed under names of their own.
    carries: frozenset[str] = frozenset()

    @property
    def calls_once(self) -> bool:
        """True if one call is given a whole problem; else each is given one batch entry or one head."""
        return not self.layout.lacks

    @property
    def is_view(self) -> bool:
        """True if the kernel sees the axes of a problem in another order, so that reading a tensor copies nothing."""
        return self.calls_once and not self.layout.joins_heads

    @property
    def of_one_head(self) -> bool:
        """True if each call is given one head of one batch entry."""
        return "H" in self.layout.lacks

    def can_say(self, option: str) -> bool:
        """Return whether a call can pass an option, or what an ability needs."""
        del option
        return True

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        """Return the arguments of a call for one of the :meth:`parts` of a problem.

        Places that hold no query or key of the problem may hold NaN if they are ``unread``, else finite numbers.
        """
        del unread  # every place of these tensors is one of the problem's
        tensors = [name for name, row in OPTIONS.items() if row.tensor is not None]
        given = {name: getattr(problem, name) for name in ("q", "k", "v", *tensors)}
        heads = {"query_heads": problem.query_heads, "kv_heads": problem.kv_heads}
        return Handed(
            {name: self.presented(name, x) for name, x in given.items() if x is not None},
            heads if self.layout.joins_heads else {},
        )

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        """Return the shape in a call for ``problem`` of a tensor or quantity."""
        shape = _shape(problem, name)
        return self.layout.shape(shape) if name in LAID_OUT else shape[len(self.layout.lacks) :]

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        """Return a quantity that a call for ``problem`` returned, with the axes [B, H, ..] of the problem."""
        return self._read(name, x, _shape(problem, name)[1])

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity [B, H, ..] of one call as the kernel sees it.

        The keyword arguments are those of the call, q and k among them, as the kernel sees them.
        """
        del arguments
        return self.layout.laid_out(x) if name in LAID_OUT else self.layout.without_lacking(x)

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity that a kernel sees with its axes [B, H, ..]; the inverse of :meth:`presented`.

        The keyword arguments of the call have the number of heads if heads are joined. The tensors of a layer have one
        head, which its projections map to several.
        """
        projects = arguments.get("query_projection") is not None
        return self._read(name, x, 1 if projects else arguments.get(LAID_OUT.get(name, ""), 1))

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a call, those that it carries among them.

        The arguments are all of the call: its keywords, and q and k as the kernel sees them.
        """
        return {name: x for name, x in arguments.items() if name not in _NO_OPTIONS}

    def _read(self, name: str, x: Any, heads: int) -> Any:
        return self.layout.read(x, heads) if name in LAID_OUT else self.layout.with_lacking(x)

    def place(self, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return where the kernel sees the element at ``index`` [b, h, ..]; the presentation :attr:`is_view`."""
        return self.layout.place(index) if name in LAID_OUT else index

    def index(self, name: str, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index [b, h, ..] of the element at ``place``; the inverse of :meth:`place`."""
        return self.layout.index(place) if name in LAID_OUT else place

    def turned(self, other: Presentation) -> str:
        """Return the expression that makes of ``out`` a tensor of another presentation; both :attr:`is_view`."""
        order = self.layout.places("".join(other.layout.axes))
        moved = [place for place, axis in enumerate(order) if place != axis]
        return f"out.swapaxes{tuple(moved)}" if len(moved) == 2 else f"out with its axes in the order {order}"

    def parts(self, problem: Problem) -> Iterator[Problem]:
        """Yield the problems that a kernel is called for, in the order of batch entries and heads."""
        entries = [None] if self.calls_once else range(problem.batch)
        for entry in entries:
            one = problem if entry is None else problem.take("B", [entry])
            heads = range(problem.kv_heads) if self.of_one_head else [None]
            yield from (one if head is None else one.take("H", [head]) for head in heads)

    def shares(self, name: str, problem: Problem) -> bool:
        """Return whether several calls share an option's tensor, so that its gradient is a sum over these calls."""
        broadcast = [axis for axis in problem.broadcast_axes(name) if axis < len(self.layout.lacks)]
        return not self.calls_once and any(problem.score_shape[axis] > 1 for axis in broadcast)

    def cotangent(
        self, part: Problem, name: str, values: np.ndarray, number: int, *, unread: bool = False
    ) -> np.ndarray:
        """Return the part of the cotangent [B, H, ..] of a quantity that the ``number``-th call, for ``part``, is
        given. ``unread`` is that of :meth:`handed`.
        """
        del part, unread
        if self.of_one_head:
            entry, head = divmod(number, values.shape[1])
            values = values[entry : entry + 1, head : head + 1]
        elif not self.calls_once:
            values = values[number : number + 1]
        return self.presented(name, values)

    def whole(self, problem: Problem, name: str, parts: list[np.ndarray]) -> np.ndarray:
        """Return a quantity of the problem [B, H, ..] from those of the calls for its parts."""
        shape = _shape(problem, name)
        return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape)

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first entry along the named axes of a tensor, see ``memory.expanded``."""
        return partial(memory.expanded, axes=self.layout.places(axes))

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return for each named axis a function that puts its entries far apart, see ``memory.far_apart``."""
        return [partial(memory.far_apart, axis=place) for place in self.layout.places(axes)]


#: Quantities that lie where queries lie, and those that lie where keys lie.
_OF_QUERIES, _OF_KEYS = ("q", "output", "dq"), ("k", "v", "dk", "dv")
#: Log-sum-exp and its cotangent, [H, T] in a packed call.
_OF_ROWS = ("lse", "dlse")
#: Free slots behind the last query or key of a packed buffer, at least.
SPARE = 3
#: Largest product, in magnitude, of a finite poison with a query or key of the problem. As a score it outweighs all
#: others, and no format of tensors overflows at it.
LARGEST_PRODUCT = 2.0**9
#: Magnitude of a finite poison among values and cotangents.
LARGE = 2.0**4


@dataclass(frozen=True, kw_only=True)
class Packed(Presentation):
    """Sequences one behind the other: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv].

    The output is [Tq, Hq, Dv], the log-sum-exp [Hq, Tq]. ``cu_seqlens_q`` and ``cu_seqlens_k``, int32 [B + 1], are the
    bounds of the sequences. ``max_seqlen_q`` and ``max_seqlen_k`` are at least the largest lengths. The buffers are
    longer than all sequences together; what lies behind the last one is poison. Lengths of buffers, ``max_seqlen`` and
    the kind of poison follow from the shapes of a problem alone, so that equal shapes are handed over alike.
    """

    carries: frozenset[str] = frozenset({"seqused_q", "seqused_k"})
    #: Arguments that say where the sequences lie.
    says_where: tuple[str, ...] = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")

    @property
    def calls_once(self) -> bool:
        return True

    @property
    def is_view(self) -> bool:
        return False

    @property
    def of_one_head(self) -> bool:
        return False

    def can_say(self, option: str) -> bool:
        """Return whether a call can pass an option, or what an ability needs.

        It can unless the option, or the one that it belongs to, has a number for each query or key of a rectangle.
        """
        row = OPTIONS.get(option)
        owner = ABILITIES[option].of if row is None else row.of
        has_places = row is not None and row.tensor is not None and bool({"Q", "K"} & set(row.axes))
        return option in self.carries or (not has_places and (not owner or self.can_say(owner)))

    def buffer(self, problem: Problem, side: str) -> tuple[int, ...]:
        """Return the leading lengths of the buffers of queries ("q") or keys ("k")."""
        return (problem.batch * (problem.query_length if side == "q" else problem.key_length) + SPARE,)

    def further(self, problem: Problem) -> dict[str, int | np.ndarray]:
        """Return the arguments that say where the sequences lie."""
        found: dict[str, int | np.ndarray] = {}
        for side in "qk":
            found[f"cu_seqlens_{side}"] = np.concatenate([[0], np.cumsum(_used(problem, side))]).astype(np.int32)
        return found | {f"max_seqlen_{side}": _stated_longest(problem, side) for side in "qk"}

    def sequences(
        self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first slot and the length of each sequence, integers [B], as the arguments of a call say."""
        del buffer
        bounds = _integers(arguments[f"cu_seqlens_{side}"])
        return bounds[:-1], np.diff(bounds)

    def slots(self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        """Return the slots of queries or keys in a buffer of these leading lengths, as the arguments of a call say.

        ``most`` is the length of the problem's axis, by default that of the longest sequence.
        """
        starts, lengths = self.sequences(side, buffer, arguments)
        longest = int(lengths.max(initial=0)) if most is None else most
        return slots.packed(starts, lengths, longest, math.prod(buffer))

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        further = self.further(problem)
        names = [name for name, row in OPTIONS.items() if row.tensor is not None and name not in self.carries]
        tensors = {}
        for name in ("q", "k", "v"):
            side, x = _side(name), getattr(problem, name)
            buffer = self.buffer(problem, side)
            filled = self.slots(side, buffer, further, x.shape[2]).fill(x, _poison(problem, name, unread))
            tensors[name] = filled.reshape(*buffer, *filled.shape[1:])
        given = {name: getattr(problem, name) for name in names}
        return Handed(tensors | {name: x for name, x in given.items() if x is not None}, further)

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        shape = _shape(problem, name)
        if name not in LAID_OUT:
            return (shape[1], *self.buffer(problem, "q")) if name in _OF_ROWS else shape
        return (*self.buffer(problem, _side(name)), shape[1], shape[3])

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        length = _shape(problem, name)[2]
        return self._placed(name, x, self.further(problem), length)

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity of a call with its axes [B, H, S, ..], S being that of the longest sequence."""
        return self._placed(name, x, arguments)

    def _placed(self, name: str, x: Any, arguments: Mapping[str, Any], most: int | None = None) -> Any:
        if name in _OF_ROWS:
            return self.slots("q", x.shape[1:], arguments, most).back(x.swapaxes(0, 1))
        if name not in LAID_OUT:
            return x
        found = self.slots(_side(name), tuple(x.shape[:-2]), arguments, most)
        return found.back(x.reshape(found.count, *x.shape[-2:]))

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        return self._filled(name, x, 0.0, arguments) if name in (*LAID_OUT, *_OF_ROWS) else x

    def _filled(self, name: str, x: np.ndarray, poison: float, arguments: Mapping[str, Any]) -> np.ndarray:
        side = _side(name)
        buffer = tuple(arguments[side].shape[:-2])
        filled = self.slots(side, buffer, arguments, x.shape[2]).fill(x, poison)
        return filled.swapaxes(0, 1) if name in _OF_ROWS else filled.reshape(*buffer, *filled.shape[1:])

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for side in "qk":
            used = self.slots(side, tuple(arguments[side].shape[:-2]), arguments).of >= 0
            found[f"seqused_{side}"] = used.sum(axis=1)[:, None, None, None]
        return {name: x for name, x in super().options_of(arguments).items() if name not in self.says_where} | found

    def cotangent(
        self, part: Problem, name: str, values: np.ndarray, number: int, *, unread: bool = False
    ) -> np.ndarray:
        del number
        buffers = {"q": np.empty((*self.buffer(part, "q"), 0, 0))}
        return self._filled(name, values, np.nan if unread else LARGE, self.further(part) | buffers)

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first head if heads are among the axes; no slot stands for another."""
        return lambda x: memory.expanded(x, [x.ndim - 2] if "H" in axes else [])

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return one function that puts the slots of a buffer far apart, whichever axes of a problem are named."""
        del axes
        return [partial(memory.far_apart, axis=0)]


#: Keys of a page, one of which the shapes of a problem choose.
PAGE_SIZES = (16, 1, 4, 3)


@dataclass(frozen=True, kw_only=True)
class Paged(Packed):
    """Packed queries, and keys and values in caches [pages, page size, Hkv, D].

    ``seqused_k``, int32 [B], is the number of keys of each sequence. Key j is in the page ``block_table[b, j // size]``
    at the place j % size; the table is int32 [B, ..]. Pages lie in an order of chance, which follows from the shapes of
    a problem. Pages of no sequence are poison, and so is what lies behind the last key in its page. The table names a
    page of no sequence behind the pages of each one.
    """

    says_where: tuple[str, ...] = ("cu_seqlens_q", "block_table", "seqused_k", "max_seqlen_q", "max_seqlen_k")

    def buffer(self, problem: Problem, side: str) -> tuple[int, ...]:
        if side == "q":
            return super().buffer(problem, side)
        size = PAGE_SIZES[_one_of(problem, len(PAGE_SIZES), "page size")]
        return (problem.batch * -(-problem.key_length // size) + 2, size)

    def further(self, problem: Problem) -> dict[str, int | np.ndarray]:
        found = super().further(problem)
        del found["cu_seqlens_k"]
        pages, size = self.buffer(problem, "k")
        most = -(-problem.key_length // size)
        order = _chance(problem, "pages").permutation(pages)
        own = np.append(
            order[: problem.batch * most].reshape(problem.batch, most), np.zeros((problem.batch, 1)), axis=1
        )
        needed = -(-problem.end_keys // size)
        table = np.where(np.arange(most + 1) < needed[:, None], own, order[-1])
        found["block_table"], found["seqused_k"] = table.astype(np.int32), problem.end_keys.astype(np.int32)
        return found

    def slots(self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        if side == "q":
            return super().slots(side, buffer, arguments, most)
        table, lengths = self.pages(buffer, arguments)
        return slots.paged(table, lengths, int(lengths.max(initial=0)) if most is None else most, *buffer)

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pages [B, ..] and the number of keys [B] of each sequence, as the arguments of a call say."""
        del buffer
        return _integers(arguments["block_table"]), _integers(arguments["seqused_k"])


def _side(name: str) -> str:
    """Return whether a tensor or quantity lies where queries lie, "q", or where keys lie, "k"."""
    return "k" if name in _OF_KEYS else "q"


def _integers(x: Any) -> np.ndarray:
    """Return an integer tensor of any framework as int64."""
    return values_of(x).astype(np.int64)


def _used(problem: Problem, side: str) -> np.ndarray:
    """Return the number of queries or keys of each batch entry, integers [B]."""
    return problem.used_queries if side == "q" else problem.end_keys


def _one_of(problem: Problem, ways: int, about: str) -> int:
    """Return a number below ``ways`` that depends on the shapes of the problem, and on what it is about."""
    return int(_chance(problem, about).integers(ways))


def _chance(problem: Problem, about: str) -> np.random.Generator:
    """Return random numbers that depend on the shapes of the problem, and on what they are about."""
    return np.random.default_rng((*problem.q.shape, *problem.k.shape, *problem.v.shape, *about.encode()))


def _stated_longest(problem: Problem, side: str) -> int:
    """Return the largest length as a call states it: exact, or the axis of the problem, or a multiple of 128."""
    longest, axis = int(_used(problem, side).max(initial=0)), problem.lengths[{"q": "Q", "k": "K"}[side]]
    return (longest, axis, -(-axis // 128) * 128)[_one_of(problem, 3, f"longest {side}")]


def _poison(problem: Problem, name: str, unread: bool) -> float | None:
    """Return the number in free slots among q, k or v; None for numbers of other queries and keys.

    It is NaN if free slots are ``unread``, else a finite number. One problem in four, by its shapes, has numbers of
    other queries and keys, which show where a NaN would be masked. A finite number times a query or key is at most
    ``LARGEST_PRODUCT``, up to the rounding to its dtype. A sound kernel may compute such scores before it masks them,
    and no stage of it may overflow then.
    """
    others, reach = _one_of(problem, 4, "poison") == 0, 1.0
    if (partner := {"q": problem.k, "k": problem.q}.get(name)) is not None:
        finite = np.where(np.isfinite(partner), np.abs(partner), 0.0)
        reach = max(1.0, abs(problem.scale_value)) * float(finite.sum(axis=-1).max(initial=1.0))
    if others and (unread or reach * np.abs(getattr(problem, name)).max(initial=0.0) <= LARGEST_PRODUCT):
        return None
    large = LARGE if partner is None else LARGEST_PRODUCT / reach
    return np.nan if unread else bits.nearest(np.array(large), problem.dtype_of(name)).item()


def _shape(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the shape [B, H, ..] of a tensor or quantity of a problem."""
    forward: dict[str, tuple[int, ...]] = {"output": problem.output_shape, "lse": problem.score_shape[:3]}
    tensor = QUANTITIES[name].gradient_of if name in QUANTITIES else name
    return forward[name] if name in forward else getattr(problem, str(tensor)).shape


def _presentation(says: str, *axes: str) -> Presentation:
    return Presentation(says=says, layout=Layout(axes))


#: Every presentation by the name a kernel declares.
PRESENTATIONS: dict[str, Presentation] = {
    "BHSD": _presentation("batch, heads, length, dimension", "B", "H", "S", "D"),
    "BSHD": _presentation("batch, length, heads, dimension", "B", "S", "H", "D"),
    "BS(HD)": _presentation("batch, length, the dimensions of all heads side by side", "B", "S", "HD"),
    "HSD": _presentation("one batch entry at a time: heads, length, dimension", "H", "S", "D"),
    "SD": _presentation("one head at a time: length, dimension", "S", "D"),
    "THD": Packed(
        says="sequences one behind the other: tokens of all, heads, dimension; cu_seqlens_q and cu_seqlens_k say where",
        layout=Layout(("T", "H", "D")),
    ),
    "paged": Paged(
        says="queries as in THD; caches of pages, page size, heads, dimension; block_table lists pages",
        layout=Layout(("T", "H", "D")),
    ),
}
