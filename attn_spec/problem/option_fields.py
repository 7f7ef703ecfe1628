"""Fields of ``options.Options``: each holds its row in its metadata."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from attn_spec.problem import patterns
from attn_spec.problem.option import SCORE, Option


def option(off: Any = None, **row: Any) -> Any:
    """A field of :class:`Options` whose row is in its metadata."""
    return field(default=off, metadata={"row": Option(off=off, **row)})


def parameter(*, spelling: str, axes: str, values: Any, kind: str = SCORE, **row: Any) -> Any:
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
