"""One kv head and its query heads, block by block: dQ of the wanted rows, and the sums that give dK and dV."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from attn_spec.attention.enclosure import Enclosed
from attn_spec.bounds.backward.gradient_blocks import (
    Block,
    Finished,
    FinishedKeys,
    OfHead,
    block_of,
    bound_of,
    finished_option,
)
from attn_spec.bounds.backward.gradient_key_sums import BiasSums, Keys
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, gradient_intermediates, intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.judgement.analysis import ORACLE_FRACTION
from attn_spec.judgement.long.blocks import blocks_of
from attn_spec.judgement.measure import Judgement, measured_gradients
from attn_spec.judgement.oracle import SMALLEST_RADIUS, GradientOracle
from attn_spec.problem.problem import Problem

#: Largest number of float64 arrays [rows, Sk] that the theorems of gradients hold at a time.
THEOREMS = 96


@dataclass(frozen=True)
class Given:
    """One query head of a problem, [1, 1, ..], with its cotangents, and the kernel's dQ if it is judged."""

    problem: Problem
    cotangent: np.ndarray
    lse_cotangent: np.ndarray | None
    dq: np.ndarray | None
    #: Rows that are summed.
    summed: np.ndarray
    #: Rows whose dQ is judged.
    judged: np.ndarray


@dataclass(frozen=True)
class OfRows:
    """Judgement of dQ in some rows of a query head."""

    rows: np.ndarray
    judgement: Judgement


@dataclass(frozen=True)
class Head:
    """Results for one query head."""

    of_keys: OfHead
    of_rows: list[OfRows]
    #: Contribution to dBias and dSinks, by name, [1, 1, Sq or 1, Sk or 1], under the contract and for float64.
    options: dict[str, tuple[BiasSums, BiasSums]]


@np.errstate(all="ignore")
def worked_through(given: Given, contract: ResolvedContract, keys: Keys, memory: int) -> Head:
    """Apply the theorems to one query head under one reading of a contract, block by block within ``memory`` bytes."""
    total, of_rows, forward = None, [], None
    options: dict[str, list[tuple[BiasSums, BiasSums]]] = {}
    for rows in blocks_of(given.problem, given.summed, memory, THEOREMS):
        block = block_of(*_evaluated(given, rows), contract, keys)
        forward, total = block.forward, block.keys if total is None else total + block.keys
        if given.dq is not None:
            of_rows += _judged_rows(given, contract, block, rows)
        for name, of_block in block.options.items():
            options.setdefault(name, []).append(of_block)
    assert forward is not None, "a head without rows"
    assert total is not None
    of_keys = OfHead(forward, *(sums.over_group(forward) for sums in (total.allowed, total.evaluated)))
    joined = {name: _of_all_rows(blocks, given.problem, name) for name, blocks in options.items()}
    return Head(of_keys, of_rows, joined)


def _evaluated(given: Given, rows: np.ndarray) -> tuple[Intermediates, GradientIntermediates]:
    forward = intermediates(given.problem.rows(rows))
    dL = None if given.lse_cotangent is None else given.lse_cotangent[:, :, rows]
    return forward, gradient_intermediates(forward, given.cotangent[:, :, rows], dL)


def _judged_rows(given: Given, contract: ResolvedContract, block: Block, rows: np.ndarray) -> list[OfRows]:
    here = np.flatnonzero(np.isin(rows, given.judged))
    if not len(here) or given.dq is None:
        return []
    of = Finished(block.grad.gradients["dq"], block.dq, block.dq_evaluated)
    truth = enclosed(of, block.evaluated_in_domain)
    if not _sharp(truth.radius, of.allowed):
        truth = GradientOracle(block.forward, block.grad)(dq=ORACLE_FRACTION * of.allowed)["dq"]
    truth = Enclosed(truth.value[:, :, here], truth.low[:, :, here], truth.radius[:, :, here])
    bound = bound_of({"dq": of.allowed[:, :, here]}, rows=block.in_domain[:, :, here])
    found = {"dq": given.dq[:, :, rows[here]]}
    return [OfRows(rows[here], measured_gradients(block.forward.problem, contract, found, {"dq": truth}, bound))]


def _of_all_rows(blocks: list[tuple[BiasSums, BiasSums]], problem: Problem, name: str) -> tuple[BiasSums, BiasSums]:
    """Return the blocks of an option joined: added if it is broadcast along rows, else put below each other."""
    if np.shape(getattr(problem, name[1:]))[2] == 1:
        return functools.reduce(lambda one, other: (one[0] + other[0], one[1] + other[1]), blocks)
    first, second = (_below(list(each)) for each in zip(*blocks, strict=True))
    return first, second


def _below(blocks: list[BiasSums]) -> BiasSums:
    parts = zip(*((of.value, of.own, of.total, of.n) for of in blocks), strict=True)
    return BiasSums(*(np.concatenate(part, axis=2) for part in parts))


class OptionOfGroups:
    """Sums over all heads of a problem that give "dbias" or "dsinks", with the shape of the option."""

    def __init__(self, problem: Problem, name: str) -> None:
        self.name = name
        self.shape = np.shape(getattr(problem, name[1:]))
        self.whole = self.evaluated_whole = True
        self._sums = tuple(BiasSums(*(np.zeros(self.shape) for _ in range(4))) for _ in range(2))
        self._alpha = [np.zeros(1), np.zeros(1)]
        self._raised = 1.0

    def add(self, head: Head, b: int, h: int) -> None:
        """Add the contribution of a head."""
        self._forward, at = head.of_keys.forward, (b if self.shape[0] > 1 else 0, h if self.shape[1] > 1 else 0)
        for total, of in zip(self._sums, head.options[self.name], strict=True):
            for mine, more in ((total.value, of.value), (total.own, of.own), (total.total, of.total), (total.n, of.n)):
                mine[at] += more[0, 0]
        both = head.of_keys.allowed, head.of_keys.evaluated
        self._alpha = [np.maximum(known, of.alpha) for known, of in zip(self._alpha, both, strict=True)]
        self._raised = max(self._raised, float(both[0].raised))

    def end(self, of: FinishedKeys) -> None:
        """End a group, whose heads have all been added: note whether it is in the domain."""
        self.whole = self.whole and of.whole
        self.evaluated_whole = self.evaluated_whole and of.evaluated_whole

    def finished(self, contract: ResolvedContract) -> Finished:
        """Return the gradient of all groups, with its bound."""
        (first, second), (alpha, of_float64) = self._sums, self._alpha
        both = {"alpha": (alpha, of_float64), "raised": self._raised}
        return finished_option(self._forward, contract, self.name, (first, second), **both)


def enclosed(of: Finished, in_domain: np.ndarray | bool) -> Enclosed:
    """Return the float64 truth; its radius is infinite outside ``in_domain`` [.., rows], where float64 may overflow."""
    inside = np.asarray(in_domain)
    usable = (inside[..., None] if inside.ndim else inside) & ~np.isnan(of.radius)
    return Enclosed(of.value, np.zeros(of.value.shape), np.where(usable, of.radius, np.inf))


def is_sharp(of: Finished, in_domain: np.ndarray | bool) -> bool:
    """Return whether float64 is precise enough for the bound."""
    return _sharp(enclosed(of, in_domain).radius, of.allowed)


def _sharp(radius: np.ndarray, allowed: np.ndarray) -> bool:
    return bool(np.all(radius <= np.maximum(ORACLE_FRACTION * allowed, SMALLEST_RADIUS)))
