"""Mutants of rotary positions: pairs, angles and what they turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.attention.rotations import Rotation
from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.operands import Operands
from attn_spec.emulation.sound import PRECISE

from .mutants import score_mutant
from .scores import with_formulas

TURNED = "positions.turned_queries_and_keys_give_an_answer_within_its_bound"
DISTANCE = "positions.only_the_distance_between_positions_counts"
FIRST = "positions.at_position_zero_nothing_is_turned"
BACK = "positions.gradients_are_turned_back"


class Turns(Operands):
    """Rotations with one thing changed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.p |= {"queries": self.queries(self.p["queries"]), "keys": self.keys(self.p["keys"])}

    def queries(self, turn: Rotation) -> Rotation:
        """Return the rotation of the queries as the mutant has it."""
        return self.either(turn)

    def keys(self, turn: Rotation) -> Rotation:
        """Return the rotation of the keys as the mutant has it."""
        return self.either(turn)

    def either(self, turn: Rotation) -> Rotation:
        """Return the rotation of either side, where both are changed alike."""
        return turn


@score_mutant("rotary", source="huggingface/candle#3948", named_by=TURNED)
class PairsOfTheOtherLayout(Turns):
    """Halves are read as interleaved pairs, and pairs as halves, on both sides."""

    def either(self, turn: Rotation) -> Rotation:
        return replace(turn, layout="half" if turn.layout == "interleaved" else "interleaved")


@score_mutant("rotary", source="made up: the keys of the cache turned when they are written", named_by=TURNED)
class KeysNotTurned(Turns):
    """The queries alone are turned."""

    def keys(self, turn: Rotation) -> Rotation:
        return replace(turn, positions=0 * turn.positions)


@score_mutant("rotary", source="made up: a query counted after it was appended", named_by=FIRST)
class QueriesCountedFromOne(Turns):
    """The first query stands at position 1, the first key at 0."""

    def queries(self, turn: Rotation) -> Rotation:
        return replace(turn, positions=turn.positions + 1)


@score_mutant("rotary", source="made up: a base that is a constant", named_by=TURNED)
class BaseIgnored(Turns):
    """The base is 10000 whatever the caller says."""

    def either(self, turn: Rotation) -> Rotation:
        return replace(turn, base=10000.0)


@score_mutant("rotary", source="made up: rotary_dim read after it was used", named_by=TURNED)
class AllColumnsTurned(Turns):
    """All columns are turned, however few should be."""

    def either(self, turn: Rotation) -> Rotation:
        return replace(turn, turned=turn.columns - turn.columns % 2)


class _Angles(Turns):
    """Rotations whose angles are another function of the positions."""

    def either(self, turn: Rotation) -> Rotation:
        made = replace(turn)
        made.__dict__["exponents"] = self.exponents(turn)
        return made

    def exponents(self, turn: Rotation) -> np.ndarray:
        """Return the powers of the base."""
        raise NotImplementedError


@score_mutant("rotary", source="made up: m for 2m", named_by=TURNED)
class ExponentHalved(_Angles):
    """Frequencies are base^(-m / R)."""

    def exponents(self, turn: Rotation) -> np.ndarray:
        return turn.exponents / 2


@score_mutant("rotary", source="made up: the dimension of the head for that of the turn", named_by=TURNED)
class ExponentOfAllColumns(_Angles):
    """Frequencies are base^(-2m / D) where fewer columns than D are turned."""

    def exponents(self, turn: Rotation) -> np.ndarray:
        return turn.exponents * turn.turned / turn.columns


@score_mutant("rotary", source="made up: frequencies in falling order", named_by=TURNED)
class FrequenciesReversed(_Angles):
    """The last pair turns fastest."""

    def exponents(self, turn: Rotation) -> np.ndarray:
        return turn.exponents[::-1]


@score_mutant("rotary", source="sgl-project/sglang-jax#1472", named_by=TURNED)
class FrequenciesInBfloat16(_Angles):
    """Frequencies are rounded to bfloat16 before they are multiplied by the positions."""

    def exponents(self, turn: Rotation) -> np.ndarray:
        rounded_powers = rounded(np.power(turn.base, turn.exponents), "bfloat16")
        return np.log(rounded_powers) / np.log(turn.base)


@score_mutant("rotary", source="EleutherAI/gpt-neox#1016", named_by=DISTANCE)
class PositionsOfFewBits(Turns):
    """Positions have 4 bits, a scale model of bfloat16: from 16 on some coincide."""

    def either(self, turn: Rotation) -> Rotation:
        fraction, exponent = np.frexp(turn.positions)
        return replace(turn, positions=np.ldexp(np.rint(fraction * 16) / 16, exponent))


@score_mutant("rotary", source="made up: x cos + y sin, y cos - x sin", named_by=TURNED)
class QueriesTurnedBack(Operands):
    """The queries are turned the other way."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        pull = self.score.queries.pull
        self.score = with_formulas(self.score, "queries", value=lambda A, q, p: pull(A, q, p, q)[0])


@score_mutant("rotary", source="made up: a sign lost in rotate_half", named_by=TURNED)
class MinusForgotten(Operands):
    """(x cos + y sin, y cos + x sin), on both sides."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)

        def made(side: str) -> Callable[..., Any]:
            def value(A: Any, x: Any, p: Any) -> Any:
                cos, sin = A.tables(p[side])
                return x * cos + replace(x, values=x.values[..., p[side].partner]) * sin

            return value

        for side in ("queries", "keys"):
            self.score = with_formulas(self.score, side, value=made(side))


@score_mutant("rotary", source="made up: a backward pass of the product alone", named_by=BACK)
class GradientsNotTurnedBack(Operands):
    """dQ and dK are the gradients of the turned queries and keys."""

    def backward(self, run: Callable[..., Any], v: Any, *outputs: Any) -> dict[str, np.ndarray]:
        self.score = with_formulas(self.score, "queries", "keys", pull=lambda A, x, p, t: (t, {}))
        return super().backward(run, v, *outputs)


@score_mutant("rotary", source="made up: one turn for both passes", named_by=BACK)
class GradientsTurnedAgain(Operands):
    """dQ and dK are turned forward once more."""

    def backward(self, run: Callable[..., Any], v: Any, *outputs: Any) -> dict[str, np.ndarray]:
        def again(value: Callable[..., Any]) -> Callable[..., Any]:
            return lambda A, x, p, t: (value(A, t, p), {})

        for side in ("queries", "keys"):
            self.score = with_formulas(self.score, side, pull=again(getattr(self.score, side).value))
        return super().backward(run, v, *outputs)


@score_mutant(
    "rotary",
    source="KellerJordan/modded-nanogpt#39",
    named_by=TURNED,
    executes=replace(PRECISE, rotary_tables="bfloat16"),
)
class TablesInBfloat16(Operands):
    """Cosines and sines are stored in bfloat16, float32 is declared."""
