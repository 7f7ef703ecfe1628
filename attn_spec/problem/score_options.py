"""First half of the options of a problem: masks, terms of scores, and scores other than q.k."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attn_spec.problem import masks, patterns, weight_patterns
from attn_spec.problem.option import ADDEND, MASK, PARAMETER, TERM
from attn_spec.problem.option_fields import is_number, is_window, of_pairs, option, score_parameter

_SIDES = (0, 1, 2, 5, 15, 16, 17, 33, 64, 100, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreOptions:
    """Options that mask keys, terms of scores, and parameters of scores other than q.k."""

    #: True masks the keys after the query.
    causal: bool = option(
        off=False,
        says="masks keys after the query",
        kind=MASK,
        spellings=("causal", "is_causal"),
        wanted="True or False",
        accepts=lambda value: isinstance(value, bool | np.bool_),
        sees=lambda p: masks.band(p.distances, None, 0),
        positional=True,
        relative=True,
        plain=lambda _: True,
        usual=True,
        draws=(True,),
    )
    #: Window (left, right) around the diagonal, both inclusive; None is unbounded.
    window: tuple[int | None, int | None] | None = option(
        says="takes (left, right) around the diagonal, both inclusive",
        kind=MASK,
        spellings=("window", "window_size"),
        spelled_off=((None, None), (-1, -1)),
        wanted="(left, right), each None or >= 0",
        accepts=lambda value: value is None or is_window(value),
        sees=lambda p: masks.band(p.distances, *p.window),
        positional=True,
        relative=True,
        plain=lambda _: (2, 2),
        usual=(1023, 0),
        draws=tuple(product(_SIDES, _SIDES)),
    )
    #: Mask: bool, True = attend, broadcastable to [B, Hq, Sq, Sk].
    mask: Any = of_pairs(
        says="takes a bool mask, True = attend, any broadcast to [B, Hq, Sq, Sk]",
        kind=MASK,
        spellings=("mask", "attn_mask"),
        sees=lambda p: p.mask,
        values=patterns.MASKS,
        usual="padding@B11K",
    )
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
    #: W of the bilinear score q^T W k, [B, Hq, D, D]; None: the problem uses another score.
    score_weight: Any = score_parameter(
        says="scores are bilinear, q^T W k: takes W, [B, Hq, D, D]",
        spelling="score_weight",
        axes="BHDD",
        plain=lambda n: np.eye(n["D"])[None, None],
        values=weight_patterns.WEIGHTS,
    )
    #: gamma of the cosine score gamma cos(q, k), [B, Hq, 1, 1]; None: the problem uses another score.
    score_gamma: Any = score_parameter(
        says="scores are gamma cos(q, k), times the scale if one is given: takes gamma, [B, Hq, 1, 1]",
        spelling="score_gamma",
        axes="BH11",
        plain=lambda _: np.ones((1, 1, 1, 1)),
        values=patterns.GAMMAS,
        divides=False,
    )
    #: w of the additive score w^T tanh(W1 k + W2 q + b), [B, Hq, 1, A]; None: the problem uses another score.
    score_vector: Any = score_parameter(
        says="scores are additive, w^T tanh(W1 k + W2 q + b), times the scale if one is given: takes w, [B, Hq, 1, A]",
        spelling="score_vector",
        axes="BH1A",
        plain=lambda n: np.ones((1, 1, 1, n["A"])),
        values=weight_patterns.VECTORS,
        divides=False,
        is_product=False,
    )
    #: W1 of the additive score w^T tanh(W1 k + W2 q + b), [B, Hq, A, D].
    score_key_weight: Any = score_parameter(
        says="takes W1 of an additive score, [B, Hq, A, D]",
        spelling="score_key_weight",
        axes="BHAD",
        plain=lambda n: np.eye(n["A"], n["D"])[None, None],
        values=weight_patterns.LAYERS,
        kind=PARAMETER,
        of="score_vector",
    )
    #: W2 of the additive score w^T tanh(W1 k + W2 q + b), [B, Hq, A, D].
    score_query_weight: Any = score_parameter(
        says="takes W2 of an additive score, [B, Hq, A, D]",
        spelling="score_query_weight",
        axes="BHAD",
        plain=lambda n: np.eye(n["A"], n["D"])[None, None],
        values=weight_patterns.LAYERS,
        kind=PARAMETER,
        of="score_vector",
    )
    #: b of the additive score w^T tanh(W1 k + W2 q + b), [B, Hq, 1, A]; None is 0.
    score_bias: Any = score_parameter(
        says="takes b of an additive score, [B, Hq, 1, A]",
        spelling="score_bias",
        axes="BH1A",
        plain=lambda n: np.ones((1, 1, 1, n["A"])),
        values=weight_patterns.VECTORS,
        kind=PARAMETER,
        of="score_vector",
        optional=True,
    )
