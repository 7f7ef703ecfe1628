"""Ways of computing in which the scale of probabilities before their cast decides."""

from __future__ import annotations

from typing import Any

from ..adversary.cases import ONE, TWO, Way

#: A scale that saturates: dropout raises the weight of the one key to ten times the largest number.
_SATURATES: dict[str, Any] = {"probabilities": "float8_e4m3fn", "probability_scale": 448.0, "overflow": "saturates"}
_OFFSET: dict[str, Any] = {"probability_scale": 2.0**8, "exponent": "base2"}

SCALE_WAYS = (
    Way(name="two keys, V = 1, probabilities times 100.3", problem=TWO, contract={"probability_scale": 100.3}),
    Way(name="probabilities times 2^8 in the exponent", contract=_OFFSET, order={"scale_in_exponent": True}),
    Way(name="a probability that saturates", problem=ONE | {"dropped": 0.9}, contract=_SATURATES),
)
