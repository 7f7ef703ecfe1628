"""Option of a merge of attention states: each key is a state, whose score is its log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.problem.options.option import TIE
from attn_spec.problem.options.option_fields import option


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """Option that leaves no score but the bias."""

    #: True: q and k are 0, [B, H, .., 1], so that scores are the ``bias`` alone. A key is the state (O, L) of attention
    #: over some keys: its value is the output O, its bias the log-sum-exp L, and a masked key an empty state. Softmax
    #: over states then merges them. Source: FlashInfer (arXiv 2501.01005), section 2.2.
    states: bool = option(
        off=False,
        says="takes attention states for keys: a state's score is its log-sum-exp, a bias, and q and k are 0",
        kind=TIE,
        spellings=("states",),
        wanted="True, with D of 1, or False",
        accepts=lambda value: isinstance(value, bool | np.bool_),
        fits=lambda value, lengths: not value or lengths["D"] == 1,
        lacks_products=True,
        plain=lambda _: True,
        draws=(True,),
        weight=0,
    )
