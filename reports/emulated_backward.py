"""The backward pass of attention under any arithmetic: a contract, executed literally, one method per step.

:class:`TiledGradients` visits the tiles of keys that ``emulated`` visits and computes their weights again from the
log-sum-exp, as in Dao et al., "FlashAttention" (arXiv 2205.14135), appendix B.2. Each step is a seam: a mutant
(``mutants_backward``) is a subclass that overrides a single one, and what it inherits from the forward pass (the
diagonal, the mask, the heads) it may get wrong here alone. Symbols are those of ``attn_spec.gradients``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attn_spec import bits
from attn_spec.contract import Contract
from attn_spec.kernels import Kernel

from .arithmetic import Order
from .emulated import SUPPORTS, TiledAttention, emulate


class TiledGradients(TiledAttention):
    """One call. Tensors of a tile are [B, Hq, Sq, tile] or [B, Hq, tile, ..]."""

    #: 1 - tanh(s / softcap)^2 of the tile, 1 without a softcap.
    slope: np.ndarray | float = 1.0

    def __init__(self, contract: Contract, order: Order, dout: Any, saved: tuple[Any, ...], **options: Any) -> None:
        """``saved`` are q, k, v, out, lse of the forward pass."""
        dlse = options.pop("dlse", None)
        *qkv, out, lse = saved
        super().__init__(contract, order, *qkv, **options)
        self.dO, self.O, self.L = self.read_cotangent(dout), bits.values_of(out), bits.values_of(lse)[..., None]
        self.dL = None if dlse is None else bits.values_of(dlse)[..., None]
        self.bias_shape = None if self.bias is None else tuple(options["bias"].shape)

    def __call__(self) -> tuple[np.ndarray, ...]:
        """dQ, dK, dV and, if there is a bias, dBias, each of the shape of its input."""
        heads = self.q.shape[1]
        dq = np.zeros(self.q.shape)
        dk, dv = (np.zeros((len(x), heads, *x.shape[2:])) for x in (self.k, self.v))
        dbias = np.zeros((*self.q.shape[:3], self.Sk))
        with np.errstate(all="ignore"):
            delta = self.delta()
            for self.tile in self.tiles():  # noqa: B020 - the current tile, which every step reads
                p = self.recompute_weights()
                dA = self.score_gradient(p, self.weight_gradient(), delta)
                dS = self.cast_score_gradient(self.through_softcap(dA))
                dq = self.store(self.accumulate_dq(dq, dS, self.scale_operand(self.load_k())))
                self.place(dk, self.accumulate_over_queries(dS, self.scale_operand(self.enter(self.q))))
                self.place(dv, self.accumulate_over_queries(self.cast(p), self.enter(self.dO)))
                self.place(dbias.swapaxes(2, 3), dA.swapaxes(2, 3))
            found = [self.finish_dq(dq), self.finish_dk(self.sum_over_group(dk)), self.sum_over_group(dv)]
            if self.bias_shape is not None:
                found.append(self.reduce_bias(dbias))
            return tuple(self.round(x, "output") for x in found)

    # Reading

    def read_cotangent(self, dout: Any) -> np.ndarray:
        """The values of dO."""
        return bits.values_of(dout)

    # Weights

    def delta(self) -> np.ndarray:
        """delta = rowsum(dO * O), less dL: [B, Hq, Sq, 1]."""
        columns = self.O.shape[-1]
        delta = self.accumulate(lambda c: self.dO[..., c, None] * self.O[..., c, None], columns, "score_accumulation")
        return self.add_lse_cotangent(np.broadcast_to(delta, self.L.shape))

    def add_lse_cotangent(self, delta: np.ndarray) -> np.ndarray:
        return delta if self.dL is None else self.round(delta - self.dL, "score_accumulation")

    def recompute_weights(self) -> np.ndarray:
        """P = exp(s - L), 0 where hidden."""
        return self.exponential(self.hide(self.subtract(self.scores(), self.change_base(self.L))))

    def apply_softcap(self, s: np.ndarray) -> np.ndarray:
        capped = super().apply_softcap(s)
        self.slope = 1.0 if self.softcap is None else self.softcap_slope(s, capped)
        return capped

    def softcap_slope(self, s: np.ndarray, capped: np.ndarray) -> np.ndarray:  # noqa: ARG002 - a mutant reads it
        """1 - tanh(s / softcap)^2 of the score before the softcap, 0 where hidden."""
        t = self.tanh(self.round(s * self.round(1 / self.softcap, "score_accumulation"), "stored_scores"))
        slope = self.round(1 - self.round(t * t, "stored_scores"), "stored_scores")
        return np.where(self.tile.visible, slope, 0.0)

    # Gradients of scores

    def weight_gradient(self) -> np.ndarray:
        """dP = dO v^T of the tile, 0 where hidden, whatever is there."""
        dO, v = self.enter(self.dO), self.load_v()
        dP = self.accumulate(lambda c: dO[..., c, None] * v[..., None, :, c], self.Dv, "gradient_accumulation")
        return np.where(self.tile.visible, self.round(dP, "stored_scores"), 0.0)

    def score_gradient(self, p: np.ndarray, dP: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """dA = P (dP - delta)."""
        return self.round(p * self.round(dP - delta, "score_accumulation"), "stored_scores")

    def through_softcap(self, dA: np.ndarray) -> np.ndarray:
        return dA if self.softcap is None else self.round(dA * self.slope, "stored_scores")

    def cast_score_gradient(self, dS: np.ndarray) -> np.ndarray:
        return self.enter(self.round(dS, "score_gradients"))

    # Sums

    def root(self) -> np.ndarray:
        """The square root of the scale as the kernel holds it."""
        return self.round(np.sqrt(np.abs(self.factor())), "score_accumulation")

    def scale_operand(self, x: np.ndarray) -> np.ndarray:
        """k or q as it meets dS: multiplied by half of the scale already under a contract that scales operands."""
        return self.round(self.root() * x, "stored_scores") if self.c.scale_on == "operands" else x

    def accumulate_dq(self, dq: np.ndarray, dS: np.ndarray, k: np.ndarray) -> np.ndarray:
        """dQ + dS k over the keys of the tile whose dS is not zero: 0 times a hidden NaN would be NaN."""

        def product(j: int) -> np.ndarray:
            return np.where(dS[..., j, None] == 0, 0.0, dS[..., j, None] * k[:, :, None, j])

        return self.accumulate(product, dS.shape[-1], "gradient_accumulation", dq)

    def accumulate_over_queries(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """sum_i w_ij x_i for each key of the tile: [B, Hq, Sq, tile], [B, Hq, Sq, ..] -> [B, Hq, tile, ..]."""
        if not self.Sq:
            return np.zeros((*w.shape[:2], w.shape[3], x.shape[3]))
        return self.accumulate(lambda i: w[:, :, i, :, None] * x[:, :, i, None], self.Sq, "gradient_accumulation")

    def place(self, whole: np.ndarray, part: np.ndarray) -> None:
        """Write the rows of a tile of keys into [B, Hq, Sk, ..]; those past the end do not exist."""
        exists = self.tile.cols < self.Sk
        whole[:, :, self.tile.cols[exists]] = part[:, :, exists]

    def store(self, partial: np.ndarray) -> np.ndarray:
        """A sum that waits in memory for its next term."""
        return self.round(partial, "partial_gradients")

    def sum_over_group(self, per_head: np.ndarray) -> np.ndarray:
        """Add the query heads that share a kv head, in order: [B, Hq, ..] -> [B, Hkv, ..]."""
        heads = self.k.shape[1]
        members = per_head.reshape(len(per_head), heads, per_head.shape[1] // heads, *per_head.shape[2:])
        total = np.zeros(self.k.shape[:3] + per_head.shape[3:])
        for member in range(members.shape[2]):
            total = self.store(self.round(total + members[:, :, member], "gradient_accumulation"))
        return total

    # Results

    def finish_dq(self, dq: np.ndarray) -> np.ndarray:
        return self.apply_rest_of_scale(dq)

    def finish_dk(self, dk: np.ndarray) -> np.ndarray:
        return self.apply_rest_of_scale(dk)

    def apply_rest_of_scale(self, x: np.ndarray) -> np.ndarray:
        """The scale, or what :meth:`scale_operand` left of it."""
        factor = np.sign(self.factor()) * self.root() if self.c.scale_on == "operands" else self.factor()
        return self.round(x * factor, "score_accumulation")

    def reduce_bias(self, dA: np.ndarray) -> np.ndarray:
        """Sum over the axes along which the bias was broadcast, one after the other."""
        for axis, length in enumerate(self.bias_shape):
            if length == 1:
                dA = self.sum_over(dA, axis)
        return dA

    def sum_over(self, x: np.ndarray, axis: int) -> np.ndarray:
        """Sum over an axis, which is kept."""
        if x.shape[axis] == 0:
            return x.sum(axis, keepdims=True)
        return self.accumulate(lambda n: np.take(x, [n], axis), x.shape[axis], "gradient_accumulation")


class StoredWeights(TiledGradients):
    """The backward pass of eager attention: all keys in one tile, P kept by the forward pass, delta = rowsum(P dP)."""

    def recompute_weights(self) -> np.ndarray:
        s = self.scores()
        p = self.weights(self.hide(s), self.tile_max(s))
        l = self.accumulate_row_sum(np.zeros(self.L.shape), p)
        return self.cast_probabilities(p, l)

    def score_gradient(self, p: np.ndarray, dP: np.ndarray, delta: np.ndarray) -> np.ndarray:
        delta = self.accumulate(lambda j: p[..., j, None] * dP[..., j, None], p.shape[-1], "score_accumulation")
        return super().score_gradient(p, dP, self.add_lse_cotangent(delta))


def emulate_both(
    name: str,
    executes: Contract | Mapping[str, Contract],
    order: Order | None = None,
    *,
    gradients: type[TiledGradients] = TiledGradients,
    supports: Iterable[str] = SUPPORTS,
    **declared: Any,
) -> Kernel:
    """A kernel of :func:`emulated.emulate`, and its backward pass under the same contract and in the same order."""
    made = emulate(name, executes, order, supports=(*supports, "lse_backward"), **declared)

    @made.backward
    def attention_gradients(dout: Any, *saved: Any, **options: Any) -> tuple[Any, ...]:
        dtype = bits.dtype_name(dout)
        c = (executes[dtype] if isinstance(executes, Mapping) else executes).at(dtype)
        found = gradients(c, order or Order(), dout, saved, **options)()
        return tuple(bits.to_torch(x, c.output) for x in found)

    return made
