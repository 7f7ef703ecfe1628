"""Ways of computing in which a rounding of a descale, or of what it multiplies, decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..adversary.cases import ONE, Way

#: One key of a score that no scale rounds, and of value 1.
_ALONE: dict[str, Any] = ONE | {"scale": 0.25, "value": 1.0}
_OPERANDS: dict[str, Any] = {"descale_on": "operands"}
_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}


def _one(x: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), x)


DESCALE_WAYS = (
    Way(name="a descale of keys", problem=_ALONE | {"k_descale": _one(0.7)}),
    Way(
        name="a descale that multiplies the scale",
        problem=_ALONE | {"k_descale": _one(0.7)},
        order={"descales_first": True},
    ),
    Way(name="a descale of keys that is 8", problem=_ALONE | {"k_descale": _one(8.0)}),
    Way(name="descaled operands", problem=_ALONE | {"k_descale": _one(0.7)}, contract=_OPERANDS),
    Way(
        name="tiny descaled queries",
        problem=ONE | {"queries": 2.0**-12, "q_descale": _one(0.001), "spread": 64.0, "scale": 1.0},
        contract=_OPERANDS | _KEPT,
    ),
    Way(
        name="tiny descaled keys",
        problem=ONE | {"queries": 64.0, "spread": 2.0**-12, "k_descale": _one(0.001), "scale": 1.0},
        contract=_OPERANDS | _KEPT,
    ),
    Way(
        name="tiny descaled products",
        problem={"n": 1, "D": 3, "queries": 2.0**-6, "spread": 2.0**-6, "k_descale": _one(2.0**-8), "scale": 1.0},
        contract=_OPERANDS | _KEPT,
    ),
    Way(name="a descale of values on the output", problem=_ALONE | {"v_descale": _one(0.7)}),
    Way(
        name="a descale of values on the operands",
        problem=_ALONE | {"v_descale": _one(0.7)},
        contract={"value_descale_on": "operands"},
    ),
    Way(
        name="a descale of values that is 4, on the operands",
        problem=_ALONE | {"value": 1.1, "value_format": "float64", "v_descale": _one(4.0)},
        contract={"value_descale_on": "operands"},
    ),
    Way(
        name="a tiny value with a descale, on the operands",
        problem=_ALONE | {"value": 2.0**-10, "v_descale": _one(0.003)},
        contract=_KEPT | {"value_descale_on": "operands"},
    ),
)
