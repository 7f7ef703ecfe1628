"""Bounds of gradients whose rows come in blocks: the theorems of ``gradient_bounds``, with memory for one block.

A block tells the bound of its dQ, and what it adds to the sums that dK, dV and the gradient of a bias are. Every row is
evaluated twice, as :func:`gradient_bounds.gradient_evaluation_error` has it: under the contract, and under that of
float64, whose sums tell how far the float64 gradients themselves may be off.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from attn_spec.attention.latent import key_gradient
from attn_spec.bounds.backward.gradient_bounds import (
    GRADIENT_EVALUATION,
    GradientBound,
    finished_error,
    keys_in_domain,
    rows_in_domain,
    widest_of_rows,
)
from attn_spec.bounds.backward.gradient_key_sums import (
    ALL,
    BiasSums,
    GroupSums,
    HeadSums,
    Keys,
    bias_sums,
    key_sums,
    sink_sums,
)
from attn_spec.bounds.backward.gradient_products import dk_error, dkv_error
from attn_spec.bounds.backward.operand_gradients import dk_error_of_heads, dq_error_of_rows, of_all_keys
from attn_spec.bounds.backward.option_gradient_bounds import bias_error
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError, score_gradient_error
from attn_spec.bounds.backward.value_gradient_bounds import dv_error
from attn_spec.bounds.forward.row_sum_bounds import amplification
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, pulled_from_keys
from attn_spec.contract.contract import ResolvedContract


@dataclass(frozen=True)
class Pair:
    """The sums of one kind, under the contract and under that of float64."""

    allowed: HeadSums
    evaluated: HeadSums

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.allowed + other.allowed, self.evaluated + other.evaluated)


@dataclass(frozen=True)
class Block:
    """Sums over a block of rows of one head, and the rows' own bounds; arrays are [1, 1, ..]."""

    forward: Intermediates
    grad: GradientIntermediates
    #: Bounds on the error of dQ and of the float64 dQ; rows where each bound holds, bool [1, 1, rows].
    dq: np.ndarray
    dq_evaluated: np.ndarray
    in_domain: np.ndarray
    evaluated_in_domain: np.ndarray
    #: Share of the rows in the other gradients.
    keys: Pair
    #: Share in the gradients of a bias and of sinks, by name, under the contract and under that of float64.
    options: dict[str, tuple[BiasSums, BiasSums]]


@np.errstate(all="ignore")
def block_of(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, keys: Keys = ALL
) -> Block:
    """Return the theorems of a plain score for some rows and keys of a head, under one reading of a contract."""
    with_sink = score_gradient_error(forward, grad, GRADIENT_EVALUATION, 0.0)
    exact = with_sink.of_keys
    of_exact = key_sums(exact, keys)
    amplify = amplification(widest_of_rows(exact))[..., None]
    off = _dq(exact, 0.0, GRADIENT_EVALUATION) * amplify
    every = score_gradient_error(forward, grad, contract, with_sink.E_X * amplify)
    errors = every.of_keys
    sums = key_sums(errors, keys)
    options: dict[str, tuple[BiasSums, BiasSums]] = {}
    if forward.problem.bias is not None:
        options["dbias"] = bias_sums(errors), bias_sums(exact)
    if forward.has_sink:
        options["dsinks"] = sink_sums(every), sink_sums(with_sink)
    return Block(
        forward,
        grad,
        _dq(errors, off, contract),
        off,
        rows_in_domain(errors),
        rows_in_domain(exact),
        Pair(sums, of_exact),
        options,
    )


def _dq(errors: ScoreGradientError, slack: np.ndarray | float, contract: ResolvedContract) -> np.ndarray:
    size = np.abs(errors.grad.gradients["dq"]) + slack
    return finished_error(
        errors.forward.problem, contract, "dq", dq_error_of_rows(errors, slack), size=size, alpha=widest_of_rows(errors)
    )


@dataclass(frozen=True)
class Finished:
    """A gradient [.., keys, D], how far it may be off, and how far the float64 one is."""

    value: np.ndarray
    allowed: np.ndarray
    radius: np.ndarray


@dataclass(frozen=True)
class FinishedKeys:
    """dK, dV, and with ``latent`` dK + [dV, 0], of one group, when all rows of all its heads have been added."""

    gradients: dict[str, Finished]
    #: Keys where they are known, bool [1, 1, keys], under the contract and in float64; and whether all rows are.
    in_domain: np.ndarray
    evaluated_in_domain: np.ndarray
    whole: bool
    evaluated_whole: bool


@dataclass(frozen=True)
class OfHead:
    """Sums over all rows of a query head, under the contract and for float64; ``forward`` is a block of these rows."""

    forward: Intermediates
    allowed: GroupSums
    evaluated: GroupSums


@np.errstate(all="ignore")
def finished_keys(heads: Sequence[OfHead], contract: ResolvedContract, keys: Keys = ALL) -> FinishedKeys:
    """Return the gradients of some keys and values, and their bounds, from the sums of the heads that share these."""
    forward = heads[0].forward
    allowed = _Group.of(heads, "allowed", contract, keys)
    evaluated = _Group.of(heads, "evaluated", GRADIENT_EVALUATION, keys)
    amplify = amplification(evaluated.sums.alpha.max(initial=0.0))
    values = {"dk": _dk(heads, keys), "dv": allowed.sums.of_v}
    if forward.problem.latent:
        values["dkv"] = key_gradient(values["dk"], values["dv"])
    off = evaluated.errors({name: np.abs(value) for name, value in values.items()})
    off = {name: error * amplify for name, error in off.items()}
    errors = allowed.errors({name: np.abs(value) + off[name] for name, value in values.items()})
    return FinishedKeys(
        {name: Finished(value, errors[name], off[name]) for name, value in values.items()},
        in_domain=allowed.in_domain,
        evaluated_in_domain=evaluated.in_domain,
        whole=allowed.whole,
        evaluated_whole=evaluated.whole,
    )


def _dk(heads: Sequence[OfHead], keys: Keys) -> np.ndarray:
    """Return dK of some keys in float64."""
    of_heads = [head.forward.problem.scale_value * head.allowed.of_k for head in heads]
    if heads[0].forward.score.plain:
        return np.sum(of_heads, axis=0)
    return np.sum([_pulled(head.forward, keys, of_k) for head, of_k in zip(heads, of_heads, strict=True)], axis=0)


def _pulled(forward: Intermediates, keys: Keys, of_k: np.ndarray) -> np.ndarray:
    """Return the gradient of some keys of a head in float64, from that of their operand."""
    return pulled_from_keys(forward, of_all_keys(forward, keys, of_k))[0][:, :, keys]


@dataclass(frozen=True)
class _Group:
    """The heads that share keys, under one contract."""

    forwards: list[Intermediates]
    contract: ResolvedContract
    of_heads: list[GroupSums]
    sums: GroupSums
    keys: Keys

    @classmethod
    def of(cls, heads: Sequence[OfHead], name: str, contract: ResolvedContract, keys: Keys) -> Self:
        of_heads = [getattr(head, name) for head in heads]
        return cls([head.forward for head in heads], contract, of_heads, functools.reduce(operator.add, of_heads), keys)

    def errors(self, sizes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the errors of gradients of these sizes, by name."""
        forward, contract, sums = self.forwards[0], self.contract, self.sums
        if sums.of_operand is None:
            dk = dk_error(forward, contract, sums)
        else:
            dk = dk_error_of_heads(self.forwards, contract, self.of_heads, self.keys)
        unfinished = {"dk": dk, "dv": dv_error(forward, contract, sums).error}
        if forward.problem.latent:
            unfinished["dkv"] = dkv_error(forward, contract, sums)
        return {
            name: finished_error(forward.problem, contract, name, error, size=sizes[name], alpha=sums.alpha)
            for name, error in unfinished.items()
        }

    @property
    def in_domain(self) -> np.ndarray:
        return keys_in_domain(self.forwards[0], self.contract, self.sums)

    @property
    def whole(self) -> bool:
        return bool(self.sums.inside.all())


@np.errstate(all="ignore")
def finished_option(
    forward: Intermediates,
    contract: ResolvedContract,
    name: str,
    sums: tuple[BiasSums, BiasSums],
    *,
    alpha: tuple[np.ndarray, np.ndarray],
    raised: float,
) -> Finished:
    """Return the bound of "dbias" or "dsinks" from ``sums`` and ``alpha`` over all rows, under both contracts."""
    value = sums[0].value
    off, size = np.zeros(value.shape), np.abs(value)
    found = []
    for one, of, largest in zip((GRADIENT_EVALUATION, contract), sums[::-1], alpha[::-1], strict=True):
        error = bias_error(forward, one, of, raised)
        error = finished_error(forward.problem, one, name, error, size=size + off, alpha=largest)
        if not found:
            off = error = error * amplification(largest.max(initial=0.0))
        found.append(error)
    return Finished(value, found[1], found[0])


def bound_of(
    allowed: dict[str, np.ndarray],
    *,
    rows: np.ndarray | None = None,
    keys: np.ndarray | None = None,
    whole: bool = True,
) -> GradientBound:
    """Return the bound as the judge reads it, with the gradients of rows, of keys or of one option alone."""
    none = np.zeros((1, 1, 0), dtype=bool)
    return GradientBound(
        allowed,
        E_X=np.zeros((0, 0, 0, 0)),
        rows=none if rows is None else rows,
        keys=none if keys is None else keys,
        whole=whole,
    )
