"""Options that replace the dot product by another score: bilinear, cosine, additive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem import patterns, weight_patterns
from attn_spec.problem.options.option import PARAMETER
from attn_spec.problem.options.option_fields import score_parameter


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Parameters of scores other than q.k."""

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
        is_linear=False,
        values=patterns.GAMMAS,
        divides=False,
    )
    #: w of the additive score w^T tanh(W1 k + W2 q + b), [B, Hq, 1, A]; None: the problem uses another score.
    score_vector: Any = score_parameter(
        says="scores are additive, w^T tanh(W1 k + W2 q + b), times the scale if one is given: takes w, [B, Hq, 1, A]",
        spelling="score_vector",
        axes="BH1A",
        plain=lambda n: np.ones((1, 1, 1, n["A"])),
        is_linear=False,
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
