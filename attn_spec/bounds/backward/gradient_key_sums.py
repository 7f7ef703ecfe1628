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
from attn_spec.contract.terms import term

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
    k: ProductSums
    v: ValueSums
    #: The largest error of a weight's own evaluation, [B], and the largest factor of dropout.
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

    def over_group(self, x: Intermediates) -> GroupSums:
        """The sums over the query heads of ``x`` that share a kv head, when all rows have been added."""
        grouped = (x.problem.batch, x.problem.kv_heads, x.problem.group)
        return GroupSums(
            of_k=x.over_group(self.of_k),
            of_v=x.over_group(self.of_v),
            k=self.k.changed(x.over_group),
            v=self.v.changed(x.over_group),
            alpha=self.alpha,
            raised=self.raised,
            inside=np.all(self.inside.reshape(grouped), axis=-1),
        )


@np.errstate(all="ignore")
def key_sums(b: ScoreGradientError, keys: Keys = ALL) -> HeadSums:
    """Return the share of the rows of ``b`` in the gradients of some keys, per query head."""
    x, g = b.x, b.g
    return HeadSums(
        of_k=g.of_k[:, :, keys],
        of_v=g.of_v[:, :, keys],
        k=_product_sums(b, keys),
        v=_value_sums(b, keys),
        inside=np.all(b.inside, axis=-1),
        alpha=evaluation_alpha(b.near).max(axis=(1, 2), initial=0.0),
        raised=x.largest_factor,
    )


def _product_sums(b: ScoreGradientError, keys: Keys) -> ProductSums:
    """Return the sums that the bound of dk_j = sum_i dS_ij q_i is made of."""
    size = b.x.q_size
    dS = _of_keys(np.abs(b.g.dS) + b.dS, keys)
    return ProductSums(
        own=_of_keys(b.dS, keys) @ size,
        total=dS @ size,
        seen=_of_keys(b.x.visible, keys) @ size,
        early=_of_keys(b.early, keys) @ size,
        entered=dS.sum(-1, keepdims=True),
        n=_of_keys(b.x.visible, keys).sum(axis=-1)[..., None],
    )


def _value_sums(b: ScoreGradientError, keys: Keys) -> ValueSums:
    """Return the sums that the bound of dv_j = sum_i c_ij P_ij dO_i is made of."""
    c, w, dropped = b.c, b.weights, b.x.dropped
    factor_eta = factor_underflow(b.x, c, *weight_stages(c), "gradients")
    size, given = cotangent_entering(b.near, b.g, c)
    P1A, weight_eta = (
        term("sums of weights that are raised", dropped(w.most), w.most),
        dropped((w.eta + factor_eta) * b.x.visible),
    )
    own = _of_keys(term("weights of dV that are raised", dropped(w.change), w.change), keys) @ size
    if given is not None:
        own = own + term("errors of cotangents in dv", _of_keys(dropped(b.x.P), keys) @ given)
    return ValueSums(
        own=own,
        total=_of_keys(P1A, keys) @ size,
        eta=_of_keys(weight_eta, keys) @ size,
        entered=_of_keys(P1A + weight_eta, keys).sum(axis=-1)[..., None],
        n=_of_keys(b.x.visible, keys).sum(axis=-1)[..., None],
    )


@np.errstate(all="ignore")
def bias_sums(b: ScoreGradientError) -> BiasSums:
    """Return the share of the rows of ``b`` in a bias's gradient; along axes that it has, each row stands alone."""
    axes = b.x.problem.broadcast_axes("bias")
    return BiasSums(
        value=b.g.gradients["dbias"],
        own=b.dA.sum(axis=axes, keepdims=True),
        total=(np.abs(b.g.dA) + b.dA).sum(axis=axes, keepdims=True),
        n=b.x.visible.sum(axis=axes, keepdims=True),
    )


def _of_keys(x: np.ndarray, keys: Keys) -> np.ndarray:
    """[.., Sq, Sk] as [.., keys, Sq]."""
    return x.swapaxes(-1, -2)[:, :, keys]
