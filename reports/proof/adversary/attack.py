"""Attack one element of an answer: choose every rounding of an emulated kernel for the largest error.

All e of the ``arithmetic`` are chosen at once as the signs of the element's derivatives by them, a few times over,
which is exact to first order. An error above its bound shows that the derivation misses a term. An error far below it
measures how loose the bound is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec.attention.rotations import Rotation
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.bounds.theorems import forward_bound, gradient_bound
from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.contract.readings import gradient_readings, readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.layers import Layer, heads_contract
from attn_spec.emulation.operands import Operands, chooses_score
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem

from .arithmetic import Adversary, Choices, kernel_of, operands_of

#: Number of times that the signs are chosen anew.
STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack: a contract, executed in one way, on one problem."""

    problem: Problem
    contract: Contract
    order: Order = field(default_factory=lambda: Order(kv_tile=1, fused=False))
    steps: type[TiledAttention] = TiledAttention
    #: Steps of the backward pass, and dO [B, Hq, Sq, Dv]; None leaves the gradients out.
    gradients: type[TiledGradients] = TiledGradients
    cotangent: np.ndarray | None = None
    #: dL [B, Hq, Sq].
    lse_cotangent: np.ndarray | None = None
    #: Projections, where the problem is a layer.
    layer: type[Layer] = Layer
    #: Steps in front of those of the adversary.
    above: tuple[type[Adversary], ...] = ()
    #: Elements of each quantity that are attacked, at most; or those alone, by quantity.
    elements: int = 3
    places: Mapping[str, Sequence[tuple[int, ...]]] | None = None
    seed: int = 0


Ratios = dict[str, float]
Arrays = dict[str, np.ndarray]
#: Quantities that may be attacked.
QUANTITIES = (
    *("output", "lse", "dq", "dk", "dv", "dbias", "dsinks"),
    *(f"d{name}" for name, row in OPTIONS.items() if row.projects_values),
)
FORWARD, BACKWARD = QUANTITIES[:2], QUANTITIES[2:]


@dataclass(frozen=True)
class Found:
    """The largest error of one element in one direction that the adversary found."""

    quantity: str
    place: tuple[int, ...]
    error: float


def attained(attack: Attack, quantities: Iterable[str] = QUANTITIES) -> Ratios:
    """Return each quantity's largest error / bound that the adversary found, under the contract's first reading."""
    quantities = tuple(quantities)
    return ratios(errors(attack, quantities), allowed(attack, quantities))


def ratios(found: Iterable[Found], bounds: Arrays) -> Ratios:
    """Return the largest error / bound of each quantity; inf where a bound is 0 and the error is not."""
    largest: Ratios = {}
    for one in found:
        bound = float(bounds[one.quantity][one.place])
        ratio = one.error / bound if bound else math.inf if one.error else 0.0
        largest[one.quantity] = max(largest.get(one.quantity, 0.0), ratio)
    return largest


def errors(attack: Attack, quantities: Iterable[str] = QUANTITIES) -> list[Found]:
    """Find the largest errors; bounds only choose the elements that the adversary attacks."""
    truths, bounds = _truths(attack, quantities), allowed(attack, quantities)
    forward_contract, backward_contract = _contracts(attack)
    found: list[Found] = []
    for contract, names, run in (
        (forward_contract, FORWARD, _run_forward),
        (backward_contract, BACKWARD, _run_backward),
    ):
        found += _climb(attack, contract, {name: truths[name] for name in names if name in truths}, bounds, run)
    return found


def allowed(attack: Attack, quantities: Iterable[str] = QUANTITIES) -> Arrays:
    """Return the bounds of the quantities of an attack, under the contract's first reading; NaN outside the domain."""
    (forward_contract, backward_contract), wanted, forward = (
        _contracts(attack),
        set(quantities),
        intermediates(attack.problem),
    )
    bounds: Arrays = {}
    if wanted & set(FORWARD):
        bound = forward_bound(forward, forward_contract)
        bounds["output"] = np.where(bound.domain_of("output")[..., None], bound.allowed["output"], np.nan)
        bounds["lse"] = np.where(bound.domain_of("lse"), bound.allowed["lse"], np.nan)
    if attack.cotangent is not None and wanted & set(BACKWARD):
        bound = gradient_bound(
            forward, gradient_intermediates(forward, attack.cotangent, attack.lse_cotangent), backward_contract
        )
        bounds |= {name: np.where(bound.domain_of(name), error, np.nan) for name, error in bound.allowed.items()}
    return {name: bound for name, bound in bounds.items() if name in wanted}


def _contracts(attack: Attack) -> tuple[ResolvedContract, ResolvedContract]:
    """Return the first readings of both passes; the forward one twice if no gradients are attacked."""
    contract = attack.contract.at(attack.problem.dtype)
    forward = readings(contract)[0]
    return forward, forward if attack.cotangent is None else gradient_readings(contract)[0]


def _truths(attack: Attack, quantities: Iterable[str]) -> Arrays:
    forward = intermediates(attack.problem)
    truths: Arrays = {"output": forward.output, "lse": forward.L[..., 0]}
    if attack.cotangent is not None:
        grad = gradient_intermediates(forward, attack.cotangent, attack.lse_cotangent)
        truths |= grad.gradients
    return {name: truths[name] for name in QUANTITIES if name in truths and name in set(quantities)}


def _climb(
    attack: Attack,
    contract: ResolvedContract,
    truths: Mapping[str, np.ndarray],
    bounds: Mapping[str, np.ndarray],
    run: Callable[[Attack, ResolvedContract, Choices, int], Mapping[str, Tensor]],
) -> list[Found]:
    """Attack chosen elements, each up and down, in a batch entry of its own."""
    targets = list(_targets(attack, truths, bounds))
    if not targets:
        return []
    signs = torch.tensor([sign for _, _, sign in targets], dtype=torch.float64)
    true = torch.tensor([truths[name][at] for name, at, _ in targets], dtype=torch.float64)
    choices, best = Choices(), np.zeros(len(targets))

    def excess() -> Tensor:
        choices.place = 0
        answer = run(attack, contract, choices, len(targets))
        picked = torch.stack([answer[name][(entry, *at[1:])] for entry, (name, at, _) in enumerate(targets)])
        return signs * (picked - true)

    for _ in range(STEPS):
        reached = excess()
        best = np.fmax(best, reached.detach().numpy())
        slopes = torch.autograd.grad(reached.sum(), choices.found, allow_unused=True)
        with torch.no_grad():
            for e, slope in zip(choices.found, slopes, strict=True):
                e.copy_(torch.zeros_like(e) if slope is None else torch.sign(torch.nan_to_num(slope)))
    best = np.fmax(best, excess().detach().numpy())
    return [Found(name, at, error) for error, (name, at, _) in zip(best.tolist(), targets, strict=True)]


def _targets(
    attack: Attack, truths: Mapping[str, np.ndarray], bounds: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, tuple[int, ...], float]]:
    rng = np.random.default_rng(attack.seed)
    for name, truth in truths.items():
        places = np.argwhere(np.isfinite(truth) & np.isfinite(bounds[name]) & (bounds[name] > 0))
        chosen = rng.permutation(places)[: attack.elements] if attack.places is None else attack.places.get(name, ())
        for at in chosen:
            for sign in (1.0, -1.0):
                yield name, tuple(int(n) for n in at), sign


def _options(problem: Problem, entries: int) -> dict[str, Any]:
    """Return the options of a problem of one batch entry, repeated for ``entries`` equal entries."""
    given = {name: getattr(problem, name) for name in OPTIONS}
    tensors = (name for name, row in OPTIONS.items() if row.tensor and given[name] is not None)
    return given | {name: np.repeat(given[name], entries, axis=0) for name in tensors}


def _repeated(problem: Problem, entries: int) -> list[np.ndarray]:
    return [np.repeat(x, entries, axis=0) for x in (problem.q, problem.k, problem.v)]


def _kernel(attack: Attack, steps: type[Any], dtype: str, choices: Choices, entries: int) -> type[Any]:
    return kernel_of((*attack.above, steps), dtype, choices, entries)


def _run_forward(attack: Attack, contract: ResolvedContract, choices: Choices, entries: int) -> dict[str, Tensor]:
    operands = _operands(attack, contract, choices, entries, _options(attack.problem, entries))
    return _outputs(attack, contract, choices, entries, operands)


def _outputs(
    attack: Attack, contract: ResolvedContract, choices: Choices, entries: int, operands: Any
) -> dict[str, Tensor]:
    """Run the forward pass on these operands; None stands for q and k."""
    q, k, v = _repeated(attack.problem, entries)
    if attack.problem.projects:
        heads = _attend(attack, heads_contract(contract), choices, entries)
        out, lse = heads((*operands(), operands.values(v)), operands.options)
        return {"output": operands.joined(out), "lse": lse}
    if operands is None:
        options = _options(attack.problem, entries)
    else:
        (q, k), v = operands(), operands.repeated(v)
        options = {name: value for name, value in operands.options.items() if name != "dlse"}
    call = _kernel(attack, attack.steps, attack.problem.dtype, choices, entries)(
        contract, attack.order, q, k, v, **options
    )
    out, lse = call()
    return {"output": out * attack.problem.output_unit, "lse": lse}


def _operands(
    attack: Attack, contract: ResolvedContract, choices: Choices, entries: int, options: Mapping[str, Any]
) -> Any:
    """Return the operands of ``entries`` equal batch entries, a layer's projected; None where they are q and k."""
    if not chooses_score(options):
        return None
    of = attack.layer if attack.problem.projects else Operands
    made = operands_of(of, attack.problem.dtype, choices, entries)
    found = made(contract, attack.order, *_repeated(attack.problem, entries)[:2], options)
    for side, turn in found.p.items():
        if isinstance(turn, Rotation):  # each entry has tables of its own, whose roundings it chooses
            found.p[side] = replace(
                turn, positions=np.broadcast_to(turn.positions, (entries, 1, *turn.positions.shape[-1:]))
            )
    return found


def _attend(
    attack: Attack, contract: ResolvedContract, choices: Choices, entries: int
) -> Callable[..., tuple[Any, Any]]:
    """Return the forward call of the heads of a layer, which read numbers of the format of operands."""
    steps = _kernel(attack, attack.steps, contract.operands, choices, entries)

    def attend(tensors: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any]:
        taken = {name: value for name, value in options.items() if name != "dlse"}
        return steps(contract, attack.order, *tensors, **taken)()

    return attend


def _run_backward(attack: Attack, contract: ResolvedContract, choices: Choices, entries: int) -> dict[str, Tensor]:
    dO = np.repeat(np.asarray(attack.cotangent), entries, axis=0)
    options, (q, k, v) = _options(attack.problem, entries), _repeated(attack.problem, entries)
    if attack.lse_cotangent is not None:
        options["dlse"] = np.repeat(attack.lse_cotangent, entries, axis=0)
    operands = _operands(attack, contract, choices, entries, options)
    outputs = _outputs(attack, contract, choices, entries, operands).values()
    projects, dtype = attack.problem.projects, attack.problem.dtype
    steps = _kernel(attack, attack.gradients, contract.operands if projects else dtype, choices, entries)

    def run(contract: ResolvedContract, saved: tuple[Any, ...], options: Mapping[str, Any], dO: Any) -> TiledGradients:
        return steps(contract, attack.order, dO, saved, **options)

    if projects:
        _, lse = outputs

        def attend(contract: ResolvedContract, tensors: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, Any]:
            return _attend(attack, contract, choices, entries)(tensors, options)

        found = operands.layer_backward(run, attend, v, lse, dO)
        return {f"d{name}": of for name, of in found.items()}
    if operands is None:
        call = run(contract, (q, k, v, *outputs), options, dO)
        return dict(zip((f"d{name}" for name in call.differentiated(options)), call(), strict=True))
    backward: Callable[..., dict[str, Any]] = operands.backward
    return {f"d{name}": found for name, found in backward(run, v, dO, *outputs).items()}
