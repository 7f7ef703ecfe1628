"""One packed or paged call of attention in a test, read sequence by sequence from the test's own buffers.

No rectangle of all sequences is formed: a batch of one long sequence and many short ones costs what its tokens cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attn_spec.kernels.calls import called_descales
from attn_spec.kernels.calls.call import Call, CallError, check_corners, options_of, spelled_dtype, tensor_of
from attn_spec.kernels.calls.sequence_arguments import of_sequence, packed_rows, sequences_of, where_of
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.packed_descales import axes_by_key
from attn_spec.kernels.presentations.packing.places import Rectangle, side_of
from attn_spec.kernels.presentations.presentation import LAID_OUT
from attn_spec.problem.conventions import DEFAULTS, Conventions
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS


@dataclass(frozen=True, kw_only=True)
class PackedCall(Call):
    """A call whose q, k and v are buffers of the test, with the arguments that say where its sequences lie."""

    presentation: Packed
    #: Arguments that say where sequences lie, integers or arrays of them, by the names of the presentation.
    where: Mapping[str, Any] = field(default_factory=dict)
    #: Descales with a number for each slot and head of the keys, buffers of the test, by option.
    scales: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def lengths(self) -> dict[str, np.ndarray]:
        """Number of queries ("q") and of keys ("k") of each sequence, integers [B]."""
        return {side: np.array([len(x) for x in every], dtype=np.int64) for side, every in self.slots.items()}

    @cached_property
    def slots(self) -> dict[str, list[np.ndarray]]:
        """Slots of the queries ("q") or keys ("k") of each sequence, integers [S]."""
        return {side: [self._slots(side, b) for b in range(self.batch)] for side in "qk"}

    def _slots(self, side: str, b: int) -> np.ndarray:
        """Return the slots of a sequence: places of others are asked for only where no argument tells them apart."""
        one, places = of_sequence(self.where, b), self.presentation.places(side)
        of = places.slots(self.buffer(side), one).of
        own = of[b if len(of) > 1 else 0]
        return own[: int(one[f"seqused_{side}"][0])] if isinstance(places, Rectangle) else own

    @property
    def batch(self) -> int:
        return sequences_of(self.where)

    @property
    def query_heads(self) -> int:
        return int(self.q.shape[self.presentation.queries.axes.index("H")])

    @property
    def kv_heads(self) -> int:
        return int(self.k.shape[self.presentation.keys.axes.index("H")])

    def buffer(self, side: str) -> tuple[int, ...]:
        """Return the lengths of the axes of slots of queries ("q") or keys ("k")."""
        places = self.presentation.places(side)
        return places.lies(places.axes, tuple(map(int, getattr(self, side).shape)))

    def _axes(self, quantity: str) -> tuple[str, ...]:
        places = self.presentation.places(side_of(quantity))
        return places.of_rows if quantity == "lse" else places.axes

    def shape(self, quantity: str) -> tuple[int, ...]:
        if quantity not in ("output", "lse"):
            return tuple(map(int, (self.k if quantity == "dkv" else getattr(self, quantity[-1])).shape))
        slots = iter(self.buffer("q"))
        own = {"H": self.query_heads, "D": self.output_width}
        return tuple(own[axis] if axis in own else next(slots) for axis in self._axes(quantity))

    def read(self, quantity: str, x: Any) -> Any:
        """Return the buffer itself, which :meth:`numbers` takes."""
        del quantity
        return x

    def equal_lengths(self) -> list[range]:
        """Return each sequence alone: buffers hold them one after the other."""
        return [range(b, b + 1) for b in range(self.batch)]

    def lengths_of(self, b: int) -> tuple[int, int]:
        return int(self.lengths["q"][b]), int(self.lengths["k"][b])

    @property
    def longest(self) -> tuple[int, int]:
        return int(self.lengths["q"].max(initial=0)), int(self.lengths["k"].max(initial=0))

    def numbers(
        self, quantity: str, x: Any, entries: range, heads: slice, rows: np.ndarray | None = None
    ) -> np.ndarray:
        """Return exact values [1, heads, S, ..] of one sequence, of q, k, v or a quantity, at all rows or at some."""
        (b,), side = entries, side_of(quantity)
        slots, of_heads = self.slots[side][b], np.arange(self.query_heads if side == "q" else self.kv_heads)[heads]
        places = iter(np.unravel_index(slots if rows is None else slots[rows], self.buffer(side)))
        index = tuple(
            of_heads[None, :] if axis == "H" else next(places)[:, None] for axis in self._axes(quantity) if axis != "D"
        )
        return self.real(quantity, values_of(frameworks.of(x).indexable(x)[index]).swapaxes(0, 1)[None])

    def all_numbers(self, quantity: str, x: Any) -> np.ndarray:
        """Return exact values [B, H, S, ..] of all sequences, with 0 behind the end of each one."""
        side = side_of(quantity)
        heads, most = (self.query_heads if side == "q" else self.kv_heads), int(self.lengths[side].max(initial=0))
        found = np.zeros((self.batch, heads, most, *(() if quantity == "lse" else x.shape[-1:])))
        for b, length in enumerate(self.lengths[side]):
            found[b, :, :length] = self.numbers(quantity, x, range(b, b + 1), slice(None))[0]
        return found

    @property
    def option_dtypes(self) -> dict[str, str]:
        return super().option_dtypes | {name: frameworks.of(x).dtype_of(x) for name, x in self.scales.items()}

    def scale_numbers(self, name: str, entries: range, heads: slice) -> np.ndarray:
        """Return exact values [1, heads, S, 1] of a descale at the keys of a sequence."""
        return self.numbers("k", self.scales[name][..., None], entries, heads)

    def _heads(self, entries: range, heads: slice, kv: slice) -> Problem:
        own = {"q": heads, "k": kv, "v": kv}
        q, k, v = (self.numbers(name, getattr(self, name), entries, at) for name, at in own.items())
        scales = {name: self.scale_numbers(name, entries, kv) for name in self.scales}
        return self._problem(q, k, v, {"B": slice(entries.start, entries.stop), "H": heads, "G": kv}, **scales)

    def corner(self, count: int) -> Problem:
        """Return the problem of the sequence with the most pairs of query and key, and at most ``count`` kv heads."""
        longest = int(np.argmax(self.lengths["q"] * self.lengths["k"]))
        return self.groups(range(longest, longest + 1), range(min(count, self.kv_heads)))

    def whole(self) -> Problem:
        """Return the problem of all sequences, as a rectangle with lengths."""
        ends = {f"seqused_{side}": x[:, None, None, None] for side, x in self.lengths.items()}
        q, k, v = (self.all_numbers(name, getattr(self, name)) for name in ("q", "k", "v"))
        ends = {name: x for name, x in ends.items() if name not in self.options}
        scales = {name: self.all_numbers("k", x[..., None]) for name, x in self.scales.items()}
        behind = np.arange(k.shape[2])[:, None] >= self.lengths["k"][:, None, None, None]
        return self._problem(q, k, v, {}, **ends, **{name: np.where(behind, 1.0, x) for name, x in scales.items()})

    def place(self, quantity: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in a buffer of the test of the element at ``index`` [b, h, ..]."""
        if quantity not in LAID_OUT and quantity != "lse":
            return index
        b, h, row, *column = index
        side = side_of(quantity)
        places = map(int, np.unravel_index(self.slots[side][b][row], self.buffer(side)))
        own = {"H": [h], "D": column}
        return tuple(own[axis][0] if axis in own else next(places) for axis in self._axes(quantity))

    def index(self, quantity: str, place: tuple[int, ...]) -> tuple[int, ...]:
        if quantity not in LAID_OUT and quantity != "lse":
            return place
        side, axes = side_of(quantity), self._axes(quantity)
        at = tuple(i for axis, i in zip(axes, place, strict=True) if axis not in ("H", "D"))
        slot = np.ravel_multi_index(at, self.buffer(side))
        b, row = next(
            (b, int(rows[0])) for b, x in enumerate(self.slots[side]) if len(rows := np.flatnonzero(x == slot))
        )
        return (b, place[axes.index("H")], row, *place[len(axes) - 1 :] * ("D" in axes))

    @property
    def described(self) -> list[str]:
        ranges = (
            f"{x.min(initial=x.max(initial=0))} to {x.max(initial=0)} {word}"
            for x, word in zip(self.lengths.values(), ("queries", "keys"), strict=True)
        )
        return [f"  sequences {self.batch}, of {' and '.join(ranges)}"]

    def check_places(self) -> None:
        """Raise :class:`CallError` for a sequence outside its buffer, or for a stated maximum below a length."""
        for side in "qk":
            axes = [axis for axis in self.presentation.places(side).axes if axis not in ("H", "D")]
            if axes[0] == "B" and (length := self.buffer(side)[0]) != self.batch:
                raise CallError(f"{side} has {length} batch entries, and other arguments are of {self.batch} sequences")
        self._check_pages()
        for side, words in (("q", "queries"), ("k", "keys")):
            self._check_within(side, words, self.buffer(side))
            most = int(self.lengths[side].max(initial=0))
            for name in (f"max_seqlen_{side}", "max_seqlen"):
                if self.where.get(name, most) < most:
                    raise CallError(f"{name} is {self.where[name]}, but a sequence has {most} {words}")
        if self._shares("q"):
            raise CallError("two sequences have a query in one place of q, where only one output can be")

    def _check_within(self, side: str, words: str, buffer: tuple[int, ...]) -> None:
        """Raise :class:`CallError` for a sequence with a slot outside the buffer, or longer than its row of a
        rectangle.
        """
        of_rows = self.presentation.places(side).axes[0] == "rows"
        unit = "page" if self.presentation.has_pages and side == "k" else "row" if of_rows else "token"
        for b, slots in enumerate(self.slots[side]):
            if len(beyond := slots[(slots < 0) | (slots >= math.prod(buffer))]):
                at = beyond[0] // math.prod(buffer[1:])
                raise CallError(f"{words} of sequence {b} are in {unit} {at} of {side}, which has {buffer[0]} {unit}s")
            used = self.where.get(f"seqused_{side}")
            if isinstance(self.presentation.places(side), Rectangle) and used is not None and used[b] > buffer[1]:
                raise CallError(
                    f"seqused_{side}[{b}] is {used[b]}, and {side} has {buffer[1]} {words} of each sequence"
                )

    def _check_pages(self) -> None:
        """Raise :class:`CallError` if the pages that are listed for a sequence do not hold its keys."""
        where = self.where
        if "block_table" in where:
            held = where["block_table"].shape[1] * math.prod(self.buffer("k")[1:])
            if len(beyond := np.flatnonzero(where["seqused_k"] > held)):
                b, pages = int(beyond[0]), where["block_table"].shape[1]
                raise CallError(
                    f"sequence {b} has {where['seqused_k'][b]} keys, and its {pages} pages in block_table hold {held}"
                )
        if "kv_indices" in where and where["kv_indptr"][-1] > len(where["kv_indices"]):
            raise CallError(
                f"kv_indptr ends at {where['kv_indptr'][-1]}, and kv_indices lists {len(where['kv_indices'])} places"
            )
        if "kv_last_page_len" in where:
            size, last = math.prod(self.buffer("k")[1:]), where["kv_last_page_len"]
            if len(wrong := np.flatnonzero((np.diff(where["kv_indptr"]) > 0) & ((last < 1) | (last > size)))):
                b = int(wrong[0])
                raise CallError(f"kv_last_page_len[{b}] is {last[b]}, and a last page has from 1 to {size} keys")

    def check_options(self) -> None:
        """Raise :class:`CallError` if an option counts more queries or keys than a sequence has."""
        for name, x in self.options.items():
            side, words = {"Q": ("q", "queries"), "K": ("k", "keys")}.get(OPTIONS[name].up_to, ("", ""))
            if side:
                found = np.broadcast_to(values_of(x)[:, 0, 0, 0], (self.batch,)).astype(np.int64)
                if len(beyond := np.flatnonzero(found > self.lengths[side])):
                    b = int(beyond[0])
                    raise CallError(f"{name}[{b}] is {found[b]}, and the sequence has {self.lengths[side][b]} {words}")

    def check_conventions(self, conventions: Conventions) -> None:
        if conventions.unused_rows != DEFAULTS.unused_rows and "seqused_q" not in self.options:
            raise CallError(
                f"unused_rows={conventions.unused_rows!r} is about rows behind the end of a sequence, which a packed "
                "call has only with seqused_q=; leave it out"
            )

    def check_gradients(self, names: Iterable[str]) -> None:
        if set(OF_KEYS) & set(names) and self._shares("k"):
            raise CallError("two sequences share keys, whose gradients are sums over both; give each its own keys")

    def _shares(self, side: str) -> bool:
        """Return whether two sequences have a query or key in one slot."""
        every = np.concatenate([np.zeros(0, dtype=np.int64), *self.slots[side]])
        return len(np.unique(every)) < len(every)


def packed_call(q: Any, k: Any, v: Any, *, presentation: str, **words: Any) -> PackedCall:
    """Read a packed or paged call in a presentation of ``packed_rows``; ``words`` are those of :func:`call.call`, and
    the arguments that say where sequences lie. Raises :class:`CallError`.
    """
    row = packed_rows()[presentation]
    where, others = where_of(row, presentation, words)
    tensors = {name: tensor_of(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    _check_shapes(row, presentation, **{name: tuple(map(int, x.shape)) for name, x in tensors.items()})
    made = PackedCall(**tensors, dtype=spelled_dtype(**tensors), presentation=row, where=where)
    made.check_places()
    keys = axes_by_key(row.keys)
    slots = tuple(length for axis, length in zip(row.keys.axes, tensors["k"].shape, strict=True) if axis != "D")
    others, scales = called_descales.in_axes(others, (made.batch, made.kv_heads), tuple(map(int, slots)), keys)
    queries, longest = made.longest
    heads = {"H": made.query_heads, "G": made.kv_heads}
    options = options_of(others, {"B": made.batch, **heads, "Q": queries, "K": longest})
    if unsaid := sorted(name for name in options if not row.can_say(name)):
        raise CallError(
            f"a call in the presentation {presentation} cannot pass {unsaid[0]}, {row.refusal(unsaid[0])}; judge each "
            "sequence by a call of its own"
        )
    if passed := sorted(name for name in options if name in row.passes):
        raise CallError(
            f"the cache of a call in the presentation {presentation} holds keys that are rotated already; leave "
            f"{passed[0]} out, and give the queries rotated"
        )
    unequal = np.flatnonzero(made.lengths["q"] != made.lengths["k"])
    for b in unequal[:1] if len(unequal) else range(min(made.batch, 1)):
        check_corners(options, others, int(made.lengths["q"][b]), int(made.lengths["k"][b]))
    made = replace(made, options=options, scales=scales)
    made.check_options()
    return made


def _check_shapes(row: Packed, presentation: str, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    """Raise :class:`CallError` unless q, k and v have the axes of the presentation and go together."""
    shapes = {"q": q, "k": k, "v": v}
    for name, shape in shapes.items():
        axes = row.places(side_of(name)).axes
        if len(shape) != len(axes):
            told = ", ".join(axes)
            raise CallError(f"{name} must have the axes [{told}] as {presentation}, not the shape {shape}")
    heads, kv_heads = q[row.queries.axes.index("H")], k[row.keys.axes.index("H")]
    if k[:-1] == v[:-1] and q[-1] == k[-1] and kv_heads and heads % kv_heads == 0:
        return
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    raise CallError(
        f"q [.., Hq, D], k [.., Hkv, D] and v [.., Hkv, Dv], Hq a multiple of Hkv, do not go together here: {told}"
    )
