"""Ways of computing in which one rounding of a gradient decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_spec.emulation.backward import DifferentiatedProduct, StoredWeights, TiledGradients
from attn_spec.problem.problem import Problem

from ..adversary.cases import STORED, WHOLE, Way
from ..adversary.problems import NARROW
from .steps import given, many_light

_THREE: dict[str, Any] = {"n": 3, "queries": 2.0**-5, "value": 1.0}
_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}
_FLUSHED: dict[str, Any] = {"float16_subnormals": "flushed"}
_NO_MAXIMUM: dict[str, Any] = {"reference": "zero", "reference_range": 8.0}


def _late(name: str, order: dict[str, Any] | None = None, **fields: Any) -> Way:
    """Return a way where 1 / (1 - p), of a large p, multiplies finished gradients."""
    problem = {"dropped": 0.9, "Sq": 2, **fields.pop("problem", {})}
    return Way(
        name=f"late dropout, {name}", problem=problem, order={"dropout_on": "gradients", **(order or {})}, **fields
    )


def _differentiated(name: str, contract: dict[str, Any] | None = None, *, own: bool = True, **fields: Any) -> Way:
    """Return a way that differentiates (p v) / l as written; ``own``: dP is float32, as another stage is narrow."""
    kept = {"backward_weights": "stored", "kv_tile": None} | ({"weight_gradients": "float32"} if own else {})
    fields = {"order": WHOLE, "gradients": DifferentiatedProduct} | fields
    kind = f"differentiated product{' in float32' if own else ''}"
    return Way(name=f"{kind}, {name}", contract=kept | (contract or {}), **fields)


def _uncertain(scores: str, what: str = "", contract: dict[str, Any] | None = None, *, stored: bool = False) -> Way:
    """Return scores that their sums leave uncertain, so that only the sum of all weights is well known."""
    kept = {"kv_tile": None, "score_accumulation": NARROW} | (STORED if stored else {})
    return Way(
        name=f"{scores}{', eager' if stored else ''}{what}",
        contract=kept | (contract or {}),
        order=WHOLE,
        gradients=StoredWeights if stored else TiledGradients,
    )


def _equal(values: Sequence[float], columns: int = 1, **options: Any) -> Problem:
    """Make keys of these values, whose scores are all but equal; the largest is that of key n // 3."""
    keys = [[1.1 if key == len(values) // 3 else 1.0] for key in range(len(values))]
    return given([[0.01]], keys, [[value] * columns for value in values], scale=1.0, **options)


def _without_first(n: int, p: float) -> dict[str, Any]:
    """Return a dropout that drops the first key alone."""
    return {"dropout_p": p, "dropout_keep": (np.arange(n) > 0)[None, None, None]}


_TINIEST = 2.0**-14
_RANGE: dict[str, Any] = {"contract": _FLUSHED | _NO_MAXIMUM}
_LATE: dict[str, Any] = {"contract": _FLUSHED, "order": WHOLE | {"dropout_on": "gradients"}}
#: Cases that are differentiated as written, in float32 or not: fields of the way, problem, sizes of dO and dL.
_CANCELLING: dict[str, tuple[dict[str, Any], Problem, float, float]] = {
    "values alike": ({}, _equal([1.1] * 80), 1.0, 0.0),
    "values of both signs": ({}, _equal([1.1] * 40 + [-1.1] * 40), 1.0, 0.0),
    "dL alone": ({}, _equal([0.0] * 40), 1.0, 8.0),
    "many columns": ({}, _equal([1.1] * 8, 200), 1.0, 0.0),
    "tf32": ({"contract": {"probabilities": "tf32"}}, _equal([8.0] * 12), 1.0, 0.0),
    "tf32, row sum of the cast": (
        {"contract": {"probabilities": "tf32", "row_sum_of": "cast"}},
        _equal([8.0] * 12),
        1.0,
        0.0,
    ),
    "light keys": (
        {"contract": _FLUSHED},
        given([[1]], [[0.0]] * 40 + [[-9.705]] * 20, [[0.0]] * 40 + [[1024.0]] * 20, scale=1.0),
        1.0,
        0.0,
    ),
    "tiny values": ({"contract": _FLUSHED}, _equal([0.99 * _TINIEST] * 80), 1.0, 0.0),
    "tiny values, dropout": (_LATE, _equal([0.99 * _TINIEST] * 80, **_without_first(80, 0.9)), 1.0, 0.0),
    "subnormal values": ({"contract": _KEPT}, _equal([1.4 * 2.0**-24] * 80), 1.0, 0.0),
    "subnormal values, dropout": (
        _LATE | {"contract": _KEPT},
        _equal([1.4 * 2.0**-24] * 80, **_without_first(80, 0.9)),
        1.0,
        0.0,
    ),
    "small values": ({"contract": _FLUSHED}, _equal([36 * _TINIEST] * 40), 1.0, 0.0),
    "small dP": ({"contract": _FLUSHED}, _equal([0.003] * 12), 0.1, 0.0),
    "subnormal dP, dropout": (
        _LATE | {"contract": _KEPT},
        _equal([2.0**-24] * 80, **_without_first(80, 0.9)),
        39.25,
        0.0,
    ),
    "many small values, dropout": (_LATE, _equal([36 * _TINIEST] * 40, **_without_first(40, 0.9)), 1.0, 0.0),
    "small cotangents": ({"contract": _FLUSHED}, _equal([1.0] * 40 + [-1.0] * 40), 79.2 * _TINIEST, 0.0),
    "small cotangents, dropout": (
        _LATE,
        _equal([1.0] * 40 + [-1.0] * 40, **_without_first(80, 0.9)),
        79.2 * _TINIEST,
        0.0,
    ),
    "cotangents that underflow": ({"contract": _KEPT}, _equal([1.0] * 12), 2.0**-15, 0.0),
    "no maximum": (_RANGE, given([[1]], [[7]] * 5, [[2], [-2], [2], [-2], [2]], scale=1.0), 0.125, 0.0),
}
_OWN = {"small dP": False, "subnormal dP, dropout": False}


def _cancels(name: str) -> tuple[Way, dict[str, Any]]:
    """Return the way of a name, and the attack's other fields, which include the key that attains the maximum."""
    fields, problem, dO, dL = _CANCELLING[name]
    key = int(problem.k[0, 0, :, 0].argmax())
    at = {"dk": [(0, 0, key, 0)], "dv": [(0, 0, key, 0)]}
    beside = {"problem": problem, "cotangent": np.full(problem.output_shape, dO), "places": at}
    if dL:
        beside["lse_cotangent"] = np.full(problem.score_shape[:3], dL)
    return _differentiated(name, own=_OWN.get(name, True), **fields), beside


_OF_O: dict[str, Any] = {"delta": "output"}
_BFLOAT16 = ("output_accumulation", "output")
_UNCERTAIN = (
    _uncertain("two uncertain scores", stored=True),
    _uncertain("two uncertain scores", ", delta of O", _OF_O, stored=True),
    _uncertain("three uncertain scores"),
    _uncertain("three uncertain scores", ", delta of P", {"delta": "probabilities"}),
    _uncertain("three uncertain scores", ", delta of O", _OF_O, stored=True),
    _uncertain("less uncertain scores"),
    _uncertain("less uncertain scores", stored=True),
    *(
        _uncertain(
            "less uncertain scores", f", delta of O, {stage} in bfloat16", _OF_O | {stage: "bfloat16"}, stored=True
        )
        for stage in _BFLOAT16
    ),
)

_CANCELLED = [_cancels(name) for name in _CANCELLING]

GRADIENT_WAYS = (
    *_UNCERTAIN,
    *(way for way, _ in _CANCELLED),
    _differentiated("equal scores", problem={"n": 20, "queries": 0.05, "value": 8.0, "value_spread": 0.1}),
    _differentiated("tiny cotangents", _FLUSHED, problem={"n": 7}, cotangent=2.0**-14),
    _differentiated("large scores", _FLUSHED | _NO_MAXIMUM, own=False, cotangent=2.0**-8),
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

_SCORES: dict[str, list[list[float]]] = {
    "two": [[3000], [3001]],
    "three": [[3000], [3001], [2999]],
    "less": [[300], [301]],
}


def _of_scores(name: str) -> dict[str, Any]:
    keys = _SCORES[name.split(maxsplit=1)[0]]
    problem = given([[1]], keys, [[1, 0.5], [-1, 1], [0.25, -1]][: len(keys)], scale=1.0)
    return {"problem": problem, "cotangent": np.array([[[[1.0, 0.25]]]])}


#: Fields of an attack beside its way.
GRADIENT_ATTACKS: dict[str, dict[str, Any]] = {
    **{way.name: _of_scores(way.name) for way in _UNCERTAIN},
    **{way.name: beside for way, beside in _CANCELLED},
    # Key 12 has the largest score.
    "differentiated product in float32, equal scores": {
        "places": {"dq": [(0, 0, 0, column) for column in range(3)], "dk": [(0, 0, 12, column) for column in range(3)]}
    },
    "differentiated product, large scores": {
        "problem": given([[1]], [[5], [4.5], [5]], [[1, 0.5], [0.7, 1], [-1, 0.3]], scale=1.0)
    },
    "many light keys, probabilities": {"problem": many_light(-10.4, 0.01)},
    "a very light key of a large value, eager": {
        "problem": given([[1]], [[0], [-14]], [[0, 0], [1024, 512]], scale=1.0)
    },
}
