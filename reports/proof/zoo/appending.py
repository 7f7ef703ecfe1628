"""Mutants of calls that append: sound kernels that write new keys to wrong places, or attend to other keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentations.appending import rotated
from attn_spec.kernels.presentations.appending.append import Append
from attn_spec.kernels.presentations.packing.places import integers

from .packed import packed_mutant

FRAME = "appending.new_keys_are_in_the_cache_and_nothing_else_changes"
STEPS = "appending.steps_of_one_token_give_what_one_call_does"
CHUNKS = "appending.chunks_of_any_sizes_give_what_one_chunk_does"
ROTATED = "appending.new_keys_are_rotated_once_on_their_way_to_the_cache"
#: Options of a call that rotates its queries and new keys.
ROTARY = ("rotary", "rotary_base", "rotary_dim")

#: Queries and caches of a call, and its options.
Begun = tuple[tuple[Any, ...], dict[str, Any]]


@packed_mutant(source="tenstorrent/tt-inference-server#4557", named_by=STEPS, presentation="append")
class CacheBeforeForAfter(Append):
    """Queries attend to the keys that were in the cache before the call."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        found, after = super().begun(tensors, options)
        return found, {**after, "seqused_k": options["seqused_k"]}


@packed_mutant(
    source="sgl-project/sgl-kernel-xpu#196, Dao-AILab/flash-attention#1402", named_by=CHUNKS, presentation="append"
)
class CacheIgnoredWhenMany(Append):
    """Several queries of a sequence attend to the new keys alone."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        found, after = super().begun(tensors, options)
        many = tensors[0].shape[1] > 1
        return found, {**after, "leftpad_k": options["seqused_k"]} if many else after


@packed_mutant(source="vllm-project/vllm#47766", named_by=CHUNKS, presentation="append")
class PlanOfTheFirstCall(Append):
    """The number of keys in a cache is kept from the first call with it, as long as its tensor stays the same."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        found, after = super().begun(tensors, options)
        cache = tensors[1]
        cache.planned = getattr(cache, "planned", after["seqused_k"])
        return found, {**after, "seqused_k": cache.planned}


@packed_mutant(source="made up: an index_add into slots that were used before", named_by=FRAME, presentation="append")
class AppendAdds(Append):
    """New keys are added to what their slots hold, as if these held 0."""

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        there = cache[self.written(cache.shape, after, new.shape[1])]
        super().append(cache, new + there, after)


@packed_mutant(source="ollama/ollama#6831", named_by=FRAME, presentation="append_paged")
class AppendIntoSharedPage(Append):
    """A sequence that shares its first page with another one writes to the pages of that one."""

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        table = integers(after["block_table"])
        owners = np.argmax(table[:, :1] == table[:, 0], axis=1)
        super().append(cache, new, {**after, "block_table": table[owners]})


@packed_mutant(source="tenstorrent/tt-metal#54742", named_by=FRAME, presentation="append")
class AppendPreviousHead(Append):
    """A new key is written to the head before its own."""

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        super().append(cache, new.roll(-1, dims=2), after)


@packed_mutant(source="tenstorrent/tt-metal#57364", named_by=FRAME, presentation="append")
class RingModuloOfThePool(Append):
    """The place of a new key in its row is taken modulo the largest power of 2 up to the length of a row."""

    def new_slots(self, buffer: tuple[int, ...], after: Mapping[str, Any], count: int) -> np.ndarray:
        slots = super().new_slots(buffer, after, count)
        row, place = np.divmod(slots, buffer[1])
        return row * buffer[1] + place % (1 << (buffer[1].bit_length() - 1))


@packed_mutant(source="Dao-AILab/flash-attention#772", named_by=FRAME, presentation="append_indexed")
class BatchIdxFirstSlots(Append):
    """New keys are written to the first rows of the cache, whatever ``cache_batch_idx`` says."""

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        super().append(cache, new, {**after, "cache_batch_idx": np.arange(len(new))})


@packed_mutant(source="made up: lengths that count the new key already", named_by=FRAME, presentation="append")
class AppendAtAfter(Append):
    """New keys are written one place too late."""

    def append(self, cache: Any, new: Any, after: Mapping[str, Any]) -> None:
        super().append(cache, new, {**after, "seqused_k": after["seqused_k"] + 1})


@packed_mutant(source="made up: keys alone are written", named_by=FRAME, presentation="append_paged")
class VNotAppended(Append):
    """New values are not written to their cache."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        values = tensors[2].clone()
        found, after = super().begun(tensors, options)
        tensors[2][...] = values
        return found, after


@packed_mutant(
    source="vllm-project/vllm#26042, fla-org/flash-linear-attention#967",
    named_by=ROTATED,
    presentation="append",
    takes=ROTARY,
)
class RotaryAtZero(Append):
    """Positions of queries and new keys count from the first one of each call."""

    def positions(self, side: str, arguments: Mapping[str, Any], count: int) -> np.ndarray:
        return super().positions(side, arguments, count) * 0 + np.arange(count)


@packed_mutant(
    source="made up: rotary_interleaved, which is True in flash-attention unless it is given",
    named_by=ROTATED,
    presentation="append_paged",
    takes=ROTARY,
)
class RotaryInterleavedSwapped(Append):
    """Columns are paired in the other layout."""

    def rotate(self, side: str, x: Any, arguments: Mapping[str, Any]) -> Any:
        swapped = {"rotary_interleaved": not arguments.get("rotary_interleaved")}
        return super().rotate(side, x, {**arguments, **swapped})


@packed_mutant(source="made up: a cache that is taken for one of keys before rotation", named_by=ROTATED,
               presentation="append", takes=ROTARY)  # fmt: skip
class CachedKeysRotatedAgain(Append):
    """Queries attend to keys of the cache that were rotated a second time."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        (q, k, v), after = super().begun(tensors, options)
        places = np.arange(k.shape[1])[:, None]
        again = rotated.turned(values_of(k), places, options)
        old = places[:, 0] < integers(options["seqused_k"])[:, None]
        return (q, np.where(old[:, :, None, None], again, values_of(k)), v), after


@packed_mutant(source="made up: the rotated key is used, and the other one is kept", named_by=ROTATED,
               presentation="append", takes=ROTARY)  # fmt: skip
class NewKeysWrittenUnrotated(Append):
    """Queries attend to rotated new keys, but the cache gets the new keys as they are."""

    def begun(self, tensors: Sequence[Any], options: Mapping[str, Any]) -> Begun:
        (q, k, v), after = super().begun(tensors, options)
        attended, new = k.clone(), tensors[3]
        super().append(k, new, after)
        return (q, attended, v), after
