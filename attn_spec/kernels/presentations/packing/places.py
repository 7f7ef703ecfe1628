"""Places of queries or keys: how the sequences of a problem lie in a buffer, and which arguments of a call say so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentations.layout import reordered
from attn_spec.kernels.presentations.packing import slots
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.placement import Placement, used
from attn_spec.problem import quantities
from attn_spec.problem.problem import Problem

#: Free slots behind the last query or key of a packed buffer, at least.
SPARE = 3
#: Free slots between two sequences of a buffer with gaps, at most.
GAP = 3
#: Tensors and quantities that lie where keys lie; all others lie where queries lie.
OF_KEYS = ("k", "v", *quantities.OF_KEYS)
#: Names of the ids of sequences, by side.
_SEGMENT_IDS = {"q": "q_segment_ids", "k": "kv_segment_ids"}
#: Arguments of a call beside its tensors, by name.
Further = dict[str, int | np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Places of the queries or the keys of a problem; each way in which arguments say so is a class."""

    #: Tensors that lie there: queries, "q", or keys and values, "k".
    side: str
    #: Axes of a tensor: "H" and "D", and axes of slots.
    axes: tuple[str, ...] = ("T", "H", "D")
    #: Axes of the log-sum-exp, if queries lie there: "H", and axes of slots.
    of_rows: tuple[str, ...] = ("H", "T")

    @property
    def carries(self) -> frozenset[str]:
        """Options that the arguments say."""
        return frozenset({f"seqused_{self.side}"})

    @property
    def lists(self) -> frozenset[str]:
        """Options with one number for each sequence that a call may pass, under their own names, as int32 [B]."""
        return frozenset()

    @property
    def says_where(self) -> tuple[str, ...]:
        """Names of the arguments that say where sequences lie."""
        raise NotImplementedError

    @property
    def counts_sequences(self) -> bool:
        """True if the arguments say how many sequences there are, empty ones included."""
        return True

    @property
    def has_slots_behind(self) -> bool:
        """True if :meth:`own_slots` may have more slots than a sequence is long."""
        return False

    def has_tails(self, placement: Placement) -> bool:
        """Return whether a list of pages goes on behind the pages of a sequence."""
        del placement
        return False

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        """Return the lengths of the axes of slots for a problem."""
        raise NotImplementedError

    def further(self, problem: Problem, placement: Placement) -> Further:
        """Return the arguments that say where the sequences of a problem lie."""
        raise NotImplementedError

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        """Return the slots of each sequence in a buffer of these lengths, as the arguments of a call say.

        ``most`` is the length of the problem's axis, by default that of the longest sequence.
        """
        raise NotImplementedError

    def own_slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int) -> Slots:
        """Return the slots of each sequence and those behind it that are no other sequence's."""
        return self.slots(buffer, arguments, most)

    def lies(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths of the axes of slots among axes of this shape."""
        return tuple(length for axis, length in zip(axes, shape, strict=True) if axis not in ("H", "D"))

    def laid_out(self, axes: Sequence[str], filled: Any, buffer: tuple[int, ...]) -> Any:
        """Return slots [count, H, ..] as a tensor with these axes, whose axes of slots have the lengths of a buffer."""
        given = [*(axis for axis in axes if axis not in ("H", "D")), "H", *("D" for axis in axes if axis == "D")]
        return reordered(filled.reshape(*buffer, *filled.shape[1:]), given, axes)

    def flat(self, axes: Sequence[str], x: Any) -> Any:
        """Return a tensor with these axes as slots [count, H, ..]; the inverse of :meth:`laid_out`."""
        wanted = [*(axis for axis in axes if axis not in ("H", "D")), "H", *("D" for axis in axes if axis == "D")]
        own = reordered(x, axes, wanted)
        kept = wanted.index("H")
        return own.reshape(math.prod(own.shape[:kept]), *own.shape[kept:])


@dataclass(frozen=True, kw_only=True)
class Bounds(Places):
    """Sequences one behind the other: bounds, int32 [B + 1], say where each begins and the last one ends.

    The buffer is longer than all sequences together, unless the placement of a problem is tight.
    """

    #: Name of the bounds; empty for ``cu_seqlens_q`` or ``cu_seqlens_k``.
    bounds: str = ""
    #: True if ``cu_seqlens_q_padded`` or ``cu_seqlens_k_padded`` says where sequences begin, with gaps between them.
    gaps: bool = False
    #: True if a number that is at least the largest length is passed.
    states_longest: bool = True
    #: Name of that number; empty for ``max_seqlen_q`` or ``max_seqlen_k``.
    longest: str = ""

    @property
    def longest_name(self) -> str:
        """Name of the number that is at least the largest length."""
        return self.longest or f"max_seqlen_{self.side}"

    @property
    def name(self) -> str:
        """Name of the bounds."""
        return self.bounds or f"cu_seqlens_{self.side}"

    @property
    def says_where(self) -> tuple[str, ...]:
        padded = (f"{self.name}_padded",) if self.gaps else ()
        return (self.name, *padded, *((self.longest_name,) if self.states_longest else ()))

    @property
    def has_slots_behind(self) -> bool:
        return self.gaps

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        if placement.is_tight(problem):
            return (int(np.sum(self._room(problem, placement))),)
        longest = problem.query_length if self.side == "q" else problem.key_length
        return (problem.batch * (longest + (GAP if self.gaps else 0)) + SPARE,)

    def _room(self, problem: Problem, placement: Placement) -> np.ndarray:
        """Return the number of slots from the beginning of each sequence to that of the next one, integers [B]."""
        lengths = used(problem, self.side)
        if not self.gaps:
            return lengths
        return lengths + placement.chance(problem, f"gaps {self.side}").integers(GAP + 1, size=problem.batch)

    def further(self, problem: Problem, placement: Placement) -> Further:
        lengths = used(problem, self.side)
        found: Further = {self.name: _ends(lengths)}
        if self.gaps:
            found[f"{self.name}_padded"] = _ends(self._room(problem, placement))
        if self.states_longest:
            found[self.longest_name] = placement.stated_longest(problem, self.side)
        return found

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the first slot and the length of each sequence, integers [B], as the arguments of a call say."""
        del buffer
        bounds = integers(arguments[self.name])
        starts = integers(arguments[f"{self.name}_padded"]) if self.gaps else bounds
        return starts[:-1], np.diff(bounds)

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        starts, lengths = self.sequences(buffer, arguments)
        longest = int(lengths.max(initial=0)) if most is None else most
        return slots.packed(starts, lengths, longest, math.prod(buffer))

    def own_slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int) -> Slots:
        if not self.gaps:
            return self.slots(buffer, arguments, most)
        padded = integers(arguments[f"{self.name}_padded"])
        return slots.packed(padded[:-1], np.diff(padded), most, math.prod(buffer))


@dataclass(frozen=True, kw_only=True)
class Rectangle(Places):
    """Sequences in the rows of a rectangle [B, S, H, D]: lengths, int32 [B], say how many slots of a row are used."""

    axes: tuple[str, ...] = ("B", "S", "H", "D")
    of_rows: tuple[str, ...] = ("B", "H", "S")

    @property
    def lists(self) -> frozenset[str]:
        return frozenset({"leftpad_k"} if self.side == "k" else ())

    @property
    def says_where(self) -> tuple[str, ...]:
        return (f"seqused_{self.side}",)

    @property
    def has_slots_behind(self) -> bool:
        return True

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        del placement
        return (problem.batch, problem.query_length if self.side == "q" else problem.key_length)

    def further(self, problem: Problem, placement: Placement) -> Further:
        del placement
        return {f"seqused_{self.side}": used(problem, self.side).astype(np.int32)}

    def lengths(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        """Return the length of each sequence, integers [B], as the arguments of a call say."""
        del buffer
        return integers(arguments[f"seqused_{self.side}"])

    def rows(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        """Return the row of each sequence, integers [B]."""
        del arguments
        return np.arange(buffer[0])

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        starts, lengths = self.rows(buffer, arguments) * buffer[1], self.lengths(buffer, arguments)
        return slots.packed(starts, lengths, buffer[1] if most is None else most, math.prod(buffer))

    def own_slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int) -> Slots:
        starts = self.rows(buffer, arguments) * buffer[1]
        return slots.packed(starts, np.full(len(starts), buffer[1]), most, math.prod(buffer))


@dataclass(frozen=True, kw_only=True)
class EqualEach(Places):
    """Equally many queries of each sequence: [B, S, H, D]."""

    axes: tuple[str, ...] = ("B", "S", "H", "D")
    of_rows: tuple[str, ...] = ("B", "H", "S")

    @property
    def carries(self) -> frozenset[str]:
        return frozenset()

    @property
    def says_where(self) -> tuple[str, ...]:
        return ()

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        del placement
        return (problem.batch, problem.query_length)

    def further(self, problem: Problem, placement: Placement) -> Further:
        del problem, placement
        return {}

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        del arguments, most
        batch, length = (*buffer, 1)[:2]  # a buffer of one query each has no axis of queries
        return Slots(batch * length, np.arange(batch * length).reshape(batch, length))


@dataclass(frozen=True, kw_only=True)
class OneEach(EqualEach):
    """One query of each sequence: [B, H, D]."""

    axes: tuple[str, ...] = ("B", "H", "D")
    of_rows: tuple[str, ...] = ("B", "H")

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        del placement
        return (problem.batch,)


@dataclass(frozen=True, kw_only=True)
class Segments(Places):
    """Sequences one behind the other in one row [S, H, D], and padding behind the last one.

    Ids, int32 [S], say whose query or key each slot holds: b + 1 is sequence b, and 0 is padding. No argument counts
    sequences without a query and a key behind the last other one.
    """

    axes: tuple[str, ...] = ("S", "H", "D")
    of_rows: tuple[str, ...] = ("H", "S")

    @property
    def says_where(self) -> tuple[str, ...]:
        return (_SEGMENT_IDS[self.side],)

    @property
    def counts_sequences(self) -> bool:
        return False

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        if placement.is_tight(problem):
            return (int(used(problem, self.side).sum()),)
        longest = problem.query_length if self.side == "q" else problem.key_length
        return (problem.batch * longest + SPARE,)

    def further(self, problem: Problem, placement: Placement) -> Further:
        ids = np.zeros(self.buffer(problem, placement), dtype=np.int32)
        lengths = used(problem, self.side)
        ids[: lengths.sum()] = np.repeat(np.arange(problem.batch) + 1, lengths)
        return {_SEGMENT_IDS[self.side]: ids}

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the first slot and the length of each sequence, integers [B], as the arguments of a call say."""
        del buffer
        every = {side: integers(arguments[name]) for side, name in _SEGMENT_IDS.items()}
        numbers = np.arange(max(int(ids.max(initial=0)) for ids in every.values())) + 1
        is_own = every[self.side] == numbers[:, None]
        return np.argmax(is_own, axis=1), is_own.sum(axis=1)

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        starts, lengths = self.sequences(buffer, arguments)
        longest = int(lengths.max(initial=0)) if most is None else most
        return slots.packed(starts, lengths, longest, math.prod(buffer))


def side_of(name: str) -> str:
    """Return whether a tensor or quantity lies where queries lie, "q", or where keys lie, "k"."""
    return "k" if name in OF_KEYS else "q"


def integers(x: Any) -> np.ndarray:
    """Return an integer tensor of any framework as int64."""
    return values_of(x).astype(np.int64)


def _ends(lengths: np.ndarray) -> np.ndarray:
    """Return where sequences of these lengths [B] begin, and where the last one ends, int32 [B + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
