"""Option of attention sinks: one number for each query head, which takes part in the row sum and has no value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem import patterns
from attn_spec.problem.options.option import WEIGHT
from attn_spec.problem.options.option_fields import option


@dataclass(frozen=True, kw_only=True, eq=False)
class Sinks:
    """Option that adds to the row sum of a softmax."""

    #: Sinks z of the query heads, [1, Hq, 1, 1]: exp(z) is added to the row sum of every query. None, or -inf for one
    #: head, is no sink. Source: Xiao et al., StreamingLLM (arXiv 2309.17453), section 3.3.
    sinks: Any = option(
        says="takes sinks z, [1, Hq, 1, 1]: exp(z) is added to the sum that weights are divided by",
        kind=WEIGHT,
        spellings=("sinks", "sink", "learnable_sink", "attn_sink", "s_aux"),
        wanted="NaN or +inf; -inf is no sink",
        accepts=lambda value: not (np.isnan(value).any() or (value == np.inf).any()),
        tensor=np.float64,
        axes="1H11",
        adds_to_row_sum=True,
        plain=lambda _: np.zeros((1, 1, 1, 1)),
        usual="normal@1H11",
        draws=patterns.spread(patterns.SINKS, "1H11"),
        patterns=patterns.SINKS,
    )
