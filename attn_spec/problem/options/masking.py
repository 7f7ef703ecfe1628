"""Options that mask keys: causality, a window with its sinks, chunks, a mask."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attn_spec.problem import masks, patterns
from attn_spec.problem.options.option import MASK, PARAMETER
from attn_spec.problem.options.option_fields import is_count, is_window, of_pairs, option

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
        aligned=True,
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
        sees=lambda p: masks.in_window(p.distances, p.keys_from_first, p.window, p.window_sinks or 0),
        positional=True,
        relative=True,
        aligned=True,
        plain=lambda _: (2, 2),
        usual=(1023, 0),
        draws=tuple(product(_SIDES, _SIDES)),
    )
    #: Number of first keys of a sequence that the left edge of the window does not mask; None is 0. Its right edge, the
    #: diagonal and the edges of chunks mask them like other keys.
    window_sinks: int | None = option(
        says="takes the number of first keys that the left edge of a window does not mask",
        kind=PARAMETER,
        of="window",
        optional=True,
        spellings=("window_sinks",),
        spelled_off=(0,),
        wanted="an integer of 0 or more or None",
        accepts=lambda value: value is None or is_count(value, least=0),
        positional=True,
        draws=(None, 0, 1, 4, 16),
    )
    #: Number of keys in a chunk. A query sees only the chunk of the key that it is aligned with; chunks start at the
    #: first key of a sequence. None: no chunks.
    attention_chunk: int | None = option(
        says="takes the number c of keys in a chunk: a query sees the chunk of the key that it is aligned with",
        kind=MASK,
        spellings=("attention_chunk", "attention_chunk_size"),
        spelled_off=(0,),
        wanted="an integer of 1 or more or None",
        accepts=lambda value: value is None or is_count(value, least=1),
        sees=lambda p: masks.in_chunk(p.aligned_from_first, p.keys_from_first, p.attention_chunk),
        positional=True,
        aligned=True,
        plain=lambda _: 2,
        usual=1024,
        draws=(1, 2, 3, 5, 16, 17, 24, 64),
        weight=1,
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
