"""Explanations of accepted gross errors: an arithmetic within the contract whose answer is nearly as far off.

The adversary chooses every rounding of an emulated kernel of the reading that explained the error. It does so for the
element where the error is largest beside its bound. A sound kernel might answer what it reaches there: refuting the
error would accuse that kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attn_spec.bounds.backward.weight_gradient_bounds import divides_cotangent
from attn_spec.contract.contract import ResolvedContract
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import DifferentiatedProduct, StoredWeights, TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.linear import LinearAttention, LinearGradients
from attn_spec.emulation.passes import steps_of
from attn_spec.emulation.split import NormalizedSplitAttention, RingAttention
from attn_spec.judgement.power import judged
from attn_spec.problem.quantities import QUANTITIES

from ..adversary.attack import Attack, errors
from .cells import Cell

#: The share of an error that explains it.
ENOUGH = 0.5


def explained(cell: Cell) -> float:
    """Return the error of an arithmetic within the contract, as a share of the planted error, at its worst element."""
    name, at, error = _worst(cell)
    part = _part(cell, name, at)
    largest = 0.0
    for order in _orders(cell.one.contract):
        found = errors(replace(part, order=order, steps=_steps(cell, order)), (name,))
        largest = max([largest, *(one.error / error for one in found)])
        if largest >= ENOUGH:
            break
    return largest


def _worst(cell: Cell) -> tuple[str, tuple[int, ...], float]:
    """Return the element of the largest error beside its bound: quantity, place and error."""
    measured = judged(cell.one, cell.one.contract, cell.answer).worst
    at = measured.worst
    return measured.name, at, float(np.abs(measured.got[at] - measured.truth.value[at]))


def _orders(contract: ResolvedContract) -> Iterator[Order]:
    """Yield orders that the contract leaves open: the place of the scale, the number of tiles, the form of dS."""
    scalings = ("roots", "query", "folded") if contract.scale_on == "operands" else ("roots",)
    for expands in (False, True) if contract.delta == "probabilities" else (False,):
        for scaling in scalings:
            for tile in {contract.kv_tile, None}:
                yield Order(kv_tile=tile, fused=False, scaling=scaling, expands_dS=expands)


def _part(cell: Cell, name: str, at: tuple[int, ...]) -> Attack:
    """Return the attack on one element, with only the row or the heads that it depends on."""
    one, problem, dO = cell.one, cell.one.problem, cell.one.cotangent
    cotangents = np.zeros(problem.output_shape) if dO is None else dO
    batch, head, place, *column = at
    if "Q" in QUANTITIES[name].axes:
        problem, cotangents, place = problem.rows([place]), cotangents[:, :, [place]], 0
        heads, part = [head], problem if problem.projects else problem.head(head)
    else:
        heads = range(head * problem.group, (head + 1) * problem.group)
        part = problem if problem.projects else problem.take("H", [head])
    if not problem.projects:
        cotangents, head = cotangents[:, heads], 0
    return Attack(
        problem=part,
        contract=one.contract,
        gradients=_gradients(cell),
        cotangent=None if dO is None else cotangents,
        places={name: [(batch, head, place, *column)]},
    )


def _steps(cell: Cell, order: Order) -> type[TiledAttention]:
    contract = cell.one.contract
    if cell.one.problem.feature_map is not None:
        return LinearAttention
    if contract.lse_merges:
        return RingAttention if contract.merging == "difference" else NormalizedSplitAttention
    return steps_of(contract, order)


def _gradients(cell: Cell) -> type[TiledGradients]:
    contract = cell.one.contract
    if cell.one.problem.feature_map is not None:
        return LinearGradients
    if contract.backward_weights != "stored" or contract.normalize == "by_lse":
        return TiledGradients
    return DifferentiatedProduct if divides_cotangent(contract) else StoredWeights
