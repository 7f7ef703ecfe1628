"""Terms of the bounds that no attack shows to be needed, each with the reason."""

from __future__ import annotations

from .strikes import Strike
from .unwitnessed_gradients import GRADIENTS
from .unwitnessed_layers import LAYERS
from .unwitnessed_linear import LINEAR
from .unwitnessed_scores import SCORES
from .unwitnessed_weights import WEIGHTS

#: Strikes without a witness, each with the reason.
UNWITNESSED: tuple[tuple[Strike, str], ...] = tuple(
    (strike, reason)
    for table in (SCORES, WEIGHTS, GRADIENTS, LINEAR, LAYERS)
    for reason, strikes in table.items()
    for strike in strikes
)
