"""Mutants of packed calls: sound kernels that read the bounds of the sequences of a buffer wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from attn_spec.emulation.kernels import emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.places import Bounds, Places
from attn_spec.kernels.presentations.table import PRESENTATIONS

from .lengths import ALONE, BESIDE_SHORT, CORNER, TILE, WITHOUT_KEYS
from .mutants import DTYPES, introduce

LONGEST = "placement.a_stated_largest_length_may_be_larger"

#: First slot and length of each sequence, integers [B] each.
Sequences = tuple[np.ndarray, np.ndarray]
#: Fields of a packed presentation, by side.
SIDES = {"q": "queries", "k": "keys"}
#: A class of places, or of packed calls.
Wrong = TypeVar("Wrong", Packed, Places)
#: Options and abilities of the kernel that reads wrongly.
TAKES = ("scale", "causal", "causal_alignment", "window", "alibi_slopes", "gqa", "dv", "cross", "empty", "lse")


def packed_mutant(
    *,
    source: str,
    named_by: str,
    presentation: str = "THD",
    of: str = "k",
    takes: tuple[str, ...] = (),
    dtype: str = "float32",
    conventions: Mapping[str, Any] | None = None,
) -> Callable[[type[Wrong]], type[Wrong]]:
    """Register how a sound kernel reads its calls, other than they are: the places of one side, or the whole call.

    The kernel declares the options ``takes`` beside ``TAKES``, and ``conventions`` beside ``unused``.
    """

    def register(wrong: type[Wrong]) -> type[Wrong]:
        def build(name: str, dtype: str) -> Kernel:
            own = PRESENTATIONS[presentation]
            assert isinstance(own, Packed)
            right = own if issubclass(wrong, Packed) else own.places(of)
            read = wrong(**{item.name: getattr(right, item.name) for item in fields(right)})
            reads = read if isinstance(read, Packed) else replace(own, **{SIDES[of]: read})
            declared = {
                "dtypes": (dtype,),
                "contract": "fused",
                "supports": [each for each in (*TAKES, *takes) if own.can_say(each)],
                "conventions": {"unused": "unread", **(conventions or {})},
                "presentation": presentation,
            }
            make = emulate if own.appends else emulate_both
            return make(name, PRECISE, reads=reads, **declared)

        return introduce(
            wrong, build, source=source, named_by=named_by, dtype=dtype, dtypes=DTYPES if dtype in DTYPES else (dtype,)
        )

    return register


def clipped(starts: np.ndarray, lengths: np.ndarray, count: int) -> Sequences:
    """Return sequences that lie inside a buffer of ``count`` slots."""
    return starts, np.clip(lengths, 0, count - starts)


@packed_mutant(source="huggingface/transformers#46634", named_by=ALONE)
class OneBoundary(Bounds):
    """Every sequence behind the first begins one key too early."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        return np.maximum(starts - (np.arange(len(starts)) > 0), 0), lengths


@packed_mutant(source="Dao-AILab/flash-attention#2333", named_by=ALONE)
class KeysEndAtTheBuffer(Bounds):
    """The keys of the last sequence end where the buffer ends."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        last = np.arange(len(starts)) == len(starts) - 1
        return starts, np.where(last, math.prod(buffer) - starts, lengths)


@packed_mutant(source="thu-ml/SageAttention#26", named_by=ALONE)
class QueryBoundsForKeys(Bounds):
    """The bounds of the queries are taken for those of the keys."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        of_queries = replace(self, side="q")
        return clipped(*Bounds.sequences(of_queries, buffer, arguments), math.prod(buffer))


@packed_mutant(source="made up: a grid of max_seqlen_k keys without a bound of its own", named_by=ALONE)
class LongestForEachLength(Bounds):
    """Each sequence has as many keys as max_seqlen_k states."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        lengths = np.full(lengths.shape, arguments["max_seqlen_k"])
        return clipped(starts, lengths, math.prod(buffer))


@packed_mutant(source="made up: offsets b * max_seqlen_k of a padded batch in a packed buffer", named_by=ALONE)
class OffsetsOfAPaddedBatch(Bounds):
    """A sequence begins at its number times max_seqlen_k, as if the batch were padded."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        starts = np.minimum(np.arange(len(starts)) * arguments["max_seqlen_k"], math.prod(buffer))
        return clipped(starts, lengths, math.prod(buffer))


@packed_mutant(source="Dao-AILab/flash-attention#1619, Dao-AILab/flash-attention#1713", named_by=WITHOUT_KEYS)
class EmptySequenceTakesTheNext(Bounds):
    """A sequence without keys gets those of the next sequence that has some."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        for entry in reversed(range(len(lengths) - 1)):
            if lengths[entry] == 0:
                lengths[entry] = lengths[entry + 1]
        return starts, lengths


@packed_mutant(source="Dao-AILab/flash-attention#1619, Dao-AILab/flash-attention#1713", named_by=BESIDE_SHORT)
class ZeroLengthSkipsTheNext(Bounds):
    """A sequence behind one without keys has none either."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        return starts, np.where(np.append([1], lengths[:-1]) == 0, 0, lengths)


@packed_mutant(source="made up: a last entry that is taken for the padding of a recorded batch", named_by=BESIDE_SHORT)
class LastSequenceIsPadding(Bounds):
    """The last of several sequences has one key at most."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        last = np.arange(len(starts)) == max(len(starts) - 1, 1)
        return starts, np.where(last, np.minimum(lengths, 1), lengths)


@packed_mutant(source="made up: a grid that is sized by the first sequence", named_by=ALONE)
class GridOfTheFirstSequence(Bounds):
    """No sequence has more keys than the first one."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        return starts, np.minimum(lengths, lengths[:1])


@packed_mutant(source="made up: slots below the number of the last one, in place of below their number", named_by=ALONE)
class LastSlotOfTheBufferLost(Bounds):
    """A key in the last slot of the buffer is not read, where its sequence has several."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        at_the_end = (starts + lengths == math.prod(buffer)) & (lengths > 1)
        return starts, lengths - at_the_end


@packed_mutant(source="made up: the bound behind a sequence taken for its last slot", named_by=CORNER, of="q")
class LastQueryLeftOut(Bounds):
    """The last sequence has one query less than its bounds say, where it has several."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        last = np.arange(len(starts)) == len(starts) - 1
        return starts, np.where(last & (lengths > 1), lengths - 1, lengths)


@packed_mutant(source="Dao-AILab/flash-attention#1537", named_by=LONGEST)
class LastTileOfTheLongestLost(Bounds):
    """A grid has the whole tiles of max_seqlen_k, so that keys behind the last of them are lost."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        starts, lengths = super().sequences(buffer, arguments)
        whole = arguments["max_seqlen_k"] // TILE * TILE
        return starts, np.minimum(lengths, whole or arguments["max_seqlen_k"])


@packed_mutant(
    source="made up: bounds of the sequences taken for those of the padded ones",
    named_by=ALONE,
    presentation="THD_gaps",
)
class GapsLeftOut(Bounds):
    """The keys of a sequence are looked for where they would lie without gaps."""

    def sequences(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Sequences:
        _, lengths = super().sequences(buffer, arguments)
        return np.cumsum(lengths) - lengths, lengths


@packed_mutant(
    source="NVIDIA/TransformerEngine#3331, NVIDIA/cudnn-frontend#737", named_by=ALONE, presentation="THD_gaps"
)
class OutputWithoutGaps(Packed):
    """The output of a sequence is written where it would lie without gaps."""

    def presented(self, name: str, x: Any, /, **arguments: Any) -> Any:
        if name == "output":
            arguments = {**arguments, "cu_seqlens_q_padded": arguments["cu_seqlens_q"]}
        return super().presented(name, x, **arguments)
