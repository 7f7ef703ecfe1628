"""Calls that append: the kernel writes new keys and values to caches that it is given, and then attends to all keys.

A problem is the attention after the new keys were appended. Each sequence has as many new keys as queries, and these
are its last keys. The call is given the caches with the keys before them, and the new ones in tensors of their own.

With ``rotary`` the cache holds rotated keys. The queries and new keys of a call are not rotated, and it rotates them by
tables of cosines and sines (``rotated``). The problem has the keys before any rotation, as for every other kernel. A
key in the cache is rotated by the tables in float64, and rounded once to the dtype of the cache. These are an
execution of the stages ``rotary_tables`` and ``operands`` of a contract that have the dtype of the inputs. So the
theorem of a rotated score holds as it stands, whether a call has rotated a key itself or finds it rotated. A problem
with ``rotary_from_tables`` has the numbers of the tables in its truth, and the stage ``rotary_tables`` has no error.

A cache may have 8 bits beside queries of more. New keys and values have the dtype of the queries then, and a call
rounds them over their descales on the way (``rounded_writes``). The problem has the numbers that the cache stores. Or a
call makes a scale of each new token and head (``quantised_writes``). A cache of scales then lies where the keys do. The
problem has the numbers of new tokens before that, as codes times scales, and is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import ContractError, ResolvedContract
from attn_spec.contract.stages import contains
from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.kernels.presentations import placement
from attn_spec.kernels.presentations.appending import quantised_writes, rotated, rounded_writes
from attn_spec.kernels.presentations.packing import packed_descales
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.places import SPARE, Further, Rectangle, integers
from attn_spec.kernels.presentations.placement import Placement
from attn_spec.kernels.presentations.presentation import Handed
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem import appended
from attn_spec.problem.dtypes import Dtypes, dtype_of, input_dtypes
from attn_spec.problem.problem import Problem

#: Rows of a cache with ``cache_batch_idx`` that no sequence has.
SPARE_ROWS = 2
#: Words for the axes of slots of a cache, in messages.
_PLACES = {"B": "row", "rows": "row", "S": "place", "pages": "page", "size": "offset"}
#: Caches and new tensors of a call, by the input that they hold.
CACHES, NEW = {"k": "k_cache", "v": "v_cache"}, {"k": "k_new", "v": "v_new"}
#: Stages of a contract whose results such a call is given, where positions are rotary.
_GIVEN = ("rotary_tables", "operands")


@dataclass(frozen=True, kw_only=True)
class CacheRows(Rectangle):
    """Keys and values in the rows of a cache [B, most, H, D].

    Each row has free places behind its last key, unless the placement of a problem is tight. ``seqused_k``, int32 [B],
    is the number of keys of each sequence.
    """

    side: str = "k"
    #: True if ``cache_batch_idx``, int32 [B], says which row of a cache of more rows each sequence has.
    indexed: bool = False

    @property
    def says_where(self) -> tuple[str, ...]:
        return (*super().says_where, *(("cache_batch_idx",) if self.indexed else ()))

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        spare = 0 if placement.is_tight(problem) else SPARE
        return (problem.batch + self.indexed * SPARE_ROWS, problem.key_length + spare)

    def further(self, problem: Problem, placement: Placement) -> Further:
        found = super().further(problem, placement)
        if self.indexed:
            rows = placement.chance(problem, "rows").permutation(problem.batch + SPARE_ROWS)
            found["cache_batch_idx"] = rows[: problem.batch].astype(np.int32)
        return found

    def rows(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        return integers(arguments["cache_batch_idx"]) if self.indexed else super().rows(buffer, arguments)


@dataclass(frozen=True, kw_only=True)
class Append(Packed):
    """Queries [B, S, Hq, D], caches of keys and values, and new keys and values [B, S, Hkv, D], which a call appends.

    ``seqused_k`` is the number of keys that the caches have of each sequence: before a call without the new ones, and
    after it with them. A call must write the new keys and values to the places behind, and change nothing else. If the
    cache holds rotated keys, it must write rotated ones, each within the bound of one rotation and one rounding. If
    the cache has 8 bits and the queries have more, it must write the nearest numbers to the new ones over their
    descales. If it makes these itself, it must write codes and scales of new tokens, as its contract says.
    """

    @property
    def appends(self) -> bool:
        return True

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("q", *CACHES.values(), *NEW.values())

    @property
    def recognised_by(self) -> tuple[str, ...]:
        return (*self.tensors[1:], *self.says_where)

    def dtype(self, tensor: str, dtypes: Dtypes) -> str:
        new = {name: own for own, name in NEW.items()}
        return rounded_writes.dtype_of_new(dtypes, new[tensor]) if tensor in new else super().dtype(tensor, dtypes)

    @property
    def passes(self) -> Mapping[str, tuple[str, ...]]:
        return {"rotary": rotated.ARGUMENTS}

    def contract(self, contract: ResolvedContract, dtype: str) -> ResolvedContract:
        """Return a contract for inputs of ``dtype``, whose tables and keys in a cache are rounded to this dtype.

        Raises :class:`ContractError` for a stage of a format that neither has all numbers of the dtype, nor has none
        but these, and for q and k of two dtypes: a rotated key has those of the cache, and a rotated query q's.
        """
        of_q, of_k, _ = input_dtypes(dtype)
        if of_q != of_k:
            raise ContractError(f"rotary of a call that appends needs one dtype for q and k, not {dtype}; leave it out")
        dtype = of_q
        own, found = FORMATS[dtype], {}
        for stage in _GIVEN:
            declared = contract.stage(stage).format
            if not contains(declared, own) and not contains(own, declared):
                raise ContractError(
                    f"{stage}={getattr(contract, stage)!r} cannot be kept of what a call that appends is given in "
                    f"{dtype}; declare {stage}='input'"
                )
            found[stage] = dtype if contains(declared, own) else getattr(contract, stage)
        return replace(contract, **found, alternatives=tuple(self.contract(x, dtype) for x in contract.alternatives))

    def refusal(self, option: str) -> str:
        if option in ("backward", "lse_backward"):
            return "since a call that writes to its caches has no gradients"
        if option == "descale_by_key" and not self.placement.descales_by_key:
            return "since it would have to append the descales of new keys"
        return super().refusal(option)

    def apart(self, *tensors: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        """Return the queries and the caches of a call."""
        del arguments
        q, k, v, *_ = tensors
        return q, k, v

    def handed(self, problem: Problem, *, unread: bool = False) -> Handed:
        whole, count = super().handed(problem, unread=unread), problem.query_length
        tables = rotated.arguments_of(problem, problem.key_length + SPARE)
        before = {**whole.further, "seqused_k": (problem.end_keys - count).astype(np.int32), **tables}
        tensors = {name: x for name, x in whole.tensors.items() if name not in CACHES}
        at = (problem.end_keys[:, None] - count + np.arange(count))[:, None, :, None]
        keys = bits.nearest(rotated.turned(problem.k, np.arange(problem.key_length), tables), problem.dtype_of("k"))
        for name, x in (("k", keys), ("v", problem.v)):
            by_key, buffer = self._hands_by_key(problem, name), self.keys.buffer(problem, self.placement)
            poison = placement.poison(problem, name, unread, by_key=by_key)
            tensors[CACHES[name]] = self._filled(name, x, poison, buffer, before)
            if by_key:
                new = np.take_along_axis(appended.numbers(problem, name), at, axis=2).swapaxes(1, 2)
                tensors[NEW[name]], descale = new, f"{name}_descale"
                tensors[descale] = self._descale(problem, descale, before, unread=unread)
            else:
                new = np.take_along_axis(getattr(problem, name), at, axis=2).swapaxes(1, 2)
                tensors[NEW[name]] = self._unrounded(problem, name, new, rounded_writes.of_new(name, tensors))
        return Handed(tensors, before)

    def _unrounded(self, problem: Problem, name: str, new: np.ndarray, d: np.ndarray | None) -> np.ndarray:
        """Return the new keys or values [B, S, Hkv, D] that a call must store as those of the problem."""
        if not rounded_writes.rounds(problem.dtypes, name):
            return new
        dtypes = (rounded_writes.dtype_of_new(problem.dtypes, name), problem.dtype_of(name))
        chance = self.placement.chance(problem, f"new {name}")
        return rounded_writes.new_numbers(new, d, dtypes, chance, saturates=self.placement.saturates)

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the queries and caches of a call, and its options, after the new keys and values were appended.

        Keys of a cache that holds rotated ones, and queries, are rotated by then: no option is left to say so.
        """
        q, k, v, *new = tensors
        count = new[0].shape[1]
        q, new[0] = (self.rotate(side, x, options) for side, x in (("q", q), ("k", new[0])))
        after = self.after(options, count)
        for name, cache, x in zip(CACHES, (k, v), new, strict=True):
            self.append(cache, self.stored(name, x, cache, options), after)
        return (q, k, v), {name: x for name, x in after.items() if name not in rotated.ARGUMENTS}

    def stored(self, name: str, new: Any, cache: Any, arguments: Mapping[str, Any]) -> Any:
        """Return new keys or values [B, S, Hkv, D] of a framework as their cache stores them."""
        own, dtype = of(cache), of(cache).dtype_of(cache)
        if own.dtype_of(new) == dtype:
            return new
        return own.give(self.rounded(name, values_of(new), dtype, arguments), dtype, "cpu")

    def rounded(self, name: str, new: np.ndarray, cache: str, arguments: Mapping[str, Any]) -> np.ndarray:
        """Return the numbers that a cache of 8 bits stores of new keys or values [B, S, Hkv, D]."""
        return rounded_writes.stored(new, rounded_writes.of_new(name, arguments), cache)

    def rotate(self, side: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        """Return queries or new keys [B, S, H, D] of a framework as a call rotates them; without tables, themselves."""
        if not rotated.are_given(arguments):
            return x
        values = rotated.turned(values_of(x), self.positions(side, arguments, x.shape[1])[:, :, None], arguments)
        own, dtype = of(x), of(x).dtype_of(x)
        return own.give(bits.nearest(values, dtype), dtype, "cpu")

    def positions(self, side: str, arguments: Mapping[str, Any], count: int) -> np.ndarray:
        """Return the positions [B, count] of the queries or new keys of a call.

        A new key has that of its place. A query has that of the key which it is aligned with, as in any problem.
        """
        first = integers(arguments["seqused_k"])
        if side == "q" and arguments["causal_alignment"] != "bottom_right":
            pads = arguments.get("leftpad_k")
            first = np.zeros(len(first), dtype=np.int64) if pads is None else integers(pads)
        return first[:, None] + np.arange(count)

    def after(self, arguments: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Return the arguments of a call with the number of keys of each sequence after ``count`` were appended."""
        return {**arguments, "seqused_k": integers(arguments["seqused_k"]) + count}

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        """Write new keys or values [B, S, Hkv, D] to a cache, whose sequences end as the arguments ``after`` say."""
        cache[self.written(cache.shape, after, new.shape[1])] = new

    def written(self, shape: Sequence[int], after: Mapping[str, Any], count: int) -> tuple[np.ndarray, ...]:
        """Return the index in a cache of this shape of the last ``count`` keys of each sequence."""
        buffer = self.keys.lies(self.keys.axes, shape)
        slots = self.new_slots(buffer, after, count)
        # NumPy 2.3 and 2.4 find wrong places of more than 8,192 numbers, unless they have one axis.
        return tuple(found.reshape(slots.shape) for found in np.unravel_index(slots.ravel(), buffer))

    def new_slots(self, buffer: tuple[int, ...], after: Mapping[str, Any], count: int) -> np.ndarray:
        """Return the slots of the last ``count`` keys of each sequence, integers [B, count]."""
        of = self.keys.slots(buffer, after).of
        ends = (of >= 0).sum(axis=1)
        return of[np.arange(len(of))[:, None], ends[:, None] - count + np.arange(count)]

    def promised(
        self,
        tensors: Mapping[str, np.ndarray],
        arguments: Mapping[str, Any],
        contract: ResolvedContract,
        dtypes: Dtypes,
    ) -> dict[str, np.ndarray]:
        found, makes = {}, quantised_writes.of_contract(contract)
        for name, cache in CACHES.items():
            new = tensors[NEW[name]]
            if name == "k":
                new = rotated.turned(new, self._places_of(new, arguments), arguments)
            if name in makes:
                own, scales = quantised_writes.written(makes[name], new), f"{name}_descale"
                new, found[scales] = own.codes, self._appended(tensors[scales], own.scales, arguments)
            elif rounded_writes.rounds(dtypes, name):
                new = rounded_writes.stored(new, rounded_writes.of_new(name, tensors), dtype_of(dtypes, name))
            found[cache] = self._appended(tensors[cache], new, arguments)
        return found

    def allowed(
        self, tensors: Mapping[str, np.ndarray], arguments: Mapping[str, Any], contract: ResolvedContract, dtype: str
    ) -> dict[str, np.ndarray]:
        found = {}
        for name, quantiser in quantised_writes.of_contract(contract).items():
            own = quantised_writes.written(quantiser, tensors[NEW[name]])
            errors = quantised_writes.open_codes(own), quantised_writes.open_scales(own)
            for cache, error in zip((CACHES[name], f"{name}_descale"), errors, strict=True):
                found[cache] = self._appended(np.zeros(tensors[cache].shape), error, arguments)
        if not rotated.are_given(arguments):
            return found
        new, cache = tensors[NEW["k"]], CACHES["k"]
        error = rotated.allowed(new, self._places_of(new, arguments), arguments, contract, dtype)
        return found | {cache: self._appended(np.zeros(tensors[cache].shape), error, arguments)}

    def as_left(self, problem: Problem, values: Mapping[str, np.ndarray], *, after: bool) -> Problem:
        scales = {name.removesuffix("_descale"): name for name in values if name in packed_descales.OF_KEYS}
        ends = problem.end_keys - (0 if after else problem.query_length)
        stored = (np.arange(problem.key_length) < ends[:, None])[:, None, :, None]
        where = {**self.further(problem), "seqused_k": ends}
        found = {}
        for name, scale in scales.items():
            codes = self._of_problem(problem, name, values[CACHES[name]], where)
            d = self._of_problem(problem, scale, values[scale], where)
            d = np.where((codes == 0).all(axis=-1, keepdims=True), 1.0, d)  # zeros may have any scale
            found[name] = np.where(stored, codes, getattr(problem, name))
            found[scale] = np.where(stored, d, getattr(problem, scale))
        return problem.replace(**found) if found else problem

    def _of_problem(self, problem: Problem, name: str, cache: np.ndarray, where: Mapping[str, Any]) -> np.ndarray:
        """Return what a cache has of the tokens that arguments say, with the axes of the problem, 0 behind these."""
        read = self.read(name, cache, **where)[:, :, : problem.key_length]
        return np.pad(read, ((0, 0), (0, 0), (0, problem.key_length - read.shape[2]), (0, 0)))

    def _appended(self, cache: np.ndarray, new: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
        """Return a cache after a call has appended numbers [B, S, Hkv, D], or scales with a D of 1 that it lacks."""
        found = cache.astype(np.float64)
        with_columns = found if found.ndim == len(self.keys.axes) else found[..., None]
        self.append(with_columns, new, self.after(arguments, new.shape[1]))
        return found

    def _places_of(self, new: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
        """Return the positions [B, S, 1] of new keys [B, S, H, D]."""
        return self.positions("k", arguments, new.shape[1])[:, :, None]

    def told(
        self, name: str, wrong: np.ndarray, now: np.ndarray, must: np.ndarray, handed: Handed, *, dtypes: Dtypes
    ) -> str:
        if now.shape != must.shape:
            return super().told(name, wrong, now, must, handed, dtypes=dtypes)
        if is_scale := name not in CACHES.values():
            wrong, now, must = (x[..., None] for x in (wrong, now, must))
        *place, head, column = at = tuple(int(i) for i in np.argwhere(wrong)[0])
        buffer, count = self.keys.lies(self.keys.axes, now.shape), handed.tensors["k_new"].shape[1]
        of_keys = self.keys.slots(buffer, after := self.after(handed.further, count)).of
        slot = np.ravel_multi_index(place, buffer)
        is_new = slot in self.new_slots(buffer, after, count)
        where = ", ".join(f"{_PLACES[axis]} {i}" for axis, i in zip(self.keys.axes, place, strict=False))
        found = np.argwhere(of_keys == slot)
        whose = f"position {found[0][1]} of sequence {found[0][0]} ({where})" if len(found) else f"{where} of nobody"
        what = "the number that was there"
        if is_new:
            entry, row = np.argwhere(self.new_slots(buffer, after, count) == slot)[0]
            what = "the scale of the new token, as its quantiser makes it,"
            what = what if is_scale else self._new_number(name, (entry, row, head, column), handed, dtypes)
        column = "" if is_scale else f", column {column}"
        return (
            f"the kernel left {now[at]:.9g} in {name} at {whose}, head {head}{column}, where {what} must be after the "
            f"call, {must[at]:.9g}"
        )

    def _new_number(self, cache: str, at: tuple[int, ...], handed: Handed, dtypes: Dtypes) -> str:
        """Return what a message calls the new number at an index [B, S, Hkv, D], as the cache must hold it."""
        name = next(side for side, own in CACHES.items() if own == cache)
        if rotated.are_given(handed.further) and name == "k":
            return "the new number, rotated,"
        if not rounded_writes.rounds(dtypes, name):
            return "the new number"
        if self._has_scales(handed, name):
            return f"the code of the new number {handed.tensors[NEW[name]][at]:.9g}, as its quantiser makes it,"
        d = rounded_writes.of_new(name, handed.tensors)
        over = "" if d is None else f" over its descale {d[at[0], 0, at[2], 0]:.9g}"
        x = handed.tensors[NEW[name]][at]
        return f"the new number {x:.9g}{over}, rounded to {dtype_of(dtypes, name)},"

    def _has_scales(self, handed: Handed, name: str) -> bool:
        """Return whether a call has a cache of the scales of keys or values."""
        x = handed.tensors.get(f"{name}_descale")
        return x is not None and x.ndim > 2

    def expanding(self, axes: str) -> Any:
        """Return a function that changes nothing: a kernel cannot append to a cache of which places share memory."""
        del axes
        return lambda x: x
