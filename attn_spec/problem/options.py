"""Options of a problem, beyond softmax(q k^T / sqrt(D)) v: each is one field of :class:`Options`, with its row.

Validation, masks, JSON, declarations of kernels, preflight, search and help all read these rows. A new option is a new
field here, and kernels that take it.
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

#: Column pairs of ``rotary``: m with m + R/2 ("half"), or 2m with 2m + 1 ("interleaved").
LAYOUTS = ("half", "interleaved")
#: Feature maps phi of linear attention: elu(x) + 1, max(x, 0), exp(x).
FEATURE_MAPS = ("elu_plus_one", "relu", "exp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Options(ScoreOptions):
    """All options of a problem.

    Scores are ``scale * q.k -> softcap * tanh(s / softcap) -> + bias -> - slope * distance -> mask``. Weights are the
    softmax of the scores, and dropout keeps or drops them. In a recipe, names of patterns stand for tensors.
    """

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
    #: W_Q of a layer, [1, Hq, A, D]; None: the problem is no layer. Scores of a layer are (W_Q q + b_Q).(W_K k + b_K),
    #: its values are W_V v + b_V. Its output is b_O plus the sum over heads of W_O o. Its q, k and v have one head.
    query_projection: Any = projection(
        says="is a layer, which projects q, k and v of one head for each of its heads: takes W_Q, [1, Hq, A, D]",
        spellings=("query_projection",),
        axes="1HAD",
        kind=SCORE,
        of="",
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]),
    )
    #: W_K of a layer, [1, Hq, A, D].
    key_projection: Any = projection(
        says="takes W_K of a layer, [1, Hq, A, D], or one for all heads",
        spellings=("key_projection",),
        axes="1HAD",
        shared=True,
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]),
    )
    #: W_V of a layer, [1, Hq, U, Dv].
    value_projection: Any = projection(
        says="takes W_V of a layer, [1, Hq, U, Dv], or one for all heads",
        spellings=("value_projection",),
        axes="1HUV",
        shared=True,
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["V"]),
    )
    #: W_O of a layer, [1, Hq, O, U].
    output_projection: Any = projection(
        says="takes W_O of a layer, [1, Hq, O, U]",
        spellings=("output_projection",),
        axes="1HOU",
        plain=lambda n: weight_patterns.plain_slices(n["D"], n["D"]).swapaxes(2, 3),
    )
    #: b_Q of a layer, [1, Hq, 1, A]; None is 0.
    query_projection_bias: Any = projection(
        says="takes b_Q of a layer, [1, Hq, 1, A]",
        spellings=("query_projection_bias",),
        is_product=False,
        axes="1H1A",
        values=weight_patterns.VECTORS,
        optional=True,
    )
    #: b_K of a layer, [1, Hq, 1, A]; None is 0.
    key_projection_bias: Any = projection(
        says="takes b_K of a layer, [1, Hq, 1, A], or one for all heads",
        spellings=("key_projection_bias",),
        is_product=False,
        axes="1H1A",
        values=weight_patterns.VECTORS,
        optional=True,
        shared=True,
    )
    #: b_V of a layer, [1, Hq, 1, U]; None is 0.
    value_projection_bias: Any = projection(
        says="takes b_V of a layer, [1, Hq, 1, U], or one for all heads",
        spellings=("value_projection_bias",),
        adds_to_values=True,
        axes="1H1U",
        values=weight_patterns.VECTORS,
        optional=True,
        shared=True,
    )
    #: b_O of a layer, [1, 1, 1, O]; None is 0.
    output_projection_bias: Any = projection(
        says="takes b_O of a layer, [1, 1, 1, O]",
        spellings=("output_projection_bias",),
        adds_to_values=True,
        axes="111O",
        values=weight_patterns.VECTORS,
        optional=True,
    )
    #: Feature map phi of linear attention, whose weights are phi(q).phi(k) over their sum; None: weights are a softmax.
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
    #: epsilon, added to the row sum of phi(q).phi(k) in linear attention; None is 0.
    feature_epsilon: float | None = option(
        says="takes epsilon, added to the row sum of phi(q).phi(k) in linear attention",
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
    #: Corner in which the diagonal of ``causal``, ``window`` and positions starts when Sq != Sk: "top_left" or
    #: "bottom_right".
    causal_alignment: str = option(
        off="top_left",
        says="takes causal_alignment; otherwise the alignment is the declared convention",
        kind=CHOICE,
        spellings=("causal_alignment",),
        wanted=f"one of {', '.join(masks.ALIGNMENTS)}",
        accepts=lambda value: value in masks.ALIGNMENTS,
        draws=masks.ALIGNMENTS,
    )


#: Every option by name.
OPTIONS: dict[str, Option] = {each.name: replace(each.metadata["row"], name=each.name) for each in fields(Options)}


def parameters(option: str) -> tuple[Option, ...]:
    """Return the rows of the further parameters of an option."""
    return tuple(row for row in OPTIONS.values() if row.of == option)


def with_parameters(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of options and abilities, each followed by the further parameters that it requires."""
    found = ((name, *(row.name for row in parameters(name) if not row.optional)) for name in names)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))
