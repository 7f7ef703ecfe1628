"""What a problem may ask beyond softmax(q k^T / sqrt(D)) v: each option is one field of :class:`Options`, with its row.

Whoever deals with options reads the rows: validation, visible keys, JSON, what kernels declare, preflight, the search,
help. A new option is a new field here, and kernels that take it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from attn_spec.problem import masks, patterns, weight_patterns
from attn_spec.problem.option import CHOICE, PARAMETER, SCORE, WEIGHT, Option
from attn_spec.problem.option_fields import (
    is_number,
    of_pairs,
    option,
    positions,
    projection,
)
from attn_spec.problem.score_options import ScoreOptions

#: How ``rotary`` pairs columns: m and m + R/2, or 2m and 2m + 1.
LAYOUTS = ("half", "interleaved")
#: phi of linear attention: elu(x) + 1, max(x, 0), exp(x).
FEATURE_MAPS = ("elu_plus_one", "relu", "exp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Options(ScoreOptions):
    """Scores are ``scale * q.k -> softcap * tanh(s / softcap) -> + bias -> - slope * distance -> mask``; the weights
    that their softmax is are dropped or kept.

    In a recipe tensors are patterns.
    """

    #: Which columns of q and k are a pair that is turned by its position: "half" or "interleaved"; None: no turn.
    rotary: str | None = option(
        says=f"turns q and k by their positions, as rotary={' or '.join(map(repr, LAYOUTS))} pairs columns",
        kind=SCORE,
        spellings=("rotary",),
        wanted=f"{', '.join(map(repr, LAYOUTS))} or None",
        accepts=lambda value: value in (None, *LAYOUTS),
        positional=True,
        relative=True,
        plain=lambda _: LAYOUTS[0],
        usual=LAYOUTS[0],
        draws=LAYOUTS,
    )
    #: base of the angles position * base^(-2m / R); None is 10000.
    rotary_base: float | None = option(
        says="takes the base of the angles of rotary",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_base",),
        spelled_off=(10000.0,),
        wanted="a number above 0 or None",
        accepts=lambda value: value is None or (is_number(value) and value > 0),
        draws=(None, 500000.0, 100.0, 2.0),
    )
    #: R, how many columns are turned, the first ones; None is D, less the last one of an odd number.
    rotary_dim: int | None = option(
        says="takes the number of columns that rotary turns, the first ones",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_dim",),
        wanted="an even number from 0 to D or None",
        accepts=lambda value: value is None or (isinstance(value, int) and value >= 0 and value % 2 == 0),
        fits=lambda value, lengths: value is None or value <= lengths["D"],
        draws=(None, 2, 4, 8, 16, 32),
    )
    #: Where queries stand, int64 [B, 1, Sq, 1]; None: at the keys that they are aligned with. What hides keys by
    #: position counts rows as ever.
    rotary_query_positions: Any = positions(
        says="takes the positions that rotary turns queries by, integers [B, 1, Sq, 1]",
        spellings=("rotary_query_positions",),
        axes="B1Q1",
    )
    #: Where keys stand, int64 [B, 1, 1, Sk]; None: key j at j.
    rotary_key_positions: Any = positions(
        says="takes the positions that rotary turns keys by, integers [B, 1, 1, Sk]",
        spellings=("rotary_key_positions",),
        axes="B11K",
    )
    #: W_Q, [1, Hq, A, D], of the layer whose scores are (W_Q q + b_Q).(W_K k + b_K), whose values are W_V v + b_V, and
    #: whose output is the sum over heads of W_O o, and b_O. Its q, k and v have one head. None: no layer.
    query_projection: Any = projection(
        says="is a layer, q, k and v of one head are projected for each: takes W_Q, [1, Hq, A, D]",
        spellings=("query_projection",),
        axes="1HAD",
        kind=SCORE,
        of="",
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]),
    )
    #: W_K of that layer, [1, Hq, A, D].
    key_projection: Any = projection(
        says="takes W_K of a layer, [1, Hq, A, D], or one for all heads",
        spellings=("key_projection",),
        axes="1HAD",
        shared=True,
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]),
    )
    #: W_V of that layer, [1, Hq, U, Dv].
    value_projection: Any = projection(
        says="takes W_V of a layer, [1, Hq, U, Dv], or one for all heads",
        spellings=("value_projection",),
        axes="1HUV",
        shared=True,
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["V"]),
    )
    #: W_O of that layer, [1, Hq, O, U].
    output_projection: Any = projection(
        says="takes W_O of a layer, [1, Hq, O, U]",
        spellings=("output_projection",),
        axes="1HOU",
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]).swapaxes(2, 3),
    )
    #: b_Q of that layer, [1, Hq, 1, A]; None is 0, as for each bias below.
    query_projection_bias: Any = projection(
        says="takes b_Q of a layer, [1, Hq, 1, A]",
        spellings=("query_projection_bias",),
        is_product=False,
        axes="1H1A",
        values=weight_patterns.VECTORS,
        optional=True,
    )
    #: b_K of that layer, [1, Hq, 1, A].
    key_projection_bias: Any = projection(
        says="takes b_K of a layer, [1, Hq, 1, A], or one for all heads",
        spellings=("key_projection_bias",),
        is_product=False,
        axes="1H1A",
        values=weight_patterns.VECTORS,
        optional=True,
        shared=True,
    )
    #: b_V of that layer, [1, Hq, 1, U].
    value_projection_bias: Any = projection(
        says="takes b_V of a layer, [1, Hq, 1, U], or one for all heads",
        spellings=("value_projection_bias",),
        adds_to_values=True,
        axes="1H1U",
        values=weight_patterns.VECTORS,
        optional=True,
        shared=True,
    )
    #: b_O of that layer, [1, 1, 1, O].
    output_projection_bias: Any = projection(
        says="takes b_O of a layer, [1, 1, 1, O]",
        spellings=("output_projection_bias",),
        adds_to_values=True,
        axes="111O",
        values=weight_patterns.VECTORS,
        optional=True,
    )
    #: phi of linear attention, whose weights are phi(q).phi(k) over their sum; None: weights are a softmax.
    feature_map: str | None = option(
        says=f"is linear attention, phi(q).phi(k) over the sum: takes phi as {', '.join(map(repr, FEATURE_MAPS))}",
        kind=SCORE,
        spellings=("feature_map",),
        wanted=f"{', '.join(map(repr, FEATURE_MAPS))} or None",
        accepts=lambda value: value in (None, *FEATURE_MAPS),
        divides=False,
        is_product=False,
        exponential=False,
        plain=lambda _: FEATURE_MAPS[0],
        draws=FEATURE_MAPS,
    )
    #: epsilon, added to the sum of those weights; None is 0.
    feature_epsilon: float | None = option(
        says="takes epsilon, added to the sum of the weights of linear attention",
        kind=PARAMETER,
        of="feature_map",
        optional=True,
        adds_to_row_sum=True,
        spellings=("feature_epsilon", "eps"),
        spelled_off=(0.0,),
        wanted="a number of 0 or more or None",
        accepts=lambda value: value is None or (is_number(value) and value >= 0),
        draws=(None, 2.0**-20, 1e-6, 1.0),
    )
    #: Which weights dropout keeps, bool, True = kept, broadcastable to [B, Hq, Sq, Sk]; None is all of them.
    dropout_keep: Any = of_pairs(
        says="takes a bool keep mask of dropout, True = kept, any broadcast to [B, Hq, Sq, Sk]",
        kind=WEIGHT,
        spellings=("dropout_keep", "dropout_mask"),
        values=patterns.KEEPS,
        weight=1,
    )
    #: p of 1/(1 - p), which multiplies the weights that dropout keeps; None is 0.
    dropout_p: float | None = option(
        says="takes the share p of weights that dropout drops: those kept are divided by 1 - p",
        kind=PARAMETER,
        of="dropout_keep",
        optional=True,
        spellings=("dropout_p",),
        spelled_off=(0.0,),
        wanted="a number from 0 up to 1, less than 1, or None",
        accepts=lambda value: value is None or (is_number(value) and 0 <= value < 1),
        draws=(0.5, None, 0.1, 0.25, 0.9, 0.3),
    )
    #: Which corner the diagonal of ``causal`` and ``window`` starts from, and positions count from, when Sq != Sk.
    causal_alignment: str = option(
        off="top_left",
        says="takes causal_alignment; without it the alignment is the declared convention",
        kind=CHOICE,
        spellings=("causal_alignment",),
        wanted=f"one of {', '.join(masks.ALIGNMENTS)}",
        accepts=lambda value: value in masks.ALIGNMENTS,
        draws=masks.ALIGNMENTS,
    )


#: Every option by name.
OPTIONS: dict[str, Option] = {each.name: replace(each.metadata["row"], name=each.name) for each in fields(Options)}


def parameters(option: str) -> tuple[Option, ...]:
    """The further parameters of an option."""
    return tuple(row for row in OPTIONS.values() if row.of == option)


def with_parameters(names: Iterable[str]) -> tuple[str, ...]:
    """Options and abilities, each followed by the further parameters that it cannot do without."""
    found = ((name, *(row.name for row in parameters(name) if not row.optional)) for name in names)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))
