"""Quantisers of a contract, executed: what a kernel makes of q, k and v before it attends to their codes.

Each step is a seam: a mutant (``reports.proof.zoo``) is a subclass of :class:`QuantisingAttention` that overrides one
step. The steps are written apart from the replay that judges them (``bounds.replay``).
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.quantisers import Quantiser
from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EVERY
from attn_spec.numbers.formats import SCALES as POWERS

from .arithmetic import Order
from .forward import TiledAttention
from .sequences import Sequences, sequences_of

#: NumPy types of the arithmetic of quantisers.
_TYPES: dict[str, Any] = {"float32": np.float32, "float64": np.float64}


class Quantising:
    """Steps of a kernel that quantises, ahead of those of an attention that it is mixed with."""

    def __init__(self, contract: ResolvedContract, order: Order, q: Any, k: Any, v: Any, **options: Any) -> None:
        given = {"q": q, "k": k, "v": v}
        #: Draws of stochastic rounding, the same in each call.
        self.chance = np.random.default_rng(order.seed)
        self.where = sequences_of(q.shape[2], k.shape[2], options)
        #: Mean that is subtracted from keys, [B, Hkv, 1, D]; None if nothing is.
        self.mean: np.ndarray | None = None
        self.given_q = values_of(q)
        made: dict[str, Any] = dict(options)
        with np.errstate(all="ignore"):
            for quantiser in contract.quantisers:
                if quantiser.is_of_appended:  # a call has written codes and scales to its caches
                    continue
                name = quantiser.of
                x = bits.nearest(values_of(given[name]), quantiser.arithmetic)
                if quantiser.subtracts:
                    self.mean_dtype = of(k).dtype_of(k) if quantiser.mean_dtype == "input" else quantiser.mean_dtype
                    self.mean = self.mean_of_keys(quantiser, x, order)
                    x = bits.nearest(x - self.mean, self.mean_dtype)
                if quantiser.rotates:
                    x = self.rotated(quantiser, x, of(given[name]).dtype_of(given[name]), order)
                if quantiser.columns is not None:
                    given[name], own = self.codes_times_scales(quantiser, x)
                    if quantiser.second_level:
                        made[f"{name}_descale"] = self.scales_of_products(quantiser, own)[:, :, :1]
                    continue
                scales = self.scales(quantiser, self.largest_of_blocks(quantiser, x))
                given[name] = self.codes(quantiser, x, scales)
                own = self.scales_of_products(quantiser, scales)
                shared = not isinstance(quantiser.block, int) and own.shape[2] > 1
                made[f"{name}_descale"] = own[:, :, :1] if shared else own
        super().__init__(contract, order, *given.values(), **made)  # type: ignore[call-arg]

    # Quantisers

    def counts(self, quantiser: Quantiser, length: int) -> np.ndarray:
        """Return the tokens that a quantiser looks at, bool [B, 1, S, 1], or one for all batch entries."""
        t = np.arange(length)[:, None]
        if quantiser.over != "sequence":
            return np.ones((1, 1, length, 1), dtype=bool)
        first, end = self.ends(quantiser)
        inside = np.asarray((first <= t) & (t < end))
        return inside if inside.ndim == 4 else inside[None, None]

    def ends(self, quantiser: Quantiser) -> tuple[Any, Any]:
        """Return the first token of each sequence, and the end, integers [B, 1, 1, 1]."""
        where: Sequences = self.where
        return (0, where.used_queries) if quantiser.of == "q" else (where.first_keys, where.end_keys)

    def mean_of_keys(self, quantiser: Quantiser, k: np.ndarray, order: Order) -> np.ndarray:
        """Return the mean of the keys that count, [B, Hkv, 1, D], summed one by one in the quantiser's arithmetic."""
        form, there = _TYPES[quantiser.arithmetic], self.counts(quantiser, k.shape[2])
        visited = np.arange(k.shape[2])
        if order.sums == "random":
            visited = np.random.default_rng(order.seed).permutation(visited)
        total = np.zeros((*k.shape[:2], k.shape[3]), dtype=form)
        for j in visited:
            total = total + np.where(there[:, :, j], k[:, :, j], 0.0).astype(form)
        number = np.broadcast_to(there.sum(axis=2), (k.shape[0], 1, 1)).astype(form)
        return bits.nearest((total / np.maximum(number, 1)).astype(np.float64), self.mean_dtype)[:, :, None]

    def largest_of_blocks(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        """Return the largest magnitude of the block of each token, [B, H, S, 1], or of each number, [B, H, S, D]."""
        size = np.where(self.counts(quantiser, x.shape[2]), np.abs(x), 0.0)
        columns = self.block_of_columns(quantiser, x.shape[-1])
        size = np.stack([size[..., columns == one].max(axis=-1, initial=0.0) for one in columns], axis=-1)
        size = size[..., :1] if quantiser.columns is None else size
        if quantiser.block == "tensor":
            return np.broadcast_to(size.max(axis=(0, 1, 2), keepdims=True, initial=0.0), size.shape)
        found = np.zeros(size.shape)
        for b in range(len(x)):
            block = self.block_of_tokens(quantiser, b, x.shape[2])
            for number in dict.fromkeys(block.tolist()):
                inside = block == number
                found[b][:, inside] = size[b][:, inside].max(axis=1, keepdims=True, initial=0.0)
        return found

    def block_of_tokens(self, quantiser: Quantiser, entry: int, length: int) -> np.ndarray:
        """Return a number for each token of a batch entry: tokens of one number share a scale."""
        if not isinstance(quantiser.block, int):
            return np.zeros(length, dtype=np.int64)
        first, _ = self.ends(quantiser)
        begins = np.ravel(first)[min(entry, np.size(first) - 1)] if quantiser.over == "sequence" else 0
        t = np.arange(length) - begins
        lane = t % quantiser.block // quantiser.lane_width % quantiser.lanes
        return t // quantiser.block * quantiser.lanes + lane

    def block_of_columns(self, quantiser: Quantiser, head_dim: int) -> np.ndarray:
        """Return a number for each column: columns of one number share a scale."""
        return np.arange(head_dim) // (quantiser.columns or max(head_dim, 1))

    def scales(self, quantiser: Quantiser, most: np.ndarray) -> np.ndarray:
        """Return the scales of blocks from their largest magnitudes, which have the same shape."""
        if quantiser.scale is not None:
            return np.full(most.shape, self.stored_scale(quantiser, np.array(quantiser.scale)))
        form = _TYPES[quantiser.arithmetic]
        s = most.astype(form) / form(quantiser.most) + form(quantiser.epsilon)
        s = np.maximum(s, form(quantiser.least_scale))
        return self.stored_scale(quantiser, s.astype(np.float64))

    def stored_scale(self, quantiser: Quantiser, s: np.ndarray) -> np.ndarray:
        """Return positive scales in their format; 0 stays."""
        form, way = quantiser.scale_dtype, quantiser.scale_rounding
        if form in POWERS:
            fraction, exponent = np.frexp(s)  # fractions from 1/2 on, below 1
            raised = {"up": fraction > 0.5, "down": False, "nearest_even": fraction >= 0.75}[way]
            return np.where(s > 0, np.ldexp(1.0, exponent - 1 + np.asarray(raised)), s)
        y = bits.nearest(s, form)
        step = bits.spacing(y, form)
        if way == "up":
            return np.where(y < s, y + step, y)
        below = y - np.where(np.frexp(y)[0] == 0.5, bits.spacing(y / 2, form), step)
        return np.where((way == "down") & (y > s), below, y)

    # Blocks of columns

    def codes_times_scales(self, quantiser: Quantiser, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return codes times the scales of their blocks [B, H, S, D], and scales of the second level [B, H, S, 1]."""
        second, most = self.second_scales(quantiser, x), self.largest_of_blocks(quantiser, x)
        if quantiser.second_level:
            scales = self.scales_in_two_levels(quantiser, most, second)
            divisor = self.divisor(quantiser, scales, second)
        else:
            scales = divisor = self.scales(quantiser, most)
        return self.codes(quantiser, x, divisor) * self.scales_of_codes(quantiser, scales), second

    def second_scales(self, quantiser: Quantiser, x: np.ndarray) -> np.ndarray:
        """Return the scale of a head or of the tensor, for each token; 1 without a second level."""
        if not quantiser.second_level:
            return np.ones((*x.shape[:3], 1))
        form = _TYPES[quantiser.arithmetic]
        whole = replace(quantiser, block=quantiser.second_level, columns=None, second_level=None, lanes=1)
        most = self.largest_of_blocks(whole, x).astype(form)
        largest = EVERY[quantiser.scale_dtype].largest
        if quantiser.division_error >= 2:  # where a division may be off, the two constants may divide one by one
            g = most / form(quantiser.most) / form(largest)
        else:
            g = most / form(quantiser.most * largest)
        return g.astype(np.float32).astype(np.float64)

    def scales_in_two_levels(self, quantiser: Quantiser, most: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the scales of blocks over those of the second level, which saturate; 0 of a block of zeros."""
        form = _TYPES[quantiser.arithmetic]
        s = (most.astype(form) / form(quantiser.most) / second.astype(form)).astype(np.float64)
        s = np.minimum(np.where(most == 0, 0.0, s), EVERY[quantiser.scale_dtype].largest)
        return self.stored_scale(quantiser, s)

    def divisor(self, quantiser: Quantiser, scales: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the product of both scales, which divides numbers."""
        form = _TYPES[quantiser.arithmetic]
        return (scales.astype(form) * second.astype(form)).astype(np.float64)

    def scales_of_codes(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:  # noqa: ARG002 - a seam
        """Return the scales of blocks of columns, which multiply codes."""
        return scales

    # Rotation

    def rotated(self, quantiser: Quantiser, x: np.ndarray, dtype: str, order: Order) -> np.ndarray:
        """Return vectors of q or k, each times the signs and the orthogonal matrix of the quantiser."""
        form, D = _TYPES[quantiser.arithmetic], x.shape[-1]
        n = next(2**e for e in range(D.bit_length(), -1, -1) if D % 2**e == 0)
        y = (x * self.signs(quantiser, D)).astype(form).reshape(*x.shape[:-1], D // n, n)
        y = self.in_steps(y) if order.sums == "pairwise" else self.by_rows(y)
        stored = dtype if quantiser.rotated_dtype == "input" else quantiser.rotated_dtype
        return bits.nearest(y.reshape(x.shape).astype(np.float64), stored)

    def signs(self, quantiser: Quantiser, head_dim: int) -> np.ndarray:
        """Return the sign of each column, [D]."""
        given = quantiser.signs or (1,)
        return np.array([given[d % len(given)] for d in range(head_dim)], dtype=np.float64)

    def in_steps(self, y: np.ndarray) -> np.ndarray:
        """Return y H / sqrt(n) for y [.., n], in log2(n) steps, each of which is multiplied by 1 / sqrt(2)."""
        n, half = y.shape[-1], 1
        while half < n:
            pairs = y.reshape(*y.shape[:-1], n // (2 * half), 2, half)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            y = np.stack([a + b, a - b], axis=-2).reshape(y.shape) * y.dtype.type(math.sqrt(0.5))
            half *= 2
        return y

    def by_rows(self, y: np.ndarray) -> np.ndarray:
        """Return y H / sqrt(n) for y [.., n], as products with each column, summed one by one."""
        n = y.shape[-1]
        if n == 1:
            return y
        factor, total = y.dtype.type(1 / math.sqrt(n)), np.zeros_like(y)
        for i in range(n):
            signs = np.array([(-1) ** (i & j).bit_count() for j in range(n)], dtype=y.dtype)
            total = total + y[..., i : i + 1] * (signs * factor)
        return total

    # Codes

    def codes(self, quantiser: Quantiser, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the codes of numbers, [B, H, S, D]; 0 of a block of zeros."""
        return self.rounded_to_codes(quantiser, np.where(scales == 0, 0.0, self.quotient(quantiser, x, scales)))

    def quotient(self, quantiser: Quantiser, x: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return numbers over their scales; times the reciprocal where the quantiser allows that error."""
        form = _TYPES[quantiser.arithmetic]
        x, s = x.astype(form), scales.astype(form)
        return (x * (form(1) / s) if quantiser.division_error >= 2 else x / s).astype(np.float64)

    def rounded_to_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:
        """Return quotients as codes, which saturate."""
        t = np.clip(t, -quantiser.largest_code, quantiser.largest_code)
        if quantiser.rounding == "either":
            return self.one_of_two_codes(quantiser, t)
        if not quantiser.has_integers:
            if quantiser.rounding == "toward_zero":
                grid = bits.spacing(t, quantiser.format)
                return np.trunc(t / grid) * grid
            return bits.nearest(t, quantiser.format)
        if quantiser.rounding == "add_half":
            form = _TYPES[quantiser.arithmetic]
            return np.trunc(t.astype(form) + np.copysign(form(0.5), t).astype(form)).astype(np.float64)
        return {"nearest_even": np.rint, "nearest": lambda y: np.floor(y + 0.5), "toward_zero": np.trunc}[
            quantiser.rounding
        ](t)

    def one_of_two_codes(self, quantiser: Quantiser, t: np.ndarray) -> np.ndarray:
        """Return quotients as one of the two codes around them, the nearer with more probability."""
        grid = bits.spacing(t, quantiser.format)
        return np.floor(t / grid + self.chance.random(t.shape)) * grid

    def scales_of_products(self, quantiser: Quantiser, scales: np.ndarray) -> np.ndarray:  # noqa: ARG002 - a seam
        """Return the scales that multiply products of codes."""
        return scales

    # Attention

    def descales(self, name: str) -> Any:
        """Return a descale for each query head and key of the tile, or each query, which has its own scale here."""
        if name != "q_descale" or self.of("q") is None:
            return super().descales(name)  # type: ignore[misc]
        return self.held_descale(name, self.given_descales[name])  # type: ignore[attr-defined]

    def of(self, name: str) -> Quantiser | None:
        """Return the quantiser of a tensor; None if it has none."""
        return next((one for one in self.c.quantisers if one.of == name), None)  # type: ignore[attr-defined]

    def descaled_operands(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Return q, and k of the tile, times their scales if the kernel multiplies operands by them."""
        me: Any = self
        if not me.descales_operands:
            return q, k
        of_k = me.descales("k_descale").swapaxes(2, 3) if "k_descale" in me.given_descales else 1.0
        of_q = me.descales("q_descale") if "q_descale" in me.given_descales else 1.0
        found = [
            me.convert(me.round(x * d, "score_accumulation"), "operands", "score_accumulation")
            for x, d in ((q, of_q), (k, of_k))
        ]
        return found[0], found[1]

    def moved_back(self, lse: Any) -> Any:
        """Return the log-sum-exp of the definition's scores, of keys that have their mean again."""
        lse = super().moved_back(lse)  # type: ignore[misc]
        return lse if self.mean is None else self.with_mean(lse)

    def with_mean(self, lse: Any) -> Any:
        """Return a log-sum-exp, and the scaled product of its query and the mean of keys."""
        me: Any = self
        mean = me.per_query_head(self.mean)
        product = bits.nearest((self.given_q * mean).sum(axis=-1), self.mean_dtype)
        scaled = bits.nearest(product * values_of(me.factor()), self.mean_dtype)
        return me.convert(lse + scaled, "lse", "softmax")


class QuantisingAttention(Quantising, TiledAttention):
    """One call of a kernel that quantises, in tiles of keys."""


@functools.lru_cache
def quantising(steps: type[TiledAttention]) -> type[TiledAttention]:
    """Return an attention that executes the quantisers of its contract first."""
    return steps if issubclass(steps, Quantising) else type(f"Quantising{steps.__name__}", (Quantising, steps), {})
