"""Sums over query rows that the gradients of keys, values and a bias are, and the terms of their bounds.

dQ of a row is made of that row alone. dK, dV and the gradient of a broadcast bias are sums over rows and over the head
group, and so is every term of their bounds that depends on a row. Blocks of rows add up to the whole; the bounds in
``gradient_bounds`` are made of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attn_spec.bounds.backward.block_sums import CONJUNCTION, MAXIMUM, BlockSums
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError
from attn_spec.bounds.backward.weight_gradient_bounds import cotangent_entering
from attn_spec.bounds.forward.dropout_bounds import factor_underflow, weight_stages
from attn_spec.bounds.forward.row_sum_bounds import evaluation_alpha
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.operand_bounds import operand_error
from attn_spec.contract.terms import term
from attn_spec.problem.problem import Problem

#: All keys, or an index of some.
Keys = slice | np.ndarray
ALL = slice(None)


@dataclass(frozen=True)
class ProductSums(BlockSums):
    """Row sums that the bound of a product of dS with k or q is made of, [.., rows, D] or [.., rows, 1]."""

    #: The part of its error that errors of dS make, and the sum of the sizes of its products.
    own: np.ndarray
    total: np.ndarray
    #: Over the same ``n`` terms: the sum of |k| or |q|, that of its products with what underflows early, that of |dS|.
    seen: np.ndarray
    early: np.ndarray
    entered: np.ndarray
    n: np.ndarray


def _of_operands(one: ProductSums | None, other: ProductSums | None) -> ProductSums | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True)
class ValueSums(BlockSums):
    """Sums that the bound of P^T dO is made of, [.., Sk, Dv] or [.., Sk, 1]."""

    #: The error that errors of its factors make; sums of the sizes of its products, and of |dO| times underflow.
    own: np.ndarray
    total: np.ndarray
    eta: np.ndarray
    #: The sum of weights over ``n`` terms.
    entered: np.ndarray
    n: np.ndarray


@dataclass(frozen=True)
class BiasSums(BlockSums):
    """Sums of dA over the axes along which a bias was broadcast, of the bias's shape: values, errors, sizes, counts."""

    value: np.ndarray
    own: np.ndarray
    total: np.ndarray
    n: np.ndarray


@dataclass(frozen=True, kw_only=True)
class KeySums(BlockSums):
    """All that some rows add to the gradients of some keys."""

    #: dS^T q before the scale, and P^T dO.
    of_k: np.ndarray
    of_v: np.ndarray
    k_sums: ProductSums
    v_sums: ValueSums
    #: Sums that the bound of the gradient of k' is made of, for operands that are formulas; None if k is the operand.
    of_operand: ProductSums | None = field(default=None, metadata={"by": _of_operands})
    #: The largest error of a weight's own evaluation, [B, heads], and the largest factor of dropout.
    alpha: np.ndarray = field(metadata=MAXIMUM)
    raised: float = field(metadata=MAXIMUM)
    #: True where all that is added is in the domain, bool [B, heads].
    inside: np.ndarray = field(metadata=CONJUNCTION)


@dataclass(frozen=True, kw_only=True)
class GroupSums(KeySums):
    """Sums over some query heads of each group, or over all of them: [B, Hkv, ..]."""


@dataclass(frozen=True, kw_only=True)
class HeadSums(KeySums):
    """Sums of each query head, [B, Hq, ..]."""

    def over_group(self, forward: Intermediates) -> GroupSums:
        """Return the sums over the query heads of ``forward`` that share a kv head, after all rows have been added."""
        grouped = (forward.problem.batch, forward.problem.kv_heads, forward.problem.group)
        return GroupSums(
            of_k=forward.over_group(self.of_k),
            of_v=forward.over_group(self.of_v),
            k_sums=self.k_sums.changed(forward.over_group),
            v_sums=self.v_sums.changed(forward.over_group),
            of_operand=None if self.of_operand is None else self.of_operand.changed(forward.over_group),
            alpha=widest_of_group(forward.problem, self.alpha),
            raised=self.raised,
            inside=np.all(self.inside.reshape(grouped), axis=-1),
        )


def widest_of_group(problem: Problem, of_heads: np.ndarray) -> np.ndarray:
    """Return the largest number [B, Hkv] of the query heads [B, Hq] that share a kv head."""
    return of_heads.reshape(problem.batch, problem.kv_heads, problem.group).max(axis=-1, initial=0.0)


@np.errstate(all="ignore")
def key_sums(errors: ScoreGradientError, keys: Keys = ALL) -> HeadSums:
    """Return the share of the rows of ``errors`` in the gradients of some keys, per query head."""
    forward, grad = errors.forward, errors.grad
    by_operands = forward.score.pairs is None and operand_error(forward, errors.contract) is not None
    return HeadSums(
        of_k=grad.of_k[:, :, keys],
        of_v=grad.of_v[:, :, keys],
        k_sums=_product_sums(errors, keys),
        v_sums=_value_sums(errors, keys),
        of_operand=operand_sums(errors, "k", keys) if by_operands else None,
        inside=np.all(errors.inside, axis=-1),
        alpha=evaluation_alpha(errors.near).max(axis=-1, initial=0.0),
        raised=forward.largest_factor,
    )


def operand_sums(errors: ScoreGradientError, name: str, keys: Keys = ALL) -> ProductSums:
    """Return the sums that the bound of the gradient of the operand "q", or "k" of some keys, is made of.

    It is a product of dS with the other operand, which has an error. Of a key ``n`` counts the queries of the head.
    """
    forward, dS_size = errors.forward, np.abs(errors.grad.dS) + errors.E_dS
    operands = operand_error(forward, errors.contract)
    assert operands is not None
    E_dS, seen, early = errors.E_dS, forward.visible, errors.early
    size, off, n, of_others = forward.k_size, operands.E_k, forward.keys, -2
    if name == "k":
        dS_size, E_dS, seen, early = (_of_keys(each, keys) for each in (dS_size, E_dS, seen, early))
        size, off, n, of_others = forward.q_size, operands.E_q, seen.sum(axis=-1)[..., None], -1
    # Of what nobody sees nothing need be known.
    off = np.where(np.any(forward.visible, axis=of_others)[..., None], off, 0.0)
    return ProductSums(
        own=term("errors of dS in the gradient of an operand", E_dS @ size)
        + term("errors of the other operand", dS_size @ off),
        total=dS_size @ (size + term("errors of the other operand in sizes", off)),
        seen=seen @ (size + term("errors of the other operand in underflow", off)),
        early=early @ (size + term("errors of the other operand in early underflow", off)),
        entered=dS_size.sum(-1, keepdims=True),
        n=n,
    )


def _product_sums(errors: ScoreGradientError, keys: Keys) -> ProductSums:
    """Return the sums that the bound of dk_j = sum_i dS_ij q_i is made of."""
    size = errors.forward.q_size
    dS_size = _of_keys(np.abs(errors.grad.dS) + errors.E_dS, keys)
    return ProductSums(
        own=_of_keys(errors.E_dS, keys) @ size,
        total=dS_size @ size,
        seen=_of_keys(errors.forward.visible, keys) @ size,
        early=_of_keys(errors.early, keys) @ size,
        entered=dS_size.sum(-1, keepdims=True),
        n=_of_keys(errors.forward.visible, keys).sum(axis=-1)[..., None],
    )


def _value_sums(errors: ScoreGradientError, keys: Keys) -> ValueSums:
    """Return the sums that the bound of dv_j = sum_i c_ij P_ij dO_i is made of."""
    contract, weights, dropped = errors.contract, errors.weights, errors.forward.dropped
    factor_eta = factor_underflow(errors.forward, contract, *weight_stages(contract), "gradients")
    size, given = cotangent_entering(errors.near, errors.grad, contract)
    P1A, weight_eta = (
        term("sums of weights that are raised", dropped(weights.most), weights.most),
        errors.forward.raised((weights.eta + factor_eta) * errors.forward.visible),
    )
    own = _of_keys(term("weights of dV that are raised", dropped(weights.change), weights.change), keys) @ size
    if given is not None:
        own = own + term("errors of cotangents in dv", _of_keys(dropped(errors.forward.P), keys) @ given)
    return ValueSums(
        own=own,
        total=_of_keys(P1A, keys) @ size,
        eta=_of_keys(weight_eta, keys) @ size,
        entered=_of_keys(P1A + weight_eta, keys).sum(axis=-1)[..., None],
        n=_of_keys(errors.forward.visible, keys).sum(axis=-1)[..., None],
    )


@np.errstate(all="ignore")
def bias_sums(errors: ScoreGradientError) -> BiasSums:
    """Return the share of the rows of ``errors`` in a bias's gradient; along axes it has, each row stands alone."""
    axes = errors.forward.problem.broadcast_axes("bias")
    return BiasSums(
        value=errors.grad.gradients["dbias"],
        own=errors.E_dA.sum(axis=axes, keepdims=True),
        total=(np.abs(errors.grad.dA) + errors.E_dA).sum(axis=axes, keepdims=True),
        n=errors.forward.visible.sum(axis=axes, keepdims=True),
    )


@np.errstate(all="ignore")
def sink_sums(errors: ScoreGradientError) -> BiasSums:
    """Return the share of the rows of ``errors`` in the gradient of sinks: that of the last key, of each row."""
    axes = errors.forward.problem.broadcast_axes("sinks")
    own, size = errors.E_dA[..., -1:], np.abs(errors.grad.dA[..., -1:])
    return BiasSums(
        value=errors.grad.gradients["dsinks"],
        own=own.sum(axis=axes, keepdims=True),
        total=(size + own).sum(axis=axes, keepdims=True),
        n=errors.forward.visible[..., -1:].sum(axis=axes, keepdims=True),
    )


def _of_keys(x: np.ndarray, keys: Keys) -> np.ndarray:
    """[.., Sq, Sk] as [.., keys, Sq]."""
    return x.swapaxes(-1, -2)[:, :, keys]
