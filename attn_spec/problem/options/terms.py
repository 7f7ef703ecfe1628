"""Options that are terms of a score: bias, ALiBi, softcap and scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem import patterns
from attn_spec.problem.options.option import ADDEND, TERM
from attn_spec.problem.options.option_fields import is_number, option


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """Options that scale, bound or shift scores."""

    #: Bias added after scale and softcap, broadcastable to [B, Hq, Sq, Sk]; -inf masks a key.
    bias: Any = option(
        says="takes an additive bias, -inf allowed, any broadcast to [B, Hq, Sq, Sk]",
        kind=ADDEND,
        spellings=("bias", "attn_bias"),
        wanted="NaN or +inf; -inf masks a key",
        accepts=lambda value: not (np.isnan(value).any() or (value == np.inf).any()),
        sees=lambda p: p.bias > -np.inf,
        tensor=np.float64,
        plain=lambda n: np.zeros((1, 1, n["Q"], n["K"])),
        usual="normal@1H1K",
        draws=patterns.spread(patterns.BIASES),
        patterns=patterns.BIASES,
    )
    #: Slopes m of the ALiBi term - m |i - j|, [B, Hq, 1, 1]; i is the key that the query is aligned with. None: no such
    #: term.
    alibi_slopes: Any = option(
        says="takes ALiBi slopes m, [B, Hq, 1, 1]: scores lose m times the distance of the key",
        kind=ADDEND,
        spellings=("alibi_slopes",),
        wanted="a negative number, NaN or an infinity",
        accepts=lambda value: bool(np.isfinite(value).all() and (value >= 0).all()),
        tensor=np.float64,
        axes="BH11",
        positional=True,
        relative=True,
        aligned=True,
        plain=lambda _: np.ones((1, 1, 1, 1)),
        usual="geometric@1H11",
        draws=patterns.spread(patterns.SLOPES, "BH11"),
        patterns=patterns.SLOPES,
        weight=1,
    )
    #: Softcap c of c * tanh(s / c); None is no softcap.
    softcap: float | None = option(
        says="takes c of c * tanh(s / c)",
        kind=TERM,
        spellings=("softcap", "logits_soft_cap"),
        spelled_off=(0.0,),
        wanted="a positive number or None",
        accepts=lambda value: value is None or (is_number(value) and value > 0),
        plain=lambda _: 30.0,
        usual=50.0,
        draws=(50.0, 30.0, 5.0, 1.0, 7.5, 1000.0, 2.0**-4),
        weight=1,
    )
    #: Factor on q.k; None is the real number 1/sqrt(D), not its rounding.
    scale: float | None = option(
        says="takes a scale; without it the kernel always uses 1/sqrt(D)",
        kind=TERM,
        spellings=("scale", "softmax_scale", "sm_scale", "scaling"),
        wanted="a finite number or None",
        accepts=lambda value: value is None or is_number(value),
        plain=lambda _: 0.125,
        draws=(1.0, 0.5, 0.125, 0.3, 2.0, 2.0**-10, -0.5, 0.0),
    )
