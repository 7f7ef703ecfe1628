"""Terms of the bounds that no attack shows to be needed, each with the reason."""

from __future__ import annotations

from .struck import struck
from .unwitnessed_gradients import GRADIENTS
from .unwitnessed_layers import LAYERS
from .unwitnessed_linear import LINEAR
from .unwitnessed_scores import SCORES
from .unwitnessed_weights import WEIGHTS

#: The deletion of each term, and a sentence that says why it stands there without a witness.
UNWITNESSED = tuple(
    (struck(name, module, text), reason)
    for table in (SCORES, WEIGHTS, GRADIENTS, LINEAR, LAYERS)
    for module, reasons in table.items()
    for reason, terms in reasons.items()
    for name, text in terms.items()
)
