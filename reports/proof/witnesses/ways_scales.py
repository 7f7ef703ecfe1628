"""Ways of computing in which the scale of probabilities before their cast, or that of the output, decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..adversary.cases import ONE, TWO, Way

#: A scale that saturates: dropout raises the weight of the one key to ten times the largest number.
_SATURATES: dict[str, Any] = {"probabilities": "float8_e4m3fn", "probability_scale": 448.0, "overflow": "saturates"}
#: An output in 8 bits that saturates, 2^10 times as large as its scale.
_HELD: dict[str, Any] = {"output": "float8_e4m3fn", "output_overflow": "saturates"}
_OFFSET: dict[str, Any] = {"probability_scale": 2.0**8, "exponent": "base2"}


def _scale(d: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), float(np.float32(d)))


SCALE_WAYS = (
    Way(name="two keys, V = 1, probabilities times 100.3", problem=TWO, contract={"probability_scale": 100.3}),
    Way(name="probabilities times 2^8 in the exponent", contract=_OFFSET, order={"scale_in_exponent": True}),
    Way(name="a probability that saturates", problem=ONE | {"dropped": 0.9}, contract=_SATURATES),
    Way(name="two keys, V = 1, an output divided by its scale", problem=TWO | {"o_scale": _scale(0.7)}),
    Way(
        name="a tiny output divided by a large scale",
        problem=ONE | {"value": 2.0**-16, "o_scale": _scale(12.0)},
        contract={"float16_subnormals": "kept"},
    ),
    Way(name="an output that saturates", problem=ONE | {"value": 1.0, "o_scale": _scale(2.0**-10)}, contract=_HELD),
)
