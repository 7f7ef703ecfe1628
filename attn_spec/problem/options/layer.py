"""Options of a layer: the projections of q, k and v, the output projection and their biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attn_spec.problem import weight_patterns
from attn_spec.problem.options.option import SCORE
from attn_spec.problem.options.option_fields import projection


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Projections W_Q, W_K, W_V and W_O of a multi-head layer, and their biases."""

    #: W_Q of a layer, [1, Hq, A, D]; None: the problem is no layer. Scores of a layer are (W_Q q + b_Q).(W_K k + b_K),
    #: its values are W_V v + b_V. Its output is b_O plus the sum over heads of W_O o. Its q, k and v have one head.
    query_projection: Any = projection(
        says="is a layer, which projects q, k and v of one head for each of its heads: takes W_Q, [1, Hq, A, D]",
        spellings=("query_projection",),
        axes="1HAD",
        kind=SCORE,
        is_linear=False,
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
