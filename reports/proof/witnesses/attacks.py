"""Attacks by the names of a stage and of a way of computing."""

from __future__ import annotations

from dataclasses import replace

from ..adversary.attack import Attack
from ..adversary.cases import WAYS, narrowed
from .ways_descales import DESCALE_WAYS
from .ways_gradients import GRADIENT_ATTACKS, GRADIENT_WAYS
from .ways_layers import LAYER_ATTACKS, LAYER_WAYS
from .ways_linear import LINEAR_ATTACKS, LINEAR_WAYS
from .ways_linear_gradients import LINEAR_GRADIENT_ATTACKS, LINEAR_GRADIENT_WAYS
from .ways_output import OUTPUT_ATTACKS, OUTPUT_WAYS
from .ways_scales import SCALE_WAYS
from .ways_scores import SCORE_ATTACKS, SCORE_WAYS
from .ways_sinks import SINK_WAYS
from .ways_weights import WEIGHT_ATTACKS, WEIGHT_WAYS

#: Elements of each quantity that are attacked.
ELEMENTS = 6
_BESIDE = (
    SCORE_ATTACKS
    | WEIGHT_ATTACKS
    | OUTPUT_ATTACKS
    | GRADIENT_ATTACKS
    | LINEAR_ATTACKS
    | LINEAR_GRADIENT_ATTACKS
    | LAYER_ATTACKS
)

#: Stages that are narrow together, by a name for them; a way may name others that are.
_TOGETHER: dict[str, tuple[str, ...]] = {"several": (), "scores": ("score_accumulation", "stored_scores")}
_NAMED = (
    *SCORE_WAYS,
    *WEIGHT_WAYS,
    *OUTPUT_WAYS,
    *GRADIENT_WAYS,
    *LINEAR_WAYS,
    *LINEAR_GRADIENT_WAYS,
    *LAYER_WAYS,
    *SINK_WAYS,
    *DESCALE_WAYS,
    *SCALE_WAYS,
)
_BY_NAME = {way.name: way for way in (*WAYS, *_NAMED)}


def attack_of(stage: str, name: str) -> Attack:
    """Return the attack on a stage, or on stages that are narrow together, in the way of a name."""
    found = narrowed(_BY_NAME[name], _TOGETHER.get(stage, (stage,)))
    return replace(found, elements=ELEMENTS, **_BESIDE.get(name, {}))
