"""Options of linear attention: the feature map and epsilon."""

from __future__ import annotations

from dataclasses import dataclass

from attn_spec.problem.options.option import PARAMETER, SCORE
from attn_spec.problem.options.option_fields import is_number, option

#: Feature maps phi of linear attention: elu(x) + 1, max(x, 0), exp(x).
FEATURE_MAPS = ("elu_plus_one", "relu", "exp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """Options of linear attention."""

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
