"""Fields of ``options.Options``: each kind of tensor that several options are, and what plain values are."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from attn_spec.problem import patterns, weight_patterns
from attn_spec.problem.option import PARAMETER, SCORE, Option


def option(off: Any = None, **row: Any) -> Any:
    """A field of ``Options`` whose row is in its metadata."""
    return field(default=off, metadata={"row": Option(off=off, **row)})


def score_parameter(*, spelling: str, axes: str, values: Any, kind: str = SCORE, **row: Any) -> Any:
    """A parameter of a score: a tensor of the ``axes``, drawn from patterns of ``values``; None: another score."""
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
    """A tensor of the projections of a layer, drawn from patterns of ``values``; if ``shared``, of all heads too."""
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
    """A bool for each query and key, drawn from patterns of ``values``."""
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
    """Positions of rows, integers of the ``axes``, drawn half of the time; None: rows are counted."""
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


def is_number(value: Any) -> bool:
    """Return whether this is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def is_window(value: Any) -> bool:
    """Return whether this is a pair of lengths, or of None."""
    sides = value if isinstance(value, tuple) else ()
    return len(sides) == 2 and all(side is None or (type(side) is int and side >= 0) for side in sides)
