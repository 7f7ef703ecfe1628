"""Options that mask keys: causality, a window, a mask."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attn_spec.problem import masks, patterns
from attn_spec.problem.options.option import MASK
from attn_spec.problem.options.option_fields import is_window, of_pairs, option

_SIDES = (0, 1, 2, 5, 15, 16, 17, 33, 64, 100, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Masking:
    """Options that say which keys a query sees."""

    #: True masks the keys after the query.
    causal: bool = option(
        off=False,
        says="masks keys after the query",
        kind=MASK,
        spellings=("causal", "is_causal"),
        wanted="True or False",
        accepts=lambda value: isinstance(value, bool | np.bool_),
        sees=lambda p: masks.band(p.distances, None, 0),
        positional=True,
        relative=True,
        plain=lambda _: True,
        usual=True,
        draws=(True,),
    )
    #: Window (left, right) around the diagonal, both inclusive; None is unbounded.
    window: tuple[int | None, int | None] | None = option(
        says="takes (left, right) around the diagonal, both inclusive",
        kind=MASK,
        spellings=("window", "window_size"),
        spelled_off=((None, None), (-1, -1)),
        wanted="(left, right), each None or >= 0",
        accepts=lambda value: value is None or is_window(value),
        sees=lambda p: masks.band(p.distances, *p.window),
        positional=True,
        relative=True,
        plain=lambda _: (2, 2),
        usual=(1023, 0),
        draws=tuple(product(_SIDES, _SIDES)),
    )
    #: Mask: bool, True = attend, broadcastable to [B, Hq, Sq, Sk].
    mask: Any = of_pairs(
        says="takes a bool mask, True = attend, any broadcast to [B, Hq, Sq, Sk]",
        kind=MASK,
        spellings=("mask", "attn_mask"),
        sees=lambda p: p.mask,
        values=patterns.MASKS,
        usual="padding@B11K",
    )
