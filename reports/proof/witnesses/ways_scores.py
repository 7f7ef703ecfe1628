"""Ways of computing in which one rounding of a score, or of any product, decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.backward import StoredWeights
from attn_spec.emulation.passes import TwoPasses

from ..adversary.cases import ALIBI, LIGHT, ONE, OPERANDS, POSITIONS, STORED, TINY, TWO, WHOLE, Way
from ..adversary.problems import NARROW, rotary
from .steps import Pieces, PowersUnderflow, given

_UNIT: dict[str, Any] = {"multiplicands": NARROW, "matrix_rounding": "toward_zero"}
#: Scores that are products of slope and distance, with a scale that rounds nothing.
_ALONE: dict[str, Any] = ALIBI | {"queries": 0.0, "value": 1.0, "scale": 0.25}
_INNER: dict[str, Any] = {"inner_accumulation": NARROW, "inner_terms": 2}

SCORE_WAYS = (
    Way(name="cosine of a vector with itself", problem=ONE),
    Way(name="cosine of a right angle", problem=ONE),
    Way(
        name="cosine of many columns, divided first",
        problem=ONE,
        contract={"score_accumulation": "float32", "stored_scores": "float32", "subnormals": "flushed"},
        order={"divides_first": True},
    ),
    Way(name="tiny values, inner, kept", problem=TINY | {"D": 5}, contract=_INNER | {"float16_subnormals": "kept"}),
    Way(
        name="2 pieces, bfloat16, by LSE",
        contract={"multiplicands": "bfloat16", "multiplicand_pieces": 2, "normalize": "by_lse"},
        steps=TwoPasses,
    ),
    Way(
        name="error of tanh, eager",
        problem={"softcap": 2.0},
        contract=STORED | {"tanh_error": 2.0**42},
        order=WHOLE,
        gradients=StoredWeights,
    ),
    Way(name="2 keys, eager", problem=TWO, contract=STORED, order=WHOLE, gradients=StoredWeights),
    Way(
        name="tiny scaled query stored scores query 0.0004883",
        problem=ONE | {"queries": 0.125, "spread": 2.0**9, "scale": 2.0**-11},
        contract={"stored_scores": NARROW, "scale_on": "operands"},
        order={"scaling": "query"},
    ),
    Way(
        name="tiny cotangents, toward zero",
        contract={"rounding": "toward_zero", "float16_subnormals": "kept"},
        cotangent=2.0**-15,
    ),
    Way(
        name="tiny scaled query multiplicands query 0.0004883",
        problem=ONE | {"queries": 0.125, "spread": 2.0**9, "scale": 2.0**-11},
        contract={"multiplicands": NARROW, "scale_on": "operands"},
        order={"scaling": "query"},
    ),
    Way(name="light keys, tf32 to float16", problem=LIGHT, contract={"softmax": "tf32", "probabilities": NARROW}),
    Way(
        name="tiny values, flushed on entry",
        problem=TINY | {"dtype": NARROW},
        contract={"multiplicands": NARROW, "float16_subnormals": "flushed_on_entry"},
    ),
    Way(name="error of log, float32", contract={"log_error": 2.0**12, "score_accumulation": "float32"}),
    Way(
        name="a light key of a large value, probabilities", problem={"n": 2, "D": 1}, contract={"probabilities": NARROW}
    ),
    Way(name="2 keys, cast row sum", problem=TWO, contract={"kv_tile": None, "row_sum_of": "cast"}, order=WHOLE),
    Way(
        name="tiny queries, softcap folded, kept",
        problem={"queries": 2.0**-8, "spread": 1.0, "scale": 0.25, "softcap": 64.0},
        contract={"float16_subnormals": "kept", "scale_on": "operands"},
        order={"scaling": "folded"},
    ),
    Way(
        name="tiny scores, power of 2",
        problem=ONE | {"scale": 0.25, "queries": 2.0**-9, "spread": 2.0**-6},
        contract={"stored_scores": NARROW},
    ),
    Way(
        name="tiny bias, bias first, kept",
        problem={"bias": True, "biases": 2.0**-14, "queries": 0.0, "value": 1.0, "scale": 2.5},
        contract={"float16_subnormals": "kept"},
        order={"bias_first": True},
    ),
    Way(
        name="bfloat16 that flushes",
        problem={"n": 2, "D": 1},
        contract={"multiplicands": "bfloat16", "subnormals": "flushed"},
    ),
    Way(
        name="pieces one by one, output",
        problem=ONE,
        contract={"multiplicand_pieces": 2, "output_accumulation": NARROW},
    ),
    Way(name="depth 3", problem={"n": 3}, contract={"summation_depth": 3}),
    Way(name="ALiBi alone, a light key", problem=_ALONE | {"n": 4, "Sq": 4, "slopes": 7.3, "value_spread": 1.0}),
    Way(
        name="ALiBi alone, tiny slopes",
        problem=_ALONE | {"n": 9, "Sq": 9, "slopes": 1.5 * 2.0**-24},
        contract={"float16_subnormals": "kept"},
    ),
    Way(
        name="ALiBi alone, from the first key",
        problem=_ALONE,
        contract=POSITIONS,
        order={"alibi_from": "first"},
    ),
    Way(
        name="ALiBi, tiny slopes from the first key",
        problem=_ALONE | {"slopes": 2.0**-13 / 3, "scale": 0.3},
        contract=POSITIONS | {"float16_subnormals": "kept"},
        order={"alibi_from": "first"},
    ),
    Way(
        name="unit 8 -3, D 4",
        problem={"n": 4, "D": 4, "Sq": 4},
        contract=_UNIT | {"matrix_block": 8, "matrix_extra_bits": -3, "kv_tile": None},
        order=WHOLE,
    ),
    Way(
        name="sums of 2 on a unit of 1, 0 bits",
        problem={"n": 1, "D": 2, "scale": 1.0},
        contract=_UNIT | {"matrix_block": 1, "matrix_extra_bits": 0, "score_accumulation": "bfloat16"},
    ),
    Way(
        name="sums of 2 on a unit of 4, 0 bits",
        problem={"n": 1, "D": 2, "scale": 1.0},
        contract=_UNIT | {"matrix_block": 4, "matrix_extra_bits": 0, "score_accumulation": "bfloat16"},
    ),
    Way(
        name="sums of 2 on a unit of 4, 2 bits",
        problem={"n": 1, "D": 2, "scale": 1.0},
        contract=_UNIT | {"matrix_block": 4, "matrix_extra_bits": 2, "score_accumulation": "bfloat16"},
    ),
    Way(
        name="products of integers",
        problem=ONE | {"scale": 2.0**-12, "queries": 2.0**12, "spread": 2.0**12},
        contract={"products": "tf32"},
    ),
    Way(
        name="inner accumulator, tiny scores",
        problem=ONE | {"scale": 1.0, "queries": 2.0**-9, "spread": 2.0**-6},
        contract=_INNER,
    ),
    Way(
        name="ALiBi in bfloat16, a far key",
        problem=ONE,
        contract=WHOLE | {"alibi_terms": "bfloat16"},
        order=WHOLE,
    ),
    Way(
        name="rotary, tiny queries, flushed",
        made_by=rotary,
        problem={"n": 1, "seed": 2, "queries": 2.0**-16, "spread": 2.0**8, "scale": 2.0},
        contract={"float16_subnormals": "flushed"},
    ),
    Way(name="scale 2.0, operands", problem={"scale": 2.0}, contract=OPERANDS),
    Way(name="a slope nearby, float64 sums", problem={"n": 1, "D": 2}, contract={"multiplicands": "bfloat16"}),
    Way(
        name="softcap folded, tiny stored scores",
        problem=ONE | {"queries": 2.0**-8, "scale": 0.3, "softcap": 900.0},
        contract={"stored_scores": NARROW, "scale_on": "operands"},
        order={"scaling": "folded"},
    ),
    Way(name="a score beyond the softcap", problem=ONE, contract={"score_accumulation": NARROW}),
    Way(
        name="tiny bias first, large scale score accumulation",
        problem=ONE | {"scale": 48.0, "bias": True, "biases": 2.0**-12, "queries": 0.0},
        contract={"score_accumulation": NARROW},
        order={"bias_first": True},
    ),
)

#: Fields of an attack beside its way.
SCORE_ATTACKS: dict[str, dict[str, Any]] = {
    "tiny scaled query stored scores query 0.0004883": {"above": (PowersUnderflow,)},
    "tiny scaled query multiplicands query 0.0004883": {"above": (PowersUnderflow,)},
    "a light key of a large value, probabilities": {
        "problem": given([[1]], [[0], [-10.4]], [[0, 0], [1024, 512]], scale=1.0)
    },
    "tiny scores, power of 2": {"above": (PowersUnderflow,)},
    "bfloat16 that flushes": {
        "problem": given([[0]], [[1], [1]], [[2.0**-128, 8.816207631167156e-39], [2.0**-129, 2.0**-127]], scale=1.0)
    },
    "pieces one by one, output": {"above": (Pieces,)},
    "a slope nearby, float64 sums": {
        "problem": given([[129.4, 129.4]], [[1.003, -0.9782]], [[1, 2]], scale=1.0, softcap=1.0)
    },
    "ALiBi in bfloat16, a far key": {
        "problem": given(
            [[1]], [*[[-600]] * 257, [0]], [[1, 2]] * 258, scale=1.0, alibi_slopes=np.full((1, 1, 1, 1), 0.011)
        )
    },
    "cosine of a vector with itself": {
        "problem": given([[1.3, 1.7]], [[1.3, 1.7]], [[1, 2]], scale=1.0, score_gamma=np.full((1, 1, 1, 1), 1.1))
    },
    "cosine of a right angle": {
        "problem": given([[1.3, 1.7]], [[1.7, -1.3]], [[1, 2]], scale=1.0, score_gamma=np.full((1, 1, 1, 1), 1.1))
    },
    "cosine of many columns, divided first": {
        "problem": given(
            [[1] * 256],
            [[1] * 256, [-1] * 256],
            [[0.8 * 2.0**-112] * 2, [-0.8 * 2.0**-112] * 2],
            scale=1.0,
            score_gamma=np.full((1, 1, 1, 1), 1.0),
        )
    },
    "a score beyond the softcap": {"problem": given([[1.5]], [[3]], [[1, 2]], scale=1.0, softcap=3.0)},
}
