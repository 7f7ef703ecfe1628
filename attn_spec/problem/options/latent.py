"""Option of multi-head latent attention (MLA): the values are the first columns of the keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.problem.options.option import TIE
from attn_spec.problem.options.option_fields import option


@dataclass(frozen=True, kw_only=True, eq=False)
class Latent:
    """Option that ties the values to the keys."""

    #: True: v is the first Dv columns of k, bit for bit, as in the absorbed form of multi-head latent attention. A key
    #: is a compressed vector beside a part that is rotated, and its value is the compressed vector. Source: DeepSeek-V2
    #: (arXiv 2405.04434), section 2.1.2.
    latent: bool = option(
        off=False,
        says="takes values that are the first Dv columns of the keys, as multi-head latent attention has them",
        kind=TIE,
        spellings=("latent",),
        wanted="True, with Dv of at most D, or False",
        accepts=lambda value: isinstance(value, bool | np.bool_),
        fits=lambda value, lengths: not value or lengths["V"] <= lengths["D"],
        ties_values=True,
        plain=lambda _: True,
        draws=(True,),
        weight=1,
    )
