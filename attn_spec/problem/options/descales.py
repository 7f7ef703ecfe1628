"""Options of quantized inputs: the descales, real factors by which stored numbers are multiplied.

The truth is attention of the real numbers d_q q, d_k k and d_v v. The product of a query and a key has the factor
d_q d_k, and so both are terms of a score. The factor d_v of a value multiplies the weight that it meets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_spec.problem.options.option import TERM, WEIGHT
from attn_spec.problem.options.option_fields import descale


@dataclass(frozen=True, kw_only=True, eq=False)
class Descales:
    """Options that say what real numbers the stored q, k and v stand for."""

    #: Descale of q, [B, Hkv, 1, 1]: the queries are the real numbers d_q q, with one d_q for the query heads of a key
    #: head. Source: FlashAttention-3, ``q_descale``.
    q_descale: Any = descale(
        factor_of="q",
        says="takes the descale of q, [B, Hkv, 1, 1]: a real factor of the queries that read a key head",
        kind=TERM,
        axes="BG11",
        spellings=("q_descale", "q_scale", "descale_q"),
    )
    #: Descale of k, [B, Hkv, Sk, 1]: the keys are the real numbers d_k k. Equal numbers along the keys are one descale
    #: for a block of keys, or for all of them.
    k_descale: Any = descale(
        factor_of="k",
        says="takes the descale of k, [B, Hkv, Sk, 1]: a real factor of each key of each key head",
        kind=TERM,
        axes="BGK1",
        spellings=("k_descale", "k_scale", "descale_k"),
    )
    #: Descale of v, [B, Hkv, Sk, 1]: the values are the real numbers d_v v, of blocks of keys as with ``k_descale``.
    v_descale: Any = descale(
        factor_of="v",
        says="takes the descale of v, [B, Hkv, Sk, 1]: a real factor of each value of each key head",
        kind=WEIGHT,
        axes="BGK1",
        spellings=("v_descale", "v_scale", "descale_v"),
    )
