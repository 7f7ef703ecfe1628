"""Options of rotary embedding: the pairing of columns, the base, the width and the positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_spec.problem.options.option import PARAMETER, SCORE
from attn_spec.problem.options.option_fields import is_number, option, positions

#: Column pairs of ``rotary``: m with m + R/2 ("half"), or 2m with 2m + 1 ("interleaved").
LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotary:
    """Options that rotate q and k by their positions."""

    #: Pairing of the columns of q and k that rotary embedding rotates by position: "half" or "interleaved". None: no
    #: rotation.
    rotary: str | None = option(
        says=f"rotates q and k by their positions; rotary={' or '.join(map(repr, LAYOUTS))} pairs the columns",
        kind=SCORE,
        spellings=("rotary",),
        wanted=f"{', '.join(map(repr, LAYOUTS))} or None",
        accepts=lambda value: value in (None, *LAYOUTS),
        positional=True,
        relative=True,
        aligned=True,
        plain=lambda _: LAYOUTS[0],
        usual=LAYOUTS[0],
        draws=LAYOUTS,
    )
    #: Base of the rotary angles position * base^(-2m / R); None is 10000.
    rotary_base: float | None = option(
        says="takes the base of the rotary angles",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_base",),
        spelled_off=(10000.0,),
        wanted="a number above 0 or None",
        accepts=lambda value: value is None or (is_number(value) and value > 0),
        draws=(None, 500000.0, 100.0, 2.0),
    )
    #: R, the number of leading columns that are rotated; None is D, or D - 1 if D is odd.
    rotary_dim: int | None = option(
        says="takes the number of leading columns that rotary rotates",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_dim",),
        wanted="an even number from 0 to D or None",
        accepts=lambda value: value is None or (isinstance(value, int) and value >= 0 and value % 2 == 0),
        fits=lambda value, lengths: value is None or value <= lengths["D"],
        draws=(None, 2, 4, 8, 16, 32),
    )
    #: True: cosines and sines are rounded to the dtype of q before they multiply, as where a caller has them in tables.
    #: They are the true ones, rounded to float64 and then to that dtype. None: they are real numbers.
    rotary_from_tables: bool | None = option(
        says="rotates by cosines and sines that are rounded to the dtype of q, as tables of them are",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_from_tables",),
        spelled_off=(False,),
        wanted="True or None",
        accepts=lambda value: value in (None, True),
        positional=True,
        aligned=True,
        plain=lambda _: True,
        draws=(True, None),
    )
    #: Positions of queries, int64 [B, 1, Sq, 1]. None: the position of the key that the query is aligned with. Masks by
    #: position still count rows.
    rotary_query_positions: Any = positions(
        says="takes the positions by which rotary rotates queries, integers [B, 1, Sq, 1]",
        spellings=("rotary_query_positions",),
        axes="B1Q1",
    )
    #: Positions of keys, int64 [B, 1, 1, Sk]; None: key j has position j.
    rotary_key_positions: Any = positions(
        says="takes the positions by which rotary rotates keys, integers [B, 1, 1, Sk]",
        spellings=("rotary_key_positions",),
        axes="B11K",
    )
