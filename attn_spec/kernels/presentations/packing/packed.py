"""Packed calls: tensors are buffers of slots, and integers beside them say which sequence has which slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attn_spec.kernels.presentations import memory, placement
from attn_spec.kernels.presentations.packing import packed_descales
from attn_spec.kernels.presentations.packing.pages import Pages
from attn_spec.kernels.presentations.packing.places import Further, Places, side_of
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.presentation import LAID_OUT, Buffers, Handed, shape_of
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import FACTORS, OPTIONS
from attn_spec.problem.problem import Problem

#: Inputs that are alike where one tensor holds both, by the ability that needs them to differ, and their names.
_ALIKE = {
    **dict.fromkeys(("dv", "latent"), ("kv", "keys and values")),
    "gqa": ("qk", "queries and keys"),
}
#: Log-sum-exp and its cotangent.
_OF_ROWS = ("lse", "dlse")


@dataclass(frozen=True, kw_only=True)
class Packed(Buffers):
    """Queries and keys in buffers of slots, each side in places of its own.

    The output, the gradients and the log-sum-exp lie where their queries or keys do. Slots of no query or key are
    poison. Lengths of buffers, and what the arguments say beside the lengths of sequences, follow from the shapes of a
    problem alone, so that equal shapes are handed over alike.
    """

    #: Places of the queries.
    queries: Places
    #: Places of the keys and values.
    keys: Places
    #: Inputs that one tensor holds along an axis of its own: "kv" or "qkv". Empty if each has a tensor.
    joined: str = ""
    #: Index of that axis.
    joined_at: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "carries", self.queries.carries | self.keys.carries)

    @property
    def says_where(self) -> tuple[str, ...]:
        return (*self.queries.says_where, *self.keys.says_where)

    @property
    def counts_sequences(self) -> bool:
        """True if the arguments say how many sequences there are, empty ones included."""
        return self.queries.counts_sequences and self.keys.counts_sequences

    @property
    def tensors(self) -> tuple[str, ...]:
        alone = [name for name in ("q", "k", "v") if name not in self.joined]
        return (*alone, self.joined) if self.joined else tuple(alone)

    def member(self, name: str, x: Any) -> Any:
        return x[(slice(None),) * self.joined_at + (self.joined.index(name),)] if name in self.joined else x

    def together(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        for of in ("", "d"):
            names = [f"{of}{name}" for name in self.joined]
            if names and all(name in arrays for name in names):
                stacked = np.stack([arrays[name] for name in names], axis=self.joined_at)
                others = {name: x for name, x in arrays.items() if name not in names}
                arrays = others | {f"{of}{self.joined}": stacked}
        return dict(arrays)

    def axes_of(self, tensor: str) -> tuple[str, ...]:
        return self.places(side_of(tensor)).axes

    @property
    def has_pages(self) -> bool:
        return isinstance(self.keys, Pages)

    @property
    def has_page_sizes(self) -> bool:
        return self.has_pages and "size" in self.keys.axes

    @property
    def has_tails(self) -> bool:
        return self.keys.has_tails(self.placement)

    @property
    def has_unused_rows(self) -> bool:
        return self.queries.has_slots_behind

    def refusal(self, option: str) -> str:
        """Return why a call cannot pass an option, or what an ability needs; empty if it can.

        An option cannot be passed that has a number for each query or key of a rectangle, or is a length that the
        arguments do not say; nor can what belongs to such an option. One with a number for each sequence needs
        arguments that count these. Descales lie by sequence or where the keys lie, see ``packed_descales``.
        """
        row = OPTIONS.get(option)
        if option in self.carries | self.keys.lists or option in FACTORS:
            return ""
        if row is not None and row.up_to:
            return "since no argument says it"
        if row is not None and row.tensor is not None and {"Q", "K"} & set(row.axes):
            return "which has numbers for each query or key of a rectangle"
        if row is not None and row.tensor is not None and "B" in row.axes and not self.counts_sequences:
            return "which may have a number for each sequence, and no argument counts these"
        inputs, said = _ALIKE.get(option, ("", ""))
        if inputs and set(inputs) <= set(self.joined):
            return f"since one tensor holds {said}"
        owner = ABILITIES[option].of if row is None else row.of
        return (owner and self.refusal(owner)) or super().refusal(option)

    def places(self, side: str) -> Places:
        """Return where queries ("q") or keys ("k") lie."""
        return self.queries if side == "q" else self.keys

    def further(self, problem: Problem) -> Further:
        """Return the arguments that say where the sequences lie."""
        return self.queries.further(problem, self.placement) | self.keys.further(problem, self.placement)

    def slots(self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        """Return the slots of queries or keys in a buffer of these lengths, as the arguments of a call say.

        ``most`` is the length of the problem's axis, by default that of the longest sequence.
        """
        return self.places(side).slots(buffer, arguments, most)

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        further = self.further(problem)
        names = [name for name, row in OPTIONS.items() if row.tensor is not None and name not in self.carries]
        tensors = {}
        for name in ("q", "k", "v"):
            buffer = self.places(side_of(name)).buffer(problem, self.placement)
            poison = placement.poison(problem, name, unread, by_key=self._hands_by_key(problem, name))
            tensors[name] = self._filled(name, getattr(problem, name), poison, buffer, further)
        given = {name: getattr(problem, name) for name in names}
        for name in self.keys.lists:
            if given[name] is not None:
                given[name] = np.broadcast_to(given[name].ravel(), problem.batch).astype(np.int32)
        for name in FACTORS:
            if given[name] is not None:
                given[name] = self._descale(problem, name, further, unread=unread)
        return Handed(self.together(tensors) | {name: x for name, x in given.items() if x is not None}, further)

    def _hands_by_key(self, problem: Problem, name: str) -> bool:
        """Return whether a call has a number for each key of the descale of k or v."""
        x = getattr(problem, descale := f"{name}_descale")
        return x is not None and packed_descales.is_by_key(descale, x, self.placement)

    def _counted(self, arguments: Mapping[str, Any]) -> int:
        """Return the number of sequences that the arguments of a call count."""
        return len(self.slots("k", self._buffer_of("k", arguments), arguments).of)

    def _descale(self, problem: Problem, name: str, further: Further, *, unread: bool) -> np.ndarray:
        if packed_descales.is_by_key(name, getattr(problem, name), self.placement):
            return packed_descales.by_key(problem, name, self.keys, further, self.placement, unread=unread)
        return packed_descales.by_head(problem, name)

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        if self.joined and name in (self.joined, f"d{self.joined}"):
            own = self.shape(problem, name.removesuffix(self.joined) + self.joined[-1])
            return (*own[: self.joined_at], len(self.joined), *own[self.joined_at :])
        shape = shape_of(problem, name)
        if name not in (*LAID_OUT, *_OF_ROWS):
            return shape
        rest = iter(self.places(side_of(name)).buffer(problem, self.placement))
        own = {"H": shape[1], "D": shape[-1]}
        return tuple(own[axis] if axis in own else next(rest) for axis in self._axes(name))

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        """Return a quantity that a call returned with the axes [B, H, ..] of the problem.

        What lies in places behind a sequence that are no other one's is there too, and 0 where there is no such place.
        """
        if name not in (*LAID_OUT, *_OF_ROWS):
            return x
        places, axes = self.places(side_of(name)), self._axes(name)
        own = places.own_slots(places.lies(axes, x.shape), self.further(problem), shape_of(problem, name)[2])
        found = own.back(places.flat(axes, x))
        behind = problem.batch - len(found)  # empty sequences that no argument counts
        return np.concatenate([found, np.zeros((behind, *found.shape[1:]))]) if behind else found

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        """Return a tensor or quantity of a call with its axes [B, H, S, ..], S being that of the longest sequence."""
        if name in self.keys.lists:
            return x[:, None, None, None]
        if name in FACTORS:
            found = packed_descales.read(name, x, self.keys, arguments, self.placement)
            return found if self.counts_sequences else found[: self._counted(arguments)]
        if name not in (*LAID_OUT, *_OF_ROWS):
            return x
        places, axes = self.places(side_of(name)), self._axes(name)
        return places.slots(places.lies(axes, x.shape), arguments).back(places.flat(axes, x))

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        if name not in (*LAID_OUT, *_OF_ROWS):
            return x
        return self._filled(name, x, 0.0, self._buffer_of(side_of(name), arguments), arguments)

    def _filled(
        self, name: str, x: np.ndarray, poison: float | None, buffer: tuple[int, ...], arguments: Mapping[str, Any]
    ) -> np.ndarray:
        places = self.places(side_of(name))
        filled = places.slots(buffer, arguments, x.shape[2]).fill(x, poison)
        return places.laid_out(self._axes(name), filled, buffer)

    def _axes(self, name: str) -> tuple[str, ...]:
        places = self.places(side_of(name))
        return places.of_rows if name in _OF_ROWS else places.axes

    def _buffer_of(self, side: str, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the lengths of the axes of slots of q or k, as a call has them."""
        places = self.places(side)
        return places.lies(places.axes, arguments[side].shape)

    def options_of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for side in "qk":
            if f"seqused_{side}" in self.carries:
                used = self.slots(side, self._buffer_of(side, arguments), arguments).of >= 0
                found[f"seqused_{side}"] = used.sum(axis=1)[:, None, None, None]
        return {name: x for name, x in super().options_of(arguments).items() if name not in self.says_where} | found

    def cotangent(
        self, part: Problem, name: str, values: np.ndarray, number: int, *, unread: bool = False
    ) -> np.ndarray:
        del number
        poison = np.nan if unread else placement.LARGE
        return self._filled(name, values, poison, self.queries.buffer(part, self.placement), self.further(part))

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first head if heads are among the axes; no slot stands for another."""
        places = {len(own.axes): own.axes.index("H") for own in (self.queries, self.keys)}
        if self.joined:
            keys = [*self.keys.axes[: self.joined_at], self.joined, *self.keys.axes[self.joined_at :]]
            places[len(keys)] = keys.index("H")
        return lambda x: memory.expanded(x, [places[x.ndim]] if "H" in axes else [])

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return one function that puts the slots of a buffer far apart, whichever axes of a problem are named."""
        del axes
        return [partial(memory.far_apart, axis=0)]
