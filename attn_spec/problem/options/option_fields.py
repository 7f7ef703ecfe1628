"""Constructors of the fields of ``options.Options``: one for each kind of tensor, and tests of plain values."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from attn_spec.problem import patterns, weight_patterns
from attn_spec.problem.options.option import MASK, PARAMETER, SCORE, Option


def option(off: Any = None, **row: Any) -> Any:
    """Return a field of ``Options`` with the option's row in its metadata."""
    return field(default=off, metadata={"row": Option(off=off, **row)})


def score_parameter(*, spelling: str, axes: str, values: Any, kind: str = SCORE, **row: Any) -> Any:
    """Return a field for a parameter of a score: a tensor with these ``axes``, drawn from the patterns ``values``.

    The value None means that the problem uses another score.
    """
    names = patterns.spread(values, axes)
    return option(
        kind=kind,
        spellings=(spelling,),
        wanted="NaN or an infinity",
        accepts=lambda value: bool(np.isfinite(value).all()),
        tensor=np.float64,
        axes=axes,
        draws=(None, *names) if row.get("optional") else names,
        patterns=values,
        **row,
    )


def projection(
    *, axes: str, says: str, values: Any = weight_patterns.PROJECTIONS, shared: bool = False, **row: Any
) -> Any:
    """Return a field for a tensor of a layer's projections, drawn from the patterns ``values``.

    If ``shared`` is True, the search also draws one tensor for all heads.
    """
    broadcasts = [axes.replace("H", "1"), axes] if shared else [axes]
    names = tuple(f"{name}@{kept}" for name in values for kept in broadcasts)
    return option(
        says=says,
        wanted="NaN or an infinity",
        accepts=lambda value: bool(np.isfinite(value).all()),
        tensor=np.float64,
        axes=axes,
        draws=(None, *names) if row.get("optional") else names,
        patterns=values,
        projects_values=True,
        **{"kind": PARAMETER, "of": "query_projection", **row},
    )


def of_pairs(*, values: Any, **row: Any) -> Any:
    """Return a field for a bool tensor over queries and keys, drawn from the patterns ``values``."""
    return option(
        wanted="",
        accepts=lambda _: True,
        tensor=np.bool_,
        plain=lambda n: np.ones((1, 1, n["Q"], n["K"]), dtype=bool),
        draws=patterns.spread(values),
        patterns=values,
        **row,
    )


def positions(*, axes: str, **row: Any) -> Any:
    """Return a field for positions, an integer tensor with these ``axes``; half of the drawn values are None.

    The value None means that rows are counted.
    """
    names = patterns.spread(patterns.POSITIONS, axes)
    return option(
        kind=PARAMETER,
        of="rotary",
        optional=True,
        wanted=f"a number below 0 or above {patterns.FARTHEST}",
        accepts=lambda value: bool((value >= 0).all() and (value <= patterns.FARTHEST).all()),
        tensor=np.int64,
        axes=axes,
        positional=True,
        draws=(*(None,) * len(names), *names),
        patterns=patterns.POSITIONS,
        **row,
    )


def descale(*, axes: str, values: Any = patterns.DESCALES, **row: Any) -> Any:
    """Return a field for real factors of a tensor, itself one with these ``axes``, each of which may be broadcast.

    The factors are drawn from the patterns ``values``.
    """
    own: dict[str, Any] = {
        "wanted": "a number that is not above 0, NaN or an infinity",
        "accepts": lambda value: bool(np.isfinite(value).all() and (value > 0).all()),
        "tensor": np.float64,
        "axes": axes,
        "plain": lambda _: np.ones((1, 1, 1, 1)),
        "usual": "ordinary@1111",
        "draws": patterns.spread(values, axes),
        "patterns": values,
        "weight": 1,
    }
    return option(**own | row)


def length(*, up_to: str, values: Any = patterns.LENGTHS, **row: Any) -> Any:
    """Return a field for a place in the sequence of each batch entry, an integer tensor [B, 1, 1, 1].

    Its numbers are from 0 to the length of the axis ``up_to``, and are drawn from the patterns ``values``.
    """
    return option(
        kind=MASK,
        wanted=f"a number below 0 or above S{up_to.lower()}",
        accepts=lambda value: bool((value >= 0).all()),
        tensor=np.int64,
        axes="B111",
        up_to=up_to,
        positional=True,
        moves_diagonal=True,
        draws=patterns.spread(values, "B111"),
        patterns=values,
        **row,
    )


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; a bool is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def is_count(value: Any, least: int) -> bool:
    """Return whether a value is an integer of ``least`` or more; a bool is no integer here."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_window(value: Any) -> bool:
    """Return whether a value is a pair, each side an integer of 0 or more or None."""
    sides = value if isinstance(value, tuple) else ()
    return len(sides) == 2 and all(side is None or (type(side) is int and side >= 0) for side in sides)
