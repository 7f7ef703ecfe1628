"""Ways of computing in which one rounding of an output decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.backward import StoredWeights
from attn_spec.emulation.passes import TwoPasses
from attn_spec.emulation.split import NormalizedSplitAttention

from ..adversary.cases import EAGER, MERGES, ONE, STORED, TINY, WHOLE, Way
from ..adversary.problems import NARROW
from .steps import ManyParts, given

#: Exponentials that are off so far that the largest mean of the values is less than the first order.
_COARSE: dict[str, Any] = {"exp_error": 2.0**49}
#: Scores that are off as far when they are rounded to a narrow format.
_LARGE: dict[str, Any] = {"n": 1, "queries": 16.0, "spread": 16.0, "scale": 1.0}
_BY_LSE: dict[str, Any] = {"normalize": "by_lse", "kv_tile": None}

#: Weights of a fixed reference, the largest of which is far below 1.
_LOW: dict[str, Any] = {"softmax": NARROW, "float16_subnormals": "kept", "reference": "zero", "reference_range": 8.001}
_HALF_UNIT: dict[str, Any] = {"multiplicands": "bfloat16", "row_sum_of": "cast", "reference": "zero"}

#: The mask of dropout of one key, which is kept.
KEPT = np.ones((1, 1, 1, 1), dtype=bool)

OUTPUT_WAYS = (
    Way(name="a low key that dropout keeps", contract=_LOW, order={"dropout_on": "output"}),
    Way(name="low keys in many parts", contract=_LOW | {"reference_range": 6.001, "lse_merges": 1}, steps=ManyParts),
    Way(name="a cast that dropout repeats", contract=_HALF_UNIT | {"exp_error": 2.0**49, "reference_range": 0.31}),
    Way(name="a weight that dropout keeps", problem=ONE | {"dropped": 0.9}),
    Way(
        name="a probability that dropout keeps",
        problem=ONE | {"dropped": 0.9},
        **dict(EAGER, order={"kv_tile": None, "dropout_on": "probabilities"}),
    ),
    Way(name="one of two weights kept", problem={"n": 2, "D": 1, "dropped": 0.9}, **EAGER),
    Way(
        name="a tiny gradient of a value kept",
        problem=ONE | {"dropped": 0.3},
        contract={"float16_subnormals": "kept"},
        order={"dropout_on": "output"},
        cotangent=2.0**-16,
    ),
    Way(name="2 pieces, bfloat16", contract={"multiplicands": "bfloat16", "multiplicand_pieces": 2}),
    Way(name="four queries", problem={"Sq": 4, "n": 3}),
    Way(
        name="tiny values, eager, kept",
        problem=TINY,
        contract=STORED | {"float16_subnormals": "kept"},
        order=WHOLE,
        gradients=StoredWeights,
    ),
    Way(
        name="tiny values, one key, merged, partial",
        problem=ONE,
        contract=MERGES | {"partial_outputs": NARROW},
        steps=NormalizedSplitAttention,
    ),
    Way(
        name="tinier values, one key, merged, partial",
        problem=ONE,
        contract=MERGES | {"partial_outputs": NARROW, "exp_error": 2.0**48},
        steps=NormalizedSplitAttention,
    ),
    Way(
        name="a light key of a large value, by LSE, probabilities",
        problem={"n": 2, "D": 1},
        contract={"probabilities": NARROW, "normalize": "by_lse"},
        steps=TwoPasses,
    ),
    Way(
        name="a larger error of log, by LSE",
        problem={"n": 2, "seed": 1},
        contract={"log_error": 2.0**46, "normalize": "by_lse"},
        steps=TwoPasses,
    ),
    Way(
        name="a light key, flushed, by LSE",
        problem={"n": 2, "D": 1},
        contract={"softmax": NARROW, "float16_subnormals": "flushed", "normalize": "by_lse"},
        steps=TwoPasses,
    ),
    Way(name="coarse exponentials", problem={"seed": 1}, contract=_COARSE | WHOLE, order=WHOLE),
    Way(name="coarse exponentials, V = 1", problem={"n": 3, "queries": 2.0**-5, "value": 1.0}, contract=_COARSE),
    Way(name="coarse exponentials, one key, dropout", problem={"n": 1, "dropped": 0.9}, contract=_COARSE),
    Way(
        name="coarse exponentials, one key, tiny values, flushed",
        problem=TINY | {"n": 1, "queries": 2.0**-5},
        contract=_COARSE | {"float16_subnormals": "flushed"},
    ),
    Way(
        name="coarse exponentials, a low key of tiny value, no reference",
        problem=ONE,
        contract=_COARSE | {"float16_subnormals": "kept", "reference": "zero", "reference_range": 8.25},
    ),
    Way(
        name="a low key of tiny value, no reference",
        problem=ONE,
        contract={"float16_subnormals": "kept", "reference": "zero", "reference_range": 8.25},
    ),
    Way(
        name="coarse exponentials, V = 1, by LSE",
        problem={"n": 3, "queries": 2.0**-5, "value": 1.0},
        contract=_COARSE | _BY_LSE,
        order=WHOLE,
        steps=TwoPasses,
    ),
    Way(
        name="large scores, one key, by LSE",
        problem=_LARGE | {"seed": 2},
        contract=_BY_LSE | {"float16_subnormals": "kept"},
        order=WHOLE,
        steps=TwoPasses,
    ),
    Way(
        name="large scores, softcap, one key, by LSE",
        problem=_LARGE | {"seed": 3, "queries": 8.0, "spread": 8.0, "softcap": 256.0},
        contract=_BY_LSE,
        order=WHOLE,
        steps=TwoPasses,
    ),
    Way(
        name="large stored scores, one key, by LSE",
        problem=_LARGE | {"seed": 2},
        contract=_BY_LSE | {"stored_scores": NARROW, "float16_subnormals": "kept"},
        order=WHOLE,
        steps=TwoPasses,
    ),
    Way(
        name="large stored scores, one key, tiny values, by LSE, flushed",
        problem=_LARGE | {"value": 2.0**-16},
        contract=_BY_LSE | {"stored_scores": NARROW, "float16_subnormals": "flushed"},
        order=WHOLE,
        steps=TwoPasses,
    ),
    Way(
        name="large stored scores, two keys, V = 1, by LSE",
        problem=ONE,
        contract=_BY_LSE | {"stored_scores": NARROW},
        order=WHOLE,
        steps=TwoPasses,
    ),
)

#: Fields of an attack beside its way.
OUTPUT_ATTACKS: dict[str, dict[str, Any]] = {
    "a low key that dropout keeps": {
        "problem": given([[1]], [[-8]], [[2.0**-10, 2.0**-11]], scale=1.0, dropout_p=0.9, dropout_keep=KEPT)
    },
    "low keys in many parts": {
        "problem": given([[1]], [[-6], *[[-9.5]] * 37], [[0, 0], *[[1.3 * 2.0**-10, 1.5 * 2.0**-10]] * 37], scale=1.0)
    },
    "a cast that dropout repeats": {
        "problem": given([[1]], [[-0.3]], [[-0.0172, -0.0234]], scale=1.0, dropout_p=0.9, dropout_keep=KEPT)
    },
    "tiny values, one key, merged, partial": {
        "problem": given(
            [[1]],
            [[0.5], [0.5]],
            [[1.239776611328125e-06, 6.4849853515625e-06], [1.239776611328125e-06, 6.4849853515625e-06]],
            scale=1.0,
        )
    },
    "tinier values, one key, merged, partial": {
        "problem": given([[1]], [[0.5], [0.5]], [[2e-8, 1e-8], [2e-8, 1e-8]], scale=1.0)
    },
    "a light key of a large value, by LSE, probabilities": {
        "problem": given([[1]], [[0], [-10.4]], [[0, 0], [1024, 512]], scale=1.0)
    },
    "coarse exponentials, a low key of tiny value, no reference": {
        "problem": given([[1]], [[-8.0]], [[1.3 * 2.0**-14, 2.0**-14]], scale=1.0)
    },
    "a low key of tiny value, no reference": {"problem": given([[1]], [[-8.0]], [[2.0**-10, 2.0**-11]], scale=1.0)},
    "large stored scores, two keys, V = 1, by LSE": {
        "problem": given([[16.015625]], [[12.3125], [12.3203125]], [[1, 2], [1, 2]], scale=1.0)
    },
    "a light key, flushed, by LSE": {"problem": given([[1]], [[0], [-9.75]], [[0, 0], [1024, 512]], scale=1.0)},
}
