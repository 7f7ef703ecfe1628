"""Ways of computing in which a rounding of a sink, or the reference that it is reduced by, decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..adversary.cases import ALIBI, ONE, POSITIONS, Way

_KEYS: dict[str, Any] = {"sink_reference": "keys"}
_MAXIMUM: dict[str, Any] = {"sink_reference": "maximum"}


def _beside(z: float, **problem: Any) -> dict[str, Any]:
    """Return one key of score 0 and value 1 beside a sink, unless ``problem`` says otherwise."""
    return ONE | {"queries": 0.0, "value": 1.0, "sinks": np.full((1, 1, 1, 1), z)} | problem


SINK_WAYS = (
    Way(
        name="a sink beside a key, base 2",
        problem=_beside(7.3),
        contract=_MAXIMUM | {"exponent": "base2"},
    ),
    Way(
        name="a sink beside a key, log2(e) folded",
        problem=ONE | {"queries": 6.0, "spread": 6.0, "value": 1.0, "sinks": np.full((1, 1, 1, 1), 7.3)},
        contract=_MAXIMUM | {"exponent": "base2", "scale_on": "operands"},
        order={"scaling": "folded"},
    ),
    Way(
        name="a sink far above a key, by the key, base 2",
        problem=_beside(8.0),
        contract=_KEYS | {"kv_tile": 1, "exponent": "base2"},
        order={"kv_tile": 1, "sink": "last"},
    ),
    Way(
        name="a sink that is a tile of its own",
        problem={"n": 4, "D": 1, "queries": 2.0**-5, "value": 1.0, "sinks": np.full((1, 1, 1, 1), 0.25)},
        contract=_MAXIMUM | {"kv_tile": 4, "exp_error": 2.0**42},
        order={"kv_tile": 4, "sink": "last"},
    ),
    Way(
        name="a sink that is moved",
        problem=ALIBI | {"queries": 0.0, "value": 1.0, "scale": 0.25, "sinks": np.full((1, 1, 1, 1), 1.5)},
        contract=POSITIONS | _MAXIMUM,
        order={"alibi_from": "first"},
    ),
)
