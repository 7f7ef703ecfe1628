"""Options that say which queries and keys of each batch entry there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem import patterns
from attn_spec.problem.options.option_fields import length


@dataclass(frozen=True, kw_only=True, eq=False)
class Lengths:
    """Lengths of the sequences of a batch, whose tensors are as long as the longest of them."""

    #: Number of queries of each batch entry, int64 [B, 1, 1, 1]: the first ones; None is all. The rows behind them are
    #: not there: they see no key, and no output is asked of them.
    seqused_q: Any = length(
        says="takes the number of queries of each batch entry, the first ones, integers [B, 1, 1, 1]",
        spellings=("seqused_q", "query_seq_lengths"),
        up_to="Q",
        sees=lambda p: p.there[..., None],
        plain=lambda n: np.full((n["B"], 1, 1, 1), n["Q"]),
    )
    #: Number of keys of each batch entry, int64 [B, 1, 1, 1]: the first ones; None is all.
    seqused_k: Any = length(
        says="takes the number of keys of each batch entry, the first ones, integers [B, 1, 1, 1]",
        spellings=("seqused_k", "cache_seqlens", "kv_lens", "key_value_seq_lengths", "nonpad_kv_seqlen"),
        up_to="K",
        sees=lambda p: np.arange(p.key_length) < p.seqused_k,
        plain=lambda n: np.full((n["B"], 1, 1, 1), n["K"]),
        usual="ragged@B111",
    )
    #: First key of each batch entry, int64 [B, 1, 1, 1]: keys before it are padding. It counts within ``seqused_k``.
    #: None is 0. Positions of ``rotary`` count the padding too.
    leftpad_k: Any = length(
        says="takes the first key of each batch entry, behind the padding on its left, integers [B, 1, 1, 1]",
        spellings=("leftpad_k", "cache_leftpad"),
        up_to="K",
        values=patterns.PADS,
        sees=lambda p: np.arange(p.key_length) >= p.leftpad_k,
        plain=lambda n: np.zeros((n["B"], 1, 1, 1), dtype=np.int64),
        weight=1,
    )
