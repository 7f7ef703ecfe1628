"""Ways of computing in which one rounding of a gradient decides."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.backward import StoredWeights

from ..adversary.cases import STORED, WHOLE, Way
from ..adversary.problems import NARROW
from .steps import given, many_light

_THREE: dict[str, Any] = {"n": 3, "queries": 2.0**-5, "value": 1.0}
_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}


def _late(name: str, order: dict[str, Any] | None = None, **fields: Any) -> Way:
    """1 / (1 - p), of a large p, multiplies finished gradients."""
    problem = {"dropped": 0.9, "Sq": 2, **fields.pop("problem", {})}
    return Way(
        name=f"late dropout, {name}", problem=problem, order={"dropout_on": "gradients", **(order or {})}, **fields
    )


GRADIENT_WAYS = (
    Way(
        name="tiny cotangents, scaled dS, kept",
        problem={"scale": 0.01},
        contract={"float16_subnormals": "kept"},
        order={"gradient_scaling": "dS"},
        cotangent=2.0**-12,
    ),
    Way(
        name="large cotangents, scaled slope, tiny scale, kept",
        problem={"scale": 0.001, "softcap": 300.0},
        contract={"float16_subnormals": "kept"},
        order={"gradient_scaling": "slope"},
        cotangent=16.0,
    ),
    Way(
        name="many light keys, probabilities",
        problem={"n": 2, "D": 1},
        contract={"probabilities": NARROW},
        order=WHOLE,
    ),
    Way(
        name="tiny cotangents, grouped, bias, kept",
        problem={"Sq": 2, "Hq": 4, "n": 3, "bias": True},
        contract={"float16_subnormals": "kept"},
        cotangent=2.0**-15,
    ),
    Way(
        name="large bias, base 2",
        problem={"bias": True, "biases": 16.0, "queries": 2.0**-4},
        contract={"exponent": "base2"},
    ),
    Way(
        name="tiny bias, score accumulation and stored scores, two keys",
        problem={"n": 2, "D": 1, "scale": 1.0, "bias": True, "biases": 2.0**-15, "queries": 0.0},
        contract={"score_accumulation": NARROW, "stored_scores": NARROW},
    ),
    Way(
        name="probabilities cast twice",
        problem={"n": 2},
        contract={"probabilities": NARROW, "multiplicands": "bfloat16"},
    ),
    Way(name="3 keys, delta of P", problem=_THREE, contract={"kv_tile": None, "delta": "probabilities"}, order=WHOLE),
    Way(
        name="a very light key of a large value, eager",
        problem={"n": 2, "D": 1},
        contract=STORED | {"softmax": NARROW},
        order=WHOLE,
        gradients=StoredWeights,
    ),
    Way(
        name="tiny cotangents, large scale, kept",
        problem={"scale": 16.0, "queries": 0.25},
        contract={"float16_subnormals": "kept"},
        cotangent=2.0**-17,
    ),
    Way(name="grouped heads, bias", problem={"Sq": 2, "Hq": 4, "n": 3, "bias": True}),
    _late("one key", problem={"n": 1}),
    _late("one key, dL alone", problem={"n": 1, "bias": True}, cotangent=0.0, lse_cotangent=1.0),
    _late("dL alone, delta of P", contract={"delta": "probabilities"}, cotangent=0.0, lse_cotangent=1.0),
    _late("equal scores", problem={"n": 3, "D": 1, "queries": 0.0}),
    _late("one key, tiny cotangents, kept", problem={"n": 1}, contract=_KEPT, cotangent=2.0**-17),
    _late(
        "one key, tiny cotangents, flushed",
        problem={"n": 1},
        contract={"float16_subnormals": "flushed"},
        cotangent=2.0**-17,
    ),
    _late(
        "tiny cotangents, large scale, kept",
        problem={"scale": 16.0, "queries": 0.25},
        contract=_KEPT,
        cotangent=2.0**-17,
    ),
    _late(
        "small cotangents, large scale, kept",
        problem={"scale": 16.0, "queries": 0.25},
        contract=_KEPT,
        cotangent=2.0**-15,
    ),
    _late(
        "tiny cotangents, scaled dS, kept",
        {"gradient_scaling": "dS"},
        problem={"scale": 0.01},
        contract=_KEPT,
        cotangent=2.0**-13,
    ),
)

#: What an attack has beside its way.
GRADIENT_ATTACKS: dict[str, dict[str, Any]] = {
    "many light keys, probabilities": {"problem": many_light(-10.4, 0.01)},
    "a very light key of a large value, eager": {
        "problem": given([[1]], [[0], [-14]], [[0, 0], [1024, 512]], scale=1.0)
    },
}
