"""Ways of computing gradients of linear attention in which one rounding decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.linear import LinearAttention, LinearGradients, QuotientGradients
from attn_spec.problem.problem import Problem

from ..adversary.cases import WHOLE, Way
from .steps import given

_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}
_FLUSHED: dict[str, Any] = {"float16_subnormals": "flushed"}
_OF_P: dict[str, Any] = {"delta": "probabilities"}
_EXP: dict[str, Any] = {"exp_error": 2.0**42}
#: A number that no narrow format holds, subnormal in float16, and cotangents that are small.
_TINY, _SMALL = 2.0**-18 * 1.2345, 2.0**-15 * 1.3


def _relu(q: Any, k: Any, v: Any) -> Problem:
    """Make linear attention of positive q and k, which are their own features."""
    return given(q, k, v, feature_map="relu")


#: Problems by what gradients are of, in the names of ways before a comma.
_PROBLEMS: dict[str, Problem] = {
    "two keys": _relu([[1.37]], [[1.11], [1.27]], [[1.3], [-0.9]]),
    "three keys": _relu([[1.37]], [[1.11]] * 3, [[1.3], [-1.3], [2.0**-9]]),
    "many keys": _relu([[1.37]], [[1.11]] * 80, [[1.3]] * 80),
    "large sum of small values": _relu([[16]], [[16]] * 80, [[0.13]] * 80),
    "large sum of large values": _relu([[4]], [[4]] * 700, [[5]] * 700),
    "one key": _relu([[1.37]], [[1.11]], [[1.3]]),
    "small sum": _relu([[2.0**-5, 2.0**-5]], [[2.0**-4, 2.0**-5], [2.0**-5, 2.0**-4]], [[1.1], [-1.3]]),
    "exponentials": given(
        [[0.37, 0.2], [0.1, 0.7]],
        [[0.11, 0.5], [0.3, -0.2], [0.1, 0.1]],
        [[1.3, 0.2], [-0.4, 0.1], [0.7, -1]],
        feature_map="exp",
    ),
    "large queries": _relu([[137, 120]], [[0.111, 0.127], [0.2, 0.1]], [[1.3], [-0.9]]),
    "tiny queries": _relu([[_TINY, 1.3 * _TINY]], [[1, 1], [1.5, 0.5]], [[1], [0.7]]),
    "tiny keys": _relu([[1, 1]], [[_TINY, 1.3 * _TINY], [0.5 * _TINY, _TINY]], [[1], [0.7]]),
    "tiny values": _relu([[1, 1]], [[1, 0.5], [0.5, 0.5]], [[_TINY], [1.7 * _TINY]]),
    "light key": _relu([[1.0]], [[512], [2.0**-7 * 1.1]], [[0], [1]]),
}


def _way(
    of: str,
    name: str = "",
    contract: dict[str, Any] = _KEPT,
    *,
    steps: type[LinearGradients] = LinearGradients,
) -> Way:
    """Return the gradients of a problem as a way; ``name`` says what is special."""
    contract = {"kv_tile": None, **contract}
    name = f"linear gradients of {of}{name}"
    return Way(name=name, contract=contract, order=WHOLE, steps=LinearAttention, gradients=steps)


def _with(way: Way, dO: float, dL: float) -> dict[str, Any]:
    """Return the attack's fields beside its way: every entry of dO and of dL."""
    problem = _PROBLEMS[way.name.split(",")[0].removeprefix("linear gradients of ")]
    rows = problem.score_shape[:3]
    return {
        "problem": problem,
        "cotangent": np.full((*rows, problem.value_dim), dO),
        "lse_cotangent": np.full(rows, dL) if dL else None,
    }


#: Each with dO and dL.
_ATTACKED: tuple[tuple[Way, float, float], ...] = (
    (_way("exponentials", ", dL alone"), 0.0, 1.0),
    (_way("exponentials", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (_way("large queries", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (
        _way("large sum of small values", ", delta of P, a quotient", {**_KEPT, **_OF_P}, steps=QuotientGradients),
        1.0,
        0.0,
    ),
    (
        _way("large sum of large values", ", delta of P, a quotient", {**_KEPT, **_OF_P}, steps=QuotientGradients),
        1.0,
        0.0,
    ),
    (_way("light key", ", delta of P", {**_KEPT, **_OF_P}), 1.0, 0.0),
    (_way("light key", ", flushed", _FLUSHED), 1.0, 0.0),
    (_way("light key", ", tiny cotangents"), _SMALL, 0.0),
    (_way("light key", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (_way("many keys", ", delta of P", {**_KEPT, **_OF_P}), 1.0, 0.0),
    (_way("one key"), 1.0, 0.0),
    (_way("small sum"), 1.0, 0.0),
    (_way("small sum", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (_way("tiny keys"), 1.0, 0.0),
    (_way("tiny keys", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (_way("tiny queries", ", dL alone"), 0.0, 1.0),
    (_way("tiny queries", ", tiny cotangents"), _SMALL, 0.0),
    (_way("tiny queries", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
    (_way("tiny values"), 1.0, 0.0),
    (_way("tiny values", ", dL alone"), 0.0, 1.0),
    (_way("three keys", ", delta of P", {**_KEPT, **_OF_P}), 1.0, 0.0),
    (_way("two keys"), 1.0, 0.0),
    (_way("two keys", ", dL alone"), 0.0, 1.0),
    (_way("two keys", ", error of exp", {**_KEPT, **_EXP}), 1.0, 0.0),
    (_way("two keys", ", tiny cotangents, flushed", _FLUSHED), _SMALL, 0.0),
)

LINEAR_GRADIENT_WAYS = tuple(way for way, _, _ in _ATTACKED)
#: Fields of an attack beside its way.
LINEAR_GRADIENT_ATTACKS: dict[str, dict[str, Any]] = {way.name: _with(way, dO, dL) for way, dO, dL in _ATTACKED}
