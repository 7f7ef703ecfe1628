"""The backward pass of attention under any arithmetic: a contract, executed literally, one method per step.

:class:`TiledGradients` visits the tiles of keys that ``forward`` visits and computes their weights again from the
log-sum-exp. Source: Dao et al., "FlashAttention" (arXiv 2205.14135), appendix B.2. Each step is a seam: a mutant
(``reports.proof.zoo``) is a subclass that overrides one step. A mutant may override inherited steps of the forward
pass, such as the diagonal, the mask and the heads, for the backward pass only. Symbols are those of
``attn_spec.attention.gradients``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.attention.terms import BENDS, DESCALES, TERMS
from attn_spec.contract.contract import ResolvedContract

from .arithmetic import Order
from .forward import TiledAttention
from .operands import Execution, Number


class TiledGradients(TiledAttention):
    """One call of the backward pass. Tensors of a tile are [B, Hq, Sq, tile] or [B, Hq, tile, ..]."""

    #: Slope 1 - tanh(s / softcap)^2 of the tile, 1 without a softcap.
    slope: Any = 1.0
    #: Slopes of the other terms that bend the scores of the tile, by option.
    slopes_of_terms: dict[str, Any]

    def __init__(
        self, contract: ResolvedContract, order: Order, dout: Any, saved: tuple[Any, ...], **options: Any
    ) -> None:
        """Prepare the call; ``saved`` are q, k, v, out, lse of the forward pass."""
        self.slopes_of_terms = {}
        dlse, own = options.pop("dlse", None), options.pop("option_dtypes", {})
        self.without_values = options.pop("without_values", False)
        *qkv, out, lse = saved
        super().__init__(contract, order, *qkv, **options)
        self.q = self.of_queries_there(self.q)
        self.dO, self.O, self.L = self.read_cotangent(dout), self.read(out), self.read(lse)[..., None]
        self.dO, self.O, self.L = (self.of_queries_there(x) for x in (self.dO, self.O, self.L))
        if np.ndim(shift := self.row_shift()):
            self.L = self.add(self.L, shift, "softmax")
        self.dL = None if dlse is None else self.of_queries_there(self.read(dlse)[..., None])
        self.bias_shape = () if self.bias is None else tuple(options["bias"].shape)
        #: Dtypes of gradients by the tensor that they are of, if it has its own.
        self.gradient_dtypes = own

    def __call__(self) -> tuple[Any, ...]:
        """Return dQ, dK, dV and, if there are a bias or sinks, dBias and dSinks, each of the shape of its input.

        A call without values has dK + [dV, 0] in place of dK and dV.
        """
        heads = self.q.shape[1]
        dq = self.array(np.zeros(tuple(self.q.shape)))
        dk, dv = (self.array(np.zeros((len(x), heads, *x.shape[2:]))) for x in (self.k, self.v))
        dbias = self.array(np.zeros((*self.q.shape[:3], self.Sk)))
        of_sinks = self.array(np.zeros((*self.q.shape[:3], 1)))
        self.dS = self.array(np.zeros(dbias.shape if self.pair_scores is not None else 0))
        with np.errstate(all="ignore"):
            delta = self.delta()
            for self.tile in self.tiles():  # noqa: B020 - every step reads the current tile
                p = self.recompute_weights()
                dA = self.score_gradient(self.weights_of_scores(p), self.weight_gradient(), delta)
                wide = self.before_bends(dA)
                if self.pair_scores is not None:
                    self.place(self.dS.swapaxes(2, 3), wide.swapaxes(2, 3))
                dS = self.cast_score_gradient(wide)
                grown = self.accumulate_dq(dq, dS, self.operand_of_score_gradient(self.load_k()))
                dq = self.xp.where(grown == dq, dq, self.store(grown))  # unchanged sums are not rounded again
                self.place(dk, self.accumulate_over_queries(dS, self.operand_of_score_gradient(self.q)))
                self.place(dv, self.accumulate_over_queries(self.cast(self.drop(p)), self.cotangent()))
                of_scores = self.bias_gradient(dA)
                self.place(dbias.swapaxes(2, 3), of_scores.swapaxes(2, 3))
                if self.sinks is not None and (at_sink := self.tile.cols == self.Sk).any():
                    of_sinks = of_scores[..., at_sink]
            of_k, of_v = self.finish_dk(self.sum_over_group(dk)), self.finish_dv(self.sum_over_group(dv))
            scaled = [self.finish_dq(dq), self.key_gradient(of_k, of_v) if self.without_values else of_k]
            found = [self.stored_gradient(n, x, "score_accumulation") for n, x in zip("qk", scaled, strict=True)]
            if not self.without_values:
                found.append(self.stored_gradient("v", of_v))
            if self.bias is not None:
                found.append(self.stored_gradient("bias", self.reduce_bias(dbias)))
            if self.sinks is not None:
                found.append(self.stored_gradient("sinks", self.reduce_sinks(of_sinks)))
            return tuple(found)

    def stored_gradient(self, name: str, x: Any, source: str = "gradient_accumulation") -> Any:
        """Return the gradient of a tensor in its format: that of the tensor, if it has a dtype of its own."""
        return self.convert(x, self.gradient_dtypes.get(name, "gradients"), source)

    # Reading

    def read_cotangent(self, dout: Any) -> Any:
        """Return the values of dO."""
        return self.read(dout)

    def of_queries_there(self, x: Any) -> Any:
        """Return [B, Hq, Sq, ..] with 0 in rows behind the length of their sequence, of which nothing is known."""
        there = np.arange(self.Sq)[:, None] < self.sequences.used_queries
        return x if there.all() else self.xp.where(self.array(there), x, 0.0)

    def cotangent(self) -> Any:
        """Return dO rounded on entry to products."""
        return self.enter(self.dO, "output")

    # Weights

    def delta(self) -> Any:
        """Return delta - dL, [B, Hq, Sq, 1], for delta = rowsum(dO * O) or rowsum(P * dP), as the contract says."""
        if self.c.delta == "probabilities":
            return self.add_lse_cotangent(self.delta_of_weights())
        return self.shrunk(self.add_lse_cotangent(self.xp.broadcast_to(self.delta_of_output(), tuple(self.L.shape))))

    def delta_of_output(self) -> Any:
        """Return rowsum(dO * O)."""
        return self.accumulate(lambda c, x=self.dO * self.O: x[..., c, None], self.Dv, "score_accumulation")

    def delta_of_weights(self) -> Any:
        """Return rowsum(P * dP), in a separate pass over the keys."""
        delta = self.array(np.zeros(tuple(self.L.shape)))
        for self.tile in self.tiles():  # noqa: B020 - every step reads the current tile
            p, dP = self.weights_of_scores(self.recompute_weights()), self.weight_gradient()
            product = self.term_of_delta(p, dP)
            delta = self.accumulate(lambda j, x=product: x[..., j, None], p.shape[-1], "score_accumulation", delta)
        return delta

    def term_of_delta(self, p: Any, dP: Any) -> Any:
        """Return P * dP, as it enters the sum over the keys."""
        return self.round(p * dP, "stored_scores") if self.order.expands_dS else p * dP

    def add_lse_cotangent(self, delta: Any) -> Any:
        if self.dL is None:
            return delta
        dL = self.shrunk(self.dL) if self.c.delta == "probabilities" else self.dL  # dP has been shrunk, but not its sum
        return self.round(delta - dL, "score_accumulation")

    def recompute_weights(self) -> Any:
        """Return P = exp(s - L), 0 where masked."""
        return self.exponential(self.hide(self.subtract_lse(self.scores())))

    def weights_of_scores(self, p: Any) -> Any:
        """Return the weights that make dS: before or after their cast, as the contract says."""
        return self.cast(p) if self.c.score_gradients_of == "cast" else p

    def apply_term(self, name: str, s: Any) -> Any:
        y, slope = super().apply_term(name, s), TERMS[name].slope
        assert slope is not None
        before, after = (Number(x, "stored_scores", self) for x in (s, y))
        self.slopes_of_terms[name] = slope(Execution(self), before, after, self.given_numbers()).values
        return y

    def apply_factors(self, s: Any) -> Any:
        self.slopes_of_terms |= {name: self.descales(name) for name in DESCALES if name in self.bends}
        return super().apply_factors(s)

    def apply_descale(self, name: str, s: Any) -> Any:
        self.slopes_of_terms[name] = self.descales(name)
        return super().apply_descale(name, s)

    def apply_softcap(self, s: Any) -> Any:
        capped = super().apply_softcap(s)
        self.slope = 1.0 if self.softcap is None else self.softcap_slope(s, capped)
        return capped

    def softcap_slope(self, s: Any, capped: Any) -> Any:  # noqa: ARG002 - a mutant reads it
        """Return 1 - tanh(s / softcap)^2 of the score before the softcap, 0 where masked."""
        if not self.folds_softcap:
            s = self.times(s, self.round(1 / self.constant(self.softcap), "score_accumulation"), "stored_scores")
        t = self.tanh(s)
        slope = self.round(1 - self.round(t * t, "stored_scores"), "stored_scores")
        return self.xp.where(self.tile.visible, slope, 0.0)

    # Gradients of scores

    def weight_gradient(self) -> Any:
        """Return dP = dO v^T of the tile, 0 where masked, even if the masked values are NaN."""
        dO, v = self.cotangent(), self.enter_values(self.load_v())
        dP = self.add_products(lambda c: (dO[..., c, None], v[..., None, :, c]), self.Dv, "gradient_accumulation")
        dP = self.convert(dP, "weight_gradients", "gradient_accumulation")
        return self.xp.where(self.tile.visible, self.drop_gradient(dP), 0.0)

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:
        """Return dA = P (dP - delta), or P dP - P delta."""
        if self.order.expands_dS and self.c.delta == "probabilities":
            first, second = (self.round(p * x, "stored_scores") for x in (dP, delta))
            return self.round(first - second, "stored_scores")
        return self.round(p * self.round(dP - delta, "score_accumulation"), "stored_scores")

    @property
    def scaled(self) -> str:
        """Target of the scale: "operands", or as the order says "products", "dS" or the "slope" of a softcap."""
        if self.scales_operands:
            return "operands"
        wanted = self.order.gradient_scaling
        has_none = (wanted == "slope" and self.softcap is None) or (wanted == "dS" and self.pair_scores is not None)
        return "products" if has_none else wanted

    def before_bends(self, dA: Any) -> Any:
        """Return dS: dA times the slope of each term that bends the score, the last first."""
        for name in reversed(BENDS):
            if name == "softcap":
                dA = self.through_softcap(dA)
            elif name in self.bends:
                slope = self.xp.where(self.tile.visible, self.slopes_of_terms[name], 0.0)
                dA = self.round(dA * slope, "stored_scores")
        return dA

    def through_softcap(self, dA: Any) -> Any:
        if self.softcap is None:
            return dA
        folds = self.scaled == "slope"
        slope = self.times(self.slope, self.scale_over_softcap(), "stored_scores") if folds else self.slope
        return self.round(dA * slope, "stored_scores")

    def cast_score_gradient(self, dS: Any) -> Any:
        if self.scaled == "dS":
            dS = self.times(dS, self.factor(), "stored_scores")
        return self.enter(self.convert(dS, "score_gradients", "stored_scores"), "score_gradients")

    # Sums

    def operand_of_score_gradient(self, x: Any) -> Any:
        """Return k or q as the factor of dS; if the contract scales operands, half of the scale multiplies it first."""
        if not self.scales_operands:
            return self.enter(x)
        return self.enter(self.times(x, self.root(), "stored_scores"), "stored_scores")

    def accumulate_dq(self, dq: Any, dS: Any, k: Any) -> Any:
        """Return dQ + dS k over the keys of the tile whose dS is not zero: 0 times a masked NaN would be NaN."""
        return self.weighted_sum(dS, k, "gradient_accumulation", dq)

    def accumulate_over_queries(self, w: Any, x: Any) -> Any:
        """Return sum_i w_ij x_i for each key of the tile: [B, Hq, Sq, tile], [B, Hq, Sq, ..] -> [B, Hq, tile, ..]."""
        if not self.Sq:
            return self.array(np.zeros((*w.shape[:2], w.shape[3], x.shape[3])))
        return self.add_products(lambda i: (w[:, :, i, :, None], x[:, :, i, None]), self.Sq, "gradient_accumulation")

    def place(self, whole: Any, part: Any) -> None:
        """Write the rows of a tile of keys into [B, Hq, Sk, ..], without rows past the last key."""
        exists = self.tile.cols < self.Sk
        whole[:, :, self.tile.cols[exists]] = part[:, :, exists]

    def store(self, partial: Any) -> Any:
        """Return a partial sum as it is stored in memory until its next term."""
        return self.convert(partial, "partial_gradients", "gradient_accumulation")

    def sum_over_group(self, per_head: Any) -> Any:
        """Add the query heads that share a kv head, in order: [B, Hq, ..] -> [B, Hkv, ..]."""
        heads = self.k.shape[1]
        members = per_head.reshape(len(per_head), heads, per_head.shape[1] // heads, *per_head.shape[2:])
        total = self.store(members[:, :, 0])
        for member in range(1, members.shape[2]):
            total = self.store(self.add(total, members[:, :, member], "gradient_accumulation"))
        return total

    # Results

    def scaled_score_gradient(self) -> Any:
        """Return dS times the rest of the scale, for scores that are no products."""
        return self.convert(self.apply_rest_of_scale(self.dS), "stored_scores", "score_accumulation")

    def finish_dq(self, dq: Any) -> Any:
        return self.apply_rest_of_scale(dq)

    def finish_dk(self, dk: Any) -> Any:
        return self.apply_rest_of_scale(dk)

    def key_gradient(self, dk: Any, dv: Any) -> Any:
        """Return dK + [dV, 0], where the values are the first columns of the keys."""
        whole = self.array(np.zeros(tuple(dk.shape))) + dk
        of_values = slice(dv.shape[-1])
        both = self.store(dk[..., of_values]), self.store(dv)
        whole[..., of_values] = self.add(*both, "gradient_accumulation")
        return whole

    def apply_rest_of_scale(self, x: Any) -> Any:
        """Multiply by the scale, or by what remains of it after operands, dS or the slope of the softcap."""
        match self.scaled:
            case "dS":
                return self.raised(x, "gradients", "score_accumulation")
            case "operands":
                rest = self.xp.sign(self.factor()) * self.root()
            case "slope":
                rest = self.constant(self.softcap)
            case _:
                rest = self.factor()
        return self.times(x, self.last_factor(rest), "score_accumulation")

    def bias_gradient(self, dA: Any) -> Any:
        """Return dA as it is written for the gradient of the bias."""
        return self.convert(self.raised(dA, "gradients", "score_accumulation"), "score_gradients", "stored_scores")

    def reduce_bias(self, dA: Any) -> Any:
        """Sum over the axes along which the bias was broadcast, one after the other."""
        return self.reduced(dA, self.bias_shape)

    def reduce_sinks(self, dA: Any) -> Any:
        """Sum the gradients of a sink [B, Hq, Sq, 1] over rows, batch entries, and heads that share it."""
        return self.reduced(dA, tuple(self.sinks.shape)) if self.sinks is not None else dA

    def reduced(self, dA: Any, shape: tuple[int, ...]) -> Any:
        """Sum over the axes of length 1 in ``shape``, one after the other."""
        for axis in (axis for axis, length in enumerate(shape) if length == 1):
            dA = self.sum_over(dA, axis)
        return self.store(dA)

    @staticmethod
    def differentiated(options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the inputs whose gradients a call with these options returns, in order."""
        keys = ("kv",) if options.get("without_values") else ("k", "v")
        return ("q", *keys, *(name for name in ("bias", "sinks") if options.get(name) is not None))

    def sum_over(self, x: Any, axis: int) -> Any:
        """Sum over an axis, which stays with length 1."""
        if not (length := x.shape[axis]):
            return x.sum(axis, keepdims=True)
        pick = (slice(None),) * axis
        return self.accumulate(lambda n: x[(*pick, slice(n, n + 1))], length, "gradient_accumulation")


class StoredWeights(TiledGradients):
    """The backward pass of eager attention: all keys in one tile, P stored by the forward pass."""

    def recompute_weights(self) -> Any:
        s = self.scores()
        m = self.update_max(self.array(np.full(tuple(self.L.shape), -np.inf)), self.tile_max(s))
        p = self.weights(self.hide(s), m)
        l = self.accumulate_row_sum(self.array(np.zeros(tuple(self.L.shape))), p)
        return p if self.c.normalize == "by_lse" else self.normalized_weights(p, l)


class DifferentiatedProduct(StoredWeights):
    """The backward pass that a framework derives from p.to(dtype) @ v / l: dO / l for v and for weights before l.

    Weights and l are those of the forward pass, whose output is (p v) / l before its cast. The remaining gradient of
    the maximum goes to the first key that attains it.
    """

    #: The weights and dP, which are computed once.
    kept: Any = None
    kept_gradient: Any = None
    #: The row sum of each row, 1 where the row sees no key; and its largest score, bool [B, Hq, Sq, Sk].
    l: Any
    largest: Any

    def delta_of_output(self) -> Any:
        """Return rowsum(dO * O) of the output before its cast."""
        for self.tile in self.tiles():  # noqa: B020 - the only tile, if there is any
            w, nothing = self.cast(self.drop(self.recompute_weights())), self.array(np.zeros(tuple(self.O.shape)))
            o = self.divide(self.accumulate_output(nothing, w, self.load_v()), self.l)
            self.O = self.descaled_output(self.raised(o, "output"))
        return super().delta_of_output()

    def recompute_weights(self) -> Any:
        if self.kept is not None:
            return self.kept
        s = self.scores()
        m = self.update_max(self.array(np.full(tuple(self.L.shape), -np.inf)), self.tile_max(s))
        p = self.weights(self.hide(s), m)
        attained = self.hide(s) == self.tile_max(s)
        self.largest = attained & (self.xp.cumsum(attained, axis=-1) == 1) & self.tile.visible
        self.l = self.nonzero(self.accumulate_row_sum(self.array(np.zeros(tuple(self.L.shape))), p))
        self.kept = p
        return p

    def weight_gradient(self) -> Any:
        if self.kept_gradient is None:
            self.kept_gradient = super().weight_gradient()
        return self.kept_gradient

    def cotangent(self) -> Any:
        """Return dO / l, in the format of dP."""
        return self.enter(self.convert(self.divide(self.dO, self.l), "weight_gradients", "softmax"), "weight_gradients")

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:
        found = super().score_gradient(p, dP, self.divide(delta, self.l))
        if self.c.reference != "maximum":
            return found
        start = 0.0 if self.dL is None else -self.dL
        left = self.accumulate(lambda j: found[..., j, None], found.shape[-1], "score_accumulation", start)
        return self.xp.where(self.largest, self.round(found - left, "stored_scores"), found)
