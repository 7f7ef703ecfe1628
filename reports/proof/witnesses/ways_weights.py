"""Ways of computing in which one rounding of a weight or a row sum decides."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.backward import StoredWeights
from attn_spec.emulation.passes import TwoPasses
from attn_spec.emulation.split import NormalizedSplitAttention, RingAttention

from ..adversary.cases import EAGER, LIGHT, MERGES, STORED, TWO, WHOLE, Way
from ..adversary.problems import NARROW
from .steps import given, many_light

WEIGHT_WAYS = (
    Way(
        name="4 rising scores, normalized, softmax",
        problem={"n": 4, "D": 1, "queries": 2.0**-5, "seed": 85, "value": 1.0},
        contract={"softmax": NARROW, "normalize": "before_product"},
        steps=TwoPasses,
    ),
    Way(
        name="a low maximum, no reference",
        problem={"n": 2, "D": 1},
        contract={"softmax": NARROW, "reference": "zero", "reference_range": 8.25},
    ),
    Way(
        name="one key, normalized, no maximum",
        problem={"n": 1},
        contract={"normalize": "before_product", "reference": "zero", "reference_range": 8.0},
        steps=TwoPasses,
    ),
    Way(
        name="ring by difference, an answer near 0",
        problem=LIGHT | {"n": 7, "seed": 5105, "scale": 0.3},
        contract=MERGES | {"merging": "difference"},
        steps=RingAttention,
    ),
    Way(name="error of log, by LSE", contract={"log_error": 2.0**42, "normalize": "by_lse"}, steps=TwoPasses),
    Way(
        name="large scores, base 2, folded",
        problem={"queries": 8.0, "spread": 4.0},
        contract={"exponent": "base2"},
        order={"exponent_folded": True},
    ),
    Way(
        name="2 large scores, scale 1, folded",
        problem={"queries": 8.0, "spread": 4.0, "n": 2, "D": 1, "scale": 1.0, "seed": 2},
        contract={"exponent": "base2"},
        order={"exponent_folded": True},
    ),
    Way(
        name="large scores, base 2",
        problem={"queries": 8.0, "spread": 4.0, "n": 4, "seed": 3},
        contract={"exponent": "base2"},
    ),
    Way(name="scores of 0, base 2", problem={"queries": 0.0, "n": 4}, contract={"exponent": "base2"}),
    Way(
        name="many light keys, cast row sum, softmax",
        problem={"n": 2, "D": 1},
        contract={"softmax": NARROW, "row_sum_of": "cast", "kv_tile": None},
        order=WHOLE,
    ),
    Way(
        name="light keys, tiny cotangents, kept",
        problem=LIGHT,
        contract={"float16_subnormals": "kept"},
        cotangent=2.0**-12,
    ),
    Way(
        name="many keys that flush, cast row sum",
        problem={"n": 2, "D": 1},
        contract={"probabilities": NARROW, "row_sum_of": "cast", "float16_subnormals": "flushed", "kv_tile": None},
        order=WHOLE,
    ),
    Way(name="error of exp, 2 keys", problem=TWO, contract={"exp_error": 2.0**42, "kv_tile": None}, order=WHOLE),
    Way(name="error of exp, eager", contract=STORED | {"exp_error": 2.0**42}, order=WHOLE, gradients=StoredWeights),
    Way(name="2 keys, base 2", problem=TWO, contract={"kv_tile": None, "exponent": "base2"}, order=WHOLE),
    Way(
        name="error of log, merged",
        problem={"n": 6},
        contract=MERGES | {"log_error": 2.0**42},
        steps=NormalizedSplitAttention,
    ),
    Way(name="two large scores, eager", problem={"n": 2, "D": 1}, **EAGER),
    Way(
        name="coarse exponentials, three keys, delta of P",
        problem={"n": 3},
        contract=WHOLE | {"delta": "probabilities", "exp_error": 2.0**49},
        order=WHOLE,
    ),
    Way(
        name="tiny scores, one key, kept",
        problem={"queries": 2.0**-9, "spread": 2.0**-6, "n": 1},
        contract={"float16_subnormals": "kept"},
    ),
    Way(
        name="a row sum of weights that the cast flushes",
        contract=dict.fromkeys(("softmax", "probabilities", "multiplicands"), NARROW)
        | {"float16_subnormals": "flushed_on_entry", "row_sum_of": "cast"}
        | WHOLE,
        order=WHOLE,
    ),
    Way(
        name="a row sum of weights of two pieces",
        contract=dict.fromkeys(("multiplicands", "row_sum"), "bfloat16")
        | {"multiplicand_pieces": 2, "row_sum_of": "cast", "reference": "zero", "reference_range": 1.31},
    ),
    Way(
        name="a score that may be far lower, no reference",
        contract=dict.fromkeys(("score_accumulation", "stored_scores"), "bfloat16")
        | {"softmax": NARROW, "float16_subnormals": "kept", "reference": "zero", "reference_range": 3.01},
    ),
)

#: Fields of an attack beside its way.
WEIGHT_ATTACKS: dict[str, dict[str, Any]] = {
    "two large scores, eager": {"problem": given([[16.015625]], [[12.3125], [12.125]], [[1, 2], [-1, 0.5]], scale=1.0)},
    "a low maximum, no reference": {"problem": given([[1]], [[-8.125], [-15.5]], [[0, 0], [1024, 512]], scale=1.0)},
    "many light keys, cast row sum, softmax": {"problem": many_light(-10.4, 0.01)},
    "many keys that flush, cast row sum": {"problem": many_light(-9.75, value=1.0)},
    "a row sum of weights that the cast flushes": {
        "problem": given([[1]], [[0], *[[-9.75]] * 200], [[0, 1], *[[1, 0.5]] * 200], scale=1.0)
    },
    "a row sum of weights of two pieces": {"problem": given([[1]], [[-1.3]], [[1, 2]], scale=1.0)},
    "a score that may be far lower, no reference": {
        "problem": given([[1] * 10], [[80, *[-0.375] * 8, -80]], [[1.3 * 2.0**-10, 2.0**-10]], scale=1.0)
    },
}
