"""What a problem may ask beyond softmax(q k^T / sqrt(D)) v: each option is one field of :class:`Options`, with its row.

Whoever deals with options reads the rows: validation, visible keys, JSON, what kernels declare, preflight, the search,
help. A new option is a new field here, and kernels that take it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from attn_spec.problem import masks, patterns
from attn_spec.problem.option import ADDEND, CHOICE, MASK, PARAMETER, SCORE, TERM, WEIGHT, Option
from attn_spec.problem.option_fields import is_number, is_window, of_pairs, option, positions, score_parameter

#: How ``rotary`` pairs columns: m and m + R/2, or 2m and 2m + 1.
LAYOUTS = ("half", "interleaved")
#: phi of linear attention: elu(x) + 1, max(x, 0), exp(x).
FEATURE_MAPS = ("elu_plus_one", "relu", "exp")
_SIDES = (0, 1, 2, 5, 15, 16, 17, 33, 64, 100, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Scores are ``scale * q.k -> softcap * tanh(s / softcap) -> + bias -> - slope * distance -> mask``; the weights
    that their softmax is are dropped or kept.

    In a recipe tensors are patterns.
    """

    #: Whether keys after the query are hidden.
    causal: bool = option(
        off=False,
        says="hides keys after the query",
        kind=MASK,
        spellings=("causal", "is_causal"),
        wanted="True or False",
        accepts=lambda value: isinstance(value, bool | np.bool_),
        sees=lambda p: masks.causal(p.causal_alignment).dense(p.query_length, p.key_length),
        positional=True,
        relative=True,
        plain=lambda _: True,
        draws=(True,),
    )
    #: (left, right) of the diagonal, both inclusive; None is unbounded.
    window: tuple[int | None, int | None] | None = option(
        says="takes (left, right) around the diagonal, both inclusive",
        kind=MASK,
        spellings=("window", "window_size"),
        wanted="(left, right), each None or >= 0",
        accepts=lambda value: value is None or is_window(value),
        sees=lambda p: masks.window(p.window[0], p.window[1], p.causal_alignment).dense(p.query_length, p.key_length),
        positional=True,
        relative=True,
        plain=lambda _: (2, 2),
        draws=tuple(product(_SIDES, _SIDES)),
    )
    #: bool, True = attend, broadcastable to [B, Hq, Sq, Sk].
    mask: Any = of_pairs(
        says="takes a bool mask, True = attend, any broadcast to [B, Hq, Sq, Sk]",
        kind=MASK,
        spellings=("mask", "attn_mask"),
        sees=lambda p: p.mask,
        values=patterns.MASKS,
    )
    #: Added after scale and softcap, broadcastable to [B, Hq, Sq, Sk]; -inf hides a key.
    bias: Any = option(
        says="takes an additive bias, -inf allowed, any broadcast to [B, Hq, Sq, Sk]",
        kind=ADDEND,
        spellings=("bias", "attn_bias"),
        wanted="NaN or +inf; -inf hides a key",
        accepts=lambda value: not (np.isnan(value).any() or (value == np.inf).any()),
        sees=lambda p: p.bias > -np.inf,
        tensor=np.float64,
        plain=lambda n: np.zeros((1, 1, n["Q"], n["K"])),
        draws=patterns.spread(patterns.BIASES),
        patterns=patterns.BIASES,
    )
    #: m of - m |i - j| (ALiBi), [B, Hq, 1, 1], i the key that the query is aligned with; None is no such term.
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
        draws=patterns.spread(patterns.SLOPES, "BH11"),
        patterns=patterns.SLOPES,
        weight=1,
    )
    #: c of c * tanh(s / c); None is no cap.
    softcap: float | None = option(
        says="takes c of c * tanh(s / c)",
        kind=TERM,
        spellings=("softcap", "logits_soft_cap"),
        wanted="a positive number or None",
        accepts=lambda value: value is None or (is_number(value) and value > 0),
        plain=lambda _: 30.0,
        draws=(50.0, 30.0, 5.0, 1.0, 7.5),
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
        draws=(1.0, 0.5, 0.125, 0.3, 2.0, 2.0**-10),
    )
    #: W of the score q^T W k, [B, Hq, D, D]; None: the score is another.
    score_weight: Any = score_parameter(
        says="scores are bilinear, q^T W k: takes W, [B, Hq, D, D]",
        spelling="score_weight",
        axes="BHDD",
        plain=lambda n: np.eye(n["D"])[None, None],
        values=patterns.WEIGHTS,
    )
    #: gamma of the score gamma cos(q, k), [B, Hq, 1, 1]; None: the score is another.
    score_gamma: Any = score_parameter(
        says="scores are gamma cos(q, k), times the scale if one is given: takes gamma, [B, Hq, 1, 1]",
        spelling="score_gamma",
        axes="BH11",
        plain=lambda _: np.ones((1, 1, 1, 1)),
        values=patterns.GAMMAS,
        divides=False,
    )
    #: w of the score w^T tanh(W1 k + W2 q + b), [B, Hq, 1, A]; None: the score is another.
    score_vector: Any = score_parameter(
        says="scores are additive, w^T tanh(W1 k + W2 q + b), times the scale if one is given: takes w, [B, Hq, 1, A]",
        spelling="score_vector",
        axes="BH1A",
        plain=lambda n: np.ones((1, 1, 1, n["A"])),
        values=patterns.VECTORS,
        divides=False,
        is_product=False,
    )
    #: W1 of that score, [B, Hq, A, D].
    score_key_weight: Any = score_parameter(
        says="takes W1 of an additive score, [B, Hq, A, D]",
        spelling="score_key_weight",
        axes="BHAD",
        plain=lambda n: np.eye(n["A"], n["D"])[None, None],
        values=patterns.LAYERS,
        kind=PARAMETER,
        of="score_vector",
    )
    #: W2 of that score, [B, Hq, A, D].
    score_query_weight: Any = score_parameter(
        says="takes W2 of an additive score, [B, Hq, A, D]",
        spelling="score_query_weight",
        axes="BHAD",
        plain=lambda n: np.eye(n["A"], n["D"])[None, None],
        values=patterns.LAYERS,
        kind=PARAMETER,
        of="score_vector",
    )
    #: b of that score, [B, Hq, 1, A]; None is 0.
    score_bias: Any = score_parameter(
        says="takes b of an additive score, [B, Hq, 1, A]",
        spelling="score_bias",
        axes="BH1A",
        plain=lambda n: np.ones((1, 1, 1, n["A"])),
        values=patterns.VECTORS,
        kind=PARAMETER,
        of="score_vector",
        optional=True,
    )
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
        draws=LAYOUTS,
    )
    #: base of the angles position * base^(-2m / R); None is 10000.
    rotary_base: float | None = option(
        says="takes the base of the angles of rotary",
        kind=PARAMETER,
        of="rotary",
        optional=True,
        spellings=("rotary_base",),
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
