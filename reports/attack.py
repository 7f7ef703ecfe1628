"""Attack one element of an answer: choose every rounding of an emulated kernel for the largest error.

All e of the ``adversary`` are chosen at once as the signs of the derivatives of the element by them, a few times over,
which is exact to first order. An error above its bound shows that the derivation misses a term; one far below it how
loose the bound is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec.bounds import forward_bound
from attn_spec.contract import Contract
from attn_spec.gradient_bounds import gradient_bound
from attn_spec.intermediates import gradient_intermediates, intermediates
from attn_spec.problem import Problem
from attn_spec.readings import gradient_readings, readings

from .adversary import Choices, kernel_of
from .arithmetic import Order
from .emulated import TiledAttention
from .emulated_backward import TiledGradients

#: How often the signs are chosen anew.
STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What is attacked: a contract, executed in one way, on one problem."""

    problem: Problem
    contract: Contract
    order: Order = field(default_factory=lambda: Order(kv_tile=1, fused=False))
    steps: type[TiledAttention] = TiledAttention
    #: Steps of the backward pass, and dO [B, Hq, Sq, Dv]; None leaves the gradients out.
    gradients: type[TiledGradients] = TiledGradients
    cotangent: np.ndarray | None = None
    #: Elements of each quantity that are attacked, at most.
    elements: int = 3
    seed: int = 0


Ratios = dict[str, float]


def attained(attack: Attack, quantities: Iterable[str] = ("output", "lse", "dq", "dk", "dv", "dbias")) -> Ratios:
    """The largest error / bound of each quantity that the adversary found, under the contract's first reading."""
    wanted, found = set(quantities), {}
    c = attack.contract.at(attack.problem.dtype)
    forward, backward = readings(c)[0], gradient_readings(c)[0]
    if wanted & {"output", "lse"}:
        truths, bounds = _forward_bounds(attack.problem, forward)
        found |= _climb(attack, forward, {n: truths[n] for n in truths if n in wanted}, bounds, _run_forward)
    if attack.cotangent is not None and wanted & {"dq", "dk", "dv", "dbias"}:
        truths, bounds = _gradient_bounds(attack.problem, backward, attack.cotangent)
        found |= _climb(attack, backward, {n: truths[n] for n in truths if n in wanted}, bounds, _run_backward)
    return found


Arrays = dict[str, np.ndarray]


def _forward_bounds(problem: Problem, c: Contract) -> tuple[Arrays, Arrays]:
    x = intermediates(problem)
    bound = forward_bound(x, c)
    allowed = {"output": bound.output, "lse": bound.lse}
    inside = {"output": bound.in_domain[..., None], "lse": bound.in_domain}
    return {"output": x.O, "lse": x.L[..., 0]}, {n: np.where(inside[n], b, np.nan) for n, b in allowed.items()}


def _gradient_bounds(problem: Problem, c: Contract, dO: np.ndarray) -> tuple[Arrays, Arrays]:
    x = intermediates(problem)
    g = gradient_intermediates(x, dO)
    bound = gradient_bound(x, g, c)
    names = [name for name in ("dq", "dk", "dv", "dbias") if getattr(g, name) is not None]
    usable = 1.0 if bound.in_domain.all() else np.nan
    return {n: getattr(g, n) for n in names}, {n: getattr(bound, n) * usable for n in names}


def _climb(
    attack: Attack,
    c: Contract,
    truths: Mapping[str, np.ndarray],
    bounds: Mapping[str, np.ndarray],
    run: Callable[[Attack, Contract, Choices, int], Mapping[str, Tensor]],
) -> Ratios:
    """Attack chosen elements, each up and down, in a batch entry of its own."""
    targets = list(_targets(attack, truths, bounds))
    if not targets:
        return {}
    signs = torch.tensor([sign for _, _, sign in targets], dtype=torch.float64)
    allowed = np.array([bounds[name][at] for name, at, _ in targets])
    true = torch.tensor([truths[name][at] for name, at, _ in targets], dtype=torch.float64)
    choices, best = Choices(), np.zeros(len(targets))

    def excess() -> Tensor:
        choices.place = 0
        answer = run(attack, c, choices, len(targets))
        picked = torch.stack([answer[name][(entry, *at[1:])] for entry, (name, at, _) in enumerate(targets)])
        return signs * (picked - true)

    for _ in range(STEPS):
        errors = excess()
        best = np.fmax(best, errors.detach().numpy() / allowed)
        slopes = torch.autograd.grad(errors.sum(), choices.found, allow_unused=True)
        with torch.no_grad():
            for e, slope in zip(choices.found, slopes, strict=True):
                e.copy_(torch.zeros_like(e) if slope is None else torch.sign(torch.nan_to_num(slope)))
    best = np.fmax(best, excess().detach().numpy() / allowed)
    found: Ratios = {}
    for ratio, (name, _, _) in zip(best.tolist(), targets, strict=True):
        found[name] = max(found.get(name, 0.0), ratio)
    return found


def _targets(
    attack: Attack, truths: Mapping[str, np.ndarray], bounds: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, tuple[int, ...], float]]:
    rng = np.random.default_rng(attack.seed)
    for name, truth in truths.items():
        places = np.argwhere(np.isfinite(truth) & np.isfinite(bounds[name]) & (bounds[name] > 0))
        for at in rng.permutation(places)[: attack.elements]:
            for sign in (1.0, -1.0):
                yield name, tuple(int(n) for n in at), sign


def _options(problem: Problem, entries: int) -> dict[str, Any]:
    """The options of a problem of one batch entry, for as many equal entries."""
    given = {"scale": problem.scale, "causal": problem.causal, "softcap": problem.softcap, "window": problem.window}
    for name in ("mask", "bias"):
        option = getattr(problem, name)
        if option is not None:
            given[name] = np.repeat(option, entries, axis=0)
    return given | {"causal_alignment": problem.causal_alignment}


def _repeated(problem: Problem, entries: int) -> list[np.ndarray]:
    return [np.repeat(x, entries, axis=0) for x in (problem.q, problem.k, problem.v)]


def _run_forward(attack: Attack, c: Contract, choices: Choices, entries: int) -> dict[str, Tensor]:
    steps = kernel_of(attack.steps, attack.problem.dtype, choices)
    call = steps(c, attack.order, *_repeated(attack.problem, entries), **_options(attack.problem, entries))
    return dict(zip(("output", "lse"), call(), strict=True))


def _run_backward(attack: Attack, c: Contract, choices: Choices, entries: int) -> dict[str, Tensor]:
    out, lse = _run_forward(attack, c, choices, entries).values()
    dO = np.repeat(attack.cotangent, entries, axis=0)
    steps = kernel_of(attack.gradients, attack.problem.dtype, choices)
    saved = (*_repeated(attack.problem, entries), out, lse)
    call = steps(c, attack.order, dO, saved, **_options(attack.problem, entries))
    return dict(zip(("dq", "dk", "dv", "dbias"), call(), strict=False))
