"""Ways of computing in which one rounding of an output decides."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.backward import StoredWeights
from attn_spec.emulation.passes import TwoPasses
from attn_spec.emulation.split import NormalizedSplitAttention

from ..adversary.cases import EAGER, MERGES, ONE, STORED, TINY, WHOLE, Way
from ..adversary.problems import NARROW
from .steps import given

OUTPUT_WAYS = (
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
    Way(name="tiny values, one key, normalization", problem=ONE, contract={"softmax": NARROW}),
    Way(
        name="a light key of a large value, by LSE, probabilities",
        problem={"n": 2, "D": 1},
        contract={"probabilities": NARROW, "normalize": "by_lse"},
        steps=TwoPasses,
    ),
    Way(
        name="a light key, flushed, by LSE",
        problem={"n": 2, "D": 1},
        contract={"softmax": NARROW, "float16_subnormals": "flushed", "normalize": "by_lse"},
        steps=TwoPasses,
    ),
)

#: What an attack has beside its way.
OUTPUT_ATTACKS: dict[str, dict[str, Any]] = {
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
    "tiny values, one key, normalization": {
        "problem": given([[1]], [[0.5]], [[1.239776611328125e-06, 6.4849853515625e-06]], scale=1.0)
    },
    "a light key of a large value, by LSE, probabilities": {
        "problem": given([[1]], [[0], [-10.4]], [[0, 0], [1024, 512]], scale=1.0)
    },
    "a light key, flushed, by LSE": {"problem": given([[1]], [[0], [-9.75]], [[0, 0], [1024, 512]], scale=1.0)},
}
