"""A way of computing attention that the adversary attacks, and the kind of problem it is shown on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.layers import Layer
from attn_spec.problem.problem import Problem

from .problems import small_problem


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of computing attention, and a kind of problem."""

    name: str
    #: Arguments of :func:`small_problem`, or of ``made_by``, fields of the contract and of the order.
    problem: dict[str, Any] = field(default_factory=dict)
    made_by: Callable[..., Problem] = small_problem
    contract: dict[str, Any] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    steps: type[TiledAttention] = TiledAttention
    gradients: type[TiledGradients] = TiledGradients
    layer: type[Layer] = Layer
    #: Sizes of dO and of dL.
    cotangent: float = 1.0
    lse_cotangent: float = 0.0
