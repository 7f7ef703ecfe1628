"""Options of dropout: the keep mask and the probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_spec.problem import patterns
from attn_spec.problem.options.option import PARAMETER, WEIGHT
from attn_spec.problem.options.option_fields import is_number, of_pairs, option


@dataclass(frozen=True, kw_only=True, eq=False)
class Dropout:
    """Options that drop weights."""

    #: Keep mask of dropout: bool, True = kept, broadcastable to [B, Hq, Sq, Sk]; None keeps every weight.
    dropout_keep: Any = of_pairs(
        says="takes a bool keep mask of dropout, True = kept, any broadcast to [B, Hq, Sq, Sk]",
        kind=WEIGHT,
        spellings=("dropout_keep", "dropout_mask"),
        values=patterns.KEEPS,
        weight=1,
    )
    #: Dropout probability p: kept weights are multiplied by 1/(1 - p); None is 0.
    dropout_p: float | None = option(
        says="takes the dropout probability p: kept weights are divided by 1 - p",
        kind=PARAMETER,
        of="dropout_keep",
        optional=True,
        spellings=("dropout_p",),
        spelled_off=(0.0,),
        wanted="a number from 0 up to 1, less than 1, or None",
        accepts=lambda value: value is None or (is_number(value) and 0 <= value < 1),
        draws=(0.5, None, 0.1, 0.25, 0.9, 0.3),
    )
