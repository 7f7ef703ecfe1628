"""Packed calls: tensors are buffers of slots, and integers beside them say which sequence has which slots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attn_spec.kernels import memory, placement, slots
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentation import LAID_OUT, Handed, Presentation, shape_of
from attn_spec.kernels.slots import Slots
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem

#: Quantities that lie where queries lie, and those that lie where keys lie.
_OF_QUERIES, _OF_KEYS = ("q", "output", "dq"), ("k", "v", "dk", "dv")
#: Log-sum-exp and its cotangent, [H, T] in a packed call.
_OF_ROWS = ("lse", "dlse")
#: Free slots behind the last query or key of a packed buffer, at least.
SPARE = 3


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
            found[f"cu_seqlens_{side}"] = np.concatenate([[0], np.cumsum(placement.used(problem, side))]).astype(
                np.int32
            )
        return found | {f"max_seqlen_{side}": placement.stated_longest(problem, side) for side in "qk"}

    def sequences(
        self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first slot and the length of each sequence, integers [B], as the arguments of a call say."""
        del buffer
        bounds = integers(arguments[f"cu_seqlens_{side}"])
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
            filled = self.slots(side, buffer, further, x.shape[2]).fill(x, placement.poison(problem, name, unread))
            tensors[name] = filled.reshape(*buffer, *filled.shape[1:])
        given = {name: getattr(problem, name) for name in names}
        return Handed(tensors | {name: x for name, x in given.items() if x is not None}, further)

    def shape(self, problem: Problem, name: str) -> tuple[int, ...]:
        shape = shape_of(problem, name)
        if name not in LAID_OUT:
            return (shape[1], *self.buffer(problem, "q")) if name in _OF_ROWS else shape
        return (*self.buffer(problem, _side(name)), shape[1], shape[3])

    def taken(self, problem: Problem, name: str, x: Any) -> Any:
        length = shape_of(problem, name)[2]
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
        return self._filled(name, values, np.nan if unread else placement.LARGE, self.further(part) | buffers)

    def expanding(self, axes: str) -> Callable[[Any], Any]:
        """Return a function that expands the first head if heads are among the axes; no slot stands for another."""
        return lambda x: memory.expanded(x, [x.ndim - 2] if "H" in axes else [])

    def spreading(self, axes: str) -> list[Callable[[Any], Any]]:
        """Return one function that puts the slots of a buffer far apart, whichever axes of a problem are named."""
        del axes
        return [partial(memory.far_apart, axis=0)]


def _side(name: str) -> str:
    """Return whether a tensor or quantity lies where queries lie, "q", or where keys lie, "k"."""
    return "k" if name in _OF_KEYS else "q"


def integers(x: Any) -> np.ndarray:
    """Return an integer tensor of any framework as int64."""
    return values_of(x).astype(np.int64)
