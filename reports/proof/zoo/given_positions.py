"""Mutants of rotary positions that a call gives: given positions of another tensor, rounded, shifted or ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.attention.rotations import Rotation, rotations
from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.operands import Operands
from attn_spec.kernels.frameworks.framework import values_of

from .mutants import score_mutant
from .positions import BACK, Turns
from .scores import with_formulas

GIVEN = "positions.given_positions_give_an_answer_within_its_bound"
OFFSET = "positions.one_offset_of_all_positions_changes_nothing"
EQUAL = "positions.at_equal_positions_nothing_is_turned"
RESTART = "documents.positions_restart_with_each_document"
ORDER = "positions.keys_carry_their_positions_along"
#: The options that give positions.
NAMES = ("rotary_query_positions", "rotary_key_positions")


class _Reads(Operands):
    """Given positions, read in another way."""

    def __init__(self, c: Any, order: Any, q: Any, k: Any, options: Mapping[str, Any]) -> None:
        read = {name: self.read(name, options) for name in NAMES if options.get(name) is not None}
        super().__init__(c, order, q, k, {**options, **read})

    def read(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return the tensor that is taken for the positions ``name``."""
        raise NotImplementedError


@score_mutant("rotary", source="NVIDIA/Megatron-LM#453, epfLLM/Megatron-LLM#23", named_by=GIVEN)
class PositionsIgnored(_Reads):
    """Rows are counted, whatever positions the caller gives."""

    def read(self, name: str, options: Mapping[str, Any]) -> None:
        del name, options


@score_mutant("rotary", source="huggingface/transformers#22161", named_by=GIVEN)
class PositionsOfTheFirstEntry(_Reads):
    """The positions of the first batch entry serve all of them."""

    def read(self, name: str, options: Mapping[str, Any]) -> Any:
        return options[name][:1]


@score_mutant("rotary", source="made up: one position_ids for queries and keys", named_by=GIVEN)
class PositionsOfKeysForQueries(Turns):
    """Query i has the position of key i; later queries have that of the last key."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        of_keys = self.p["keys"].positions
        rows = np.minimum(np.arange(self.q.values.shape[2]), of_keys.shape[-1] - 1)
        self.p["queries"] = replace(self.p["queries"], positions=of_keys[..., rows])


@score_mutant("rotary", source="huggingface/candle#3520", named_by=OFFSET)
class PositionsInBfloat16(Turns):
    """Positions are rounded to bfloat16: from 256 on some coincide."""

    def either(self, turn: Rotation) -> Rotation:
        return replace(turn, positions=rounded(turn.positions.astype(float), "bfloat16"))


@score_mutant("rotary", source="NVIDIA/Megatron-LM#535", named_by=OFFSET)
class PositionsInFloat16(Turns):
    """Positions are rounded to float16: from 2048 on some coincide."""

    def either(self, turn: Rotation) -> Rotation:
        return replace(turn, positions=np.minimum(rounded(turn.positions.astype(float), "float16"), 65504.0))


@score_mutant("rotary", source="fla-org/flash-linear-attention#766", named_by=EQUAL)
class QueriesOneFurtherOn(Turns):
    """The queries stand one position after the given one."""

    def queries(self, turn: Rotation) -> Rotation:
        return replace(turn, positions=turn.positions + 1)


@score_mutant("rotary", source="made up: a sine of another sign where keys enter a cache", named_by=EQUAL)
class KeysTurnedBack(Operands):
    """The keys are turned the other way."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        pull = self.score.keys.pull
        self.score = with_formulas(self.score, "keys", value=lambda A, k, p: pull(A, k, p, k)[0])


@score_mutant("rotary", source="made up: an index in a tile for one in the sequence", named_by=ORDER)
class PositionsRestartedPerTile(_Reads):
    """Positions of keys are read again from the first in each tile of 16."""

    def read(self, name: str, options: Mapping[str, Any]) -> Any:
        at = options[name]
        return at[..., np.arange(at.shape[3]) % 16] if name == "rotary_key_positions" else at


@score_mutant("rotary", source="rajveer43/VeloxQuant-MLX#389", named_by=ORDER)
class KeysCountedInTheCache(_Reads):
    """Keys have their index in the cache as position; queries have the given positions."""

    def read(self, name: str, options: Mapping[str, Any]) -> Any:
        return None if name == "rotary_key_positions" else options[name]


@score_mutant("rotary", source="made up: a position that is advanced after it is read", named_by=RESTART)
class RestartOneTokenLate(_Reads):
    """The first token of a document has the position that follows the document before."""

    def read(self, name: str, options: Mapping[str, Any]) -> Any:
        at = values_of(options[name])
        axis = 2 + NAMES.index(name)
        return np.concatenate([at.take([0], axis), at.take(range(at.shape[axis] - 1), axis) + 1], axis=axis)


@score_mutant("rotary", source="made up: a backward pass that was not told of positions", named_by=BACK)
class GradientsTurnedBackByCounting(Operands):
    """dQ and dK are turned back by the number of their row."""

    def backward(self, run: Callable[..., Any], v: Any, *outputs: Any) -> dict[str, np.ndarray]:
        turns = self.p["queries"], self.p["keys"]
        lengths = {"query_length": self.q.values.shape[2], "key_length": self.k.values.shape[2]}
        how = {"columns": turns[0].columns, "rotary": turns[0].layout}
        counted = rotations(**lengths, **how, rotary_base=turns[0].base, rotary_dim=turns[0].turned)

        def by_counting(pull: Callable[..., Any]) -> Callable[..., Any]:
            return lambda A, x, p, t: pull(A, x, p | counted, t)

        for side in ("queries", "keys"):
            self.score = with_formulas(self.score, side, pull=by_counting(getattr(self.score, side).pull))
        return super().backward(run, v, *outputs)
