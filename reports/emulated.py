"""Attention with online softmax under any arithmetic: a contract, executed literally, one method per step.

:class:`TiledAttention` is a fold over tiles of keys. Each step is a seam: a mutant (``mutants``) is a subclass that
overrides a single one. The rounding of every step is the contract's (``arithmetic``), so that a kernel built by
:func:`emulate` obeys the contract it declares, whatever the data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec import bits
from attn_spec.contract import Contract
from attn_spec.kernels import Kernel, kernel

from .arithmetic import Arithmetic, Order

SUPPORTS = (
    *("scale", "causal", "causal_alignment", "window", "mask", "bias", "softcap"),
    *("gqa", "dv", "cross", "empty", "lse"),
)
CONVENTIONS = {"empty_row": "zero", "masked_nonfinite": "excluded", "batch_invariant": True}


@dataclass(frozen=True, eq=False)
class Tile:
    """Keys that are visited together."""

    #: Key indices; those from Sk on do not exist.
    cols: np.ndarray
    #: Which of them each query attends to, bool [B, Hq, Sq, tile].
    visible: np.ndarray
    #: Whether it is visited last.
    is_last: bool


class TiledAttention(Arithmetic):
    """One call. Arrays are [B, Hq, Sq, ..]; scores of a tile are [B, Hq, Sq, tile]."""

    #: Numbers the calls of one kernel, for mutants with a memory.
    calls: Iterator[int] = itertools.repeat(0)
    #: The tile being visited.
    tile: Tile

    def __init__(self, contract: Contract, order: Order, q: Any, k: Any, v: Any, **options: Any) -> None:
        super().__init__(contract, order)
        self.q, self.k, self.v = (self.read(tensor) for tensor in (q, k, v))
        self.Sq, self.D = self.q.shape[2:]
        self.Sk, self.Dv = self.v.shape[2:]
        self.scale = options.get("scale")
        self.causal = options.get("causal", False)
        self.alignment = options.get("causal_alignment", "top_left")
        self.window = options.get("window") or (None, None)
        self.softcap = options.get("softcap")
        self.mask, self.bias = (
            None if options.get(name) is None else self.broadcast(bits.values_of(options[name]))
            for name in ("mask", "bias")
        )

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            m, l, acc = self.fold(self.tiles())
            return self.finish(acc, l), self.log_sum_exp(m, l)

    def fold(self, tiles: Iterable[Tile]) -> tuple[np.ndarray, ...]:
        """Visit tiles of keys one after the other: their maximum, row sum and output before its division by that."""
        rows = self.q.shape[:3]
        m, l, acc = np.full((*rows, 1), -np.inf), np.zeros((*rows, 1)), np.zeros((*rows, self.Dv))
        for self.tile in tiles:  # every step reads it
            s = self.scores()
            m_new = self.update_max(m, self.tile_max(s))
            p = self.weights(self.hide(s), m_new)
            alpha = self.rescale_factor(m, m_new)
            l = self.accumulate_row_sum(self.rescale_row_sum(l, alpha), p)
            w = self.cast_probabilities(p, l)
            acc = self.accumulate_output(self.rescale_output(acc, alpha), w, self.load_v())
            m = m_new
        return m, l, acc

    # Reading

    def read(self, tensor: Any) -> np.ndarray:
        """The values of q, k or v."""
        return bits.values_of(tensor)

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        """A mask or bias as [B, Hq, Sq, Sk]."""
        return np.broadcast_to(option, (*self.q.shape[:3], self.Sk))

    def map_kv_head(self) -> np.ndarray:
        """The kv head that each query head reads, [Hq]."""
        return np.arange(self.q.shape[1]) // (self.q.shape[1] // self.k.shape[1])

    def tiles(self) -> Iterator[Tile]:
        """The tiles in the order of visit, all of one length: the one at the end may pass it."""
        size = self.order.kv_tile or max(self.Sk, 1)
        starts = np.arange(0, self.Sk, size)
        if self.order.tiles == "reverse":
            starts = starts[::-1]
        if self.order.tiles == "random":
            starts = np.random.default_rng(self.order.seed).permutation(starts)
        for visit, start in enumerate(starts):
            cols = start + np.arange(size)
            yield Tile(cols, self.visible(cols), is_last=visit == len(starts) - 1)

    def load_k(self) -> np.ndarray:
        return self.load(self.k)

    def load_v(self) -> np.ndarray:
        return self.load(self.v)

    def load(self, x: np.ndarray) -> np.ndarray:
        """The tile of k or v for each query head, [B, Hq, tile, ..]; zeros past the end."""
        cols = self.tile.cols
        values = x[:, self.map_kv_head()][:, :, np.minimum(cols, self.Sk - 1)]
        return self.enter(np.where((cols < self.Sk)[:, None], values, 0.0))

    # Scores

    def scores(self) -> np.ndarray:
        """Scores of the tile, hidden keys included, in units of ln 2 when the exponential is base 2."""
        s = self.apply_scale(self.score(self.enter(self.q), self.load_k()))
        return self.apply_bias(self.change_base(self.apply_softcap(s)))

    def default_scale(self) -> float:
        return 1 / math.sqrt(self.D)

    def factor(self) -> np.ndarray:
        """The scale as the kernel holds it."""
        return self.round(self.default_scale() if self.scale is None else self.scale, "score_accumulation")

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """q.k, or (q sqrt(scale)).(k sqrt(scale)) under a contract that scales operands."""
        if self.c.scale_on == "operands":
            root = self.round(np.sqrt(np.abs(self.factor())), "score_accumulation")
            q = self.round(np.sign(self.factor()) * root * q, "stored_scores")
            k = self.round(root * k, "stored_scores")
        dot = self.accumulate(lambda d: q[..., d, None] * k[..., None, :, d], self.D, "score_accumulation")
        return self.round(dot, "stored_scores")

    def apply_scale(self, s: np.ndarray) -> np.ndarray:
        return s if self.c.scale_on == "operands" else self.round(s * self.factor(), "stored_scores")

    def apply_softcap(self, s: np.ndarray) -> np.ndarray:
        if self.softcap is None:
            return s
        cap, inverse = (self.round(x, "score_accumulation") for x in (self.softcap, 1 / self.softcap))
        return self.round(cap * self.tanh(self.round(s * inverse, "stored_scores")), "stored_scores")

    def change_base(self, s: np.ndarray) -> np.ndarray:
        return self.round(s * self.log2e, "score_accumulation") if self.is_base2 else s

    def apply_bias(self, s: np.ndarray) -> np.ndarray:
        if self.bias is None:
            return s
        bias = self.change_base(self.option_tile(self.bias, self.tile.cols))
        return self.round(s + bias, "stored_scores")

    # Visibility

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """A tile of the mask or bias; what lies past the end is never used."""
        return option[..., np.minimum(cols, self.Sk - 1)]

    def visible(self, cols: np.ndarray) -> np.ndarray:
        """bool [B, Hq, Sq, tile]: which keys of the tile each query attends to."""
        seen = self.in_bounds(cols) & self.on_band(cols)
        if self.mask is not None:
            seen = seen & (self.option_tile(self.mask, cols) != 0)
        if self.bias is not None:
            seen = seen & (self.option_tile(self.bias, cols) > -np.inf)
        return np.broadcast_to(seen, (*self.q.shape[:3], len(cols)))

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return cols < self.Sk

    def diagonal(self) -> np.ndarray:
        """The key that each query is aligned with, [Sq, 1]."""
        offset = self.Sk - self.Sq if self.alignment == "bottom_right" else 0
        return np.arange(self.Sq)[:, None] + offset

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        """Causal and window, [Sq, tile]."""
        distance = cols - self.diagonal()
        left, right = self.window
        seen = np.full(distance.shape, fill_value=True)
        if self.causal:
            seen &= distance <= 0
        if left is not None:
            seen &= distance >= -left
        if right is not None:
            seen &= distance <= right
        return seen

    def hide(self, s: np.ndarray) -> np.ndarray:
        return np.where(self.tile.visible, s, -np.inf)

    # Online softmax

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        return self.hide(s).max(axis=-1, keepdims=True)

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        """The running maximum, or under a lazy contract a reference at most ``reference_slack`` below it."""
        m_new = np.maximum(m, tile_max)
        slack = self.c.reference_slack / (math.log(2) if self.is_base2 else 1.0)
        return np.where(np.isfinite(m) & (m_new - m <= slack), m, m_new) if slack else m_new

    def subtract(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        """s - m, where m counts as 0 as long as nothing was visible: -inf - -inf would be NaN."""
        return self.round(s - np.where(np.isneginf(m), 0.0, m), "softmax")

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        """Unnormalized weights p = exp(s - m)."""
        return self.exponential(self.subtract(s, m))

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
        return self.exponential(self.subtract(m, m_new))

    def rescale_row_sum(self, l: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return self.round(l * alpha, "row_sum")

    def rescale_output(self, acc: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return self.round(acc * alpha, "output_accumulation")

    def accumulate_row_sum(self, l: np.ndarray, p: np.ndarray) -> np.ndarray:
        w = self.cast(p) if self.c.row_sum_of == "cast" and self.c.normalize == "after_product" else p
        return self.accumulate(lambda j: w[..., j, None], w.shape[-1], "row_sum", l)

    def cast(self, p: np.ndarray) -> np.ndarray:
        return self.enter(self.round(p, "probabilities"))

    def cast_probabilities(self, p: np.ndarray, l: np.ndarray) -> np.ndarray:
        """The weights as they enter the product, divided by l first when the contract normalizes before it."""
        if self.c.normalize == "before_product":
            p = self.round(p / self.nonzero(l), "softmax")
        return self.cast(p)

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        """acc + w v over the keys of non-zero weight: 0 times a hidden NaN would be NaN."""

        def product(j: int) -> np.ndarray:
            return np.where(w[..., j, None] == 0, 0.0, w[..., j, None] * v[:, :, None, j])

        return self.accumulate(product, w.shape[-1], "output_accumulation", acc)

    # Results

    def nonzero(self, l: np.ndarray) -> np.ndarray:
        """The row sum, and 1 for rows that saw no key: their output is 0 and their log-sum-exp -inf + log(1)."""
        return np.where(l == 0, 1.0, self.round(l, "softmax"))

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        """acc / l, unless the weights were normalized already."""
        if self.c.normalize == "after_product":
            acc = self.round(acc * self.round(1 / self.nonzero(l), "softmax"), "softmax")
        return self.round(acc, "output")

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        """m + log(l), the natural logarithm."""
        total = self.round(m + self.logarithm(self.nonzero(l)), "softmax")
        if self.is_base2:
            total = self.round(total * self.round(math.log(2), "score_accumulation"), "softmax")
        return self.round(total, "lse")[..., 0]


def emulate(
    name: str,
    executes: Contract | Mapping[str, Contract],
    order: Order | None = None,
    *,
    dtypes: Iterable[str] = ("float32",),
    steps: type[TiledAttention] = TiledAttention,
    **declared: Any,
) -> Kernel:
    """A torch kernel that does the arithmetic of a contract, one for all dtypes or one for each.

    ``declared`` are arguments of :func:`attn_spec.kernel`; by default that very contract, and every option.
    """
    chosen = order or Order()
    defaults = {"contract": executes, "supports": SUPPORTS, "conventions": CONVENTIONS, "devices": ("cpu",)}
    arguments = {**defaults, **declared}

    def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        dtype = bits.dtype_name(q)
        c = (executes[dtype] if isinstance(executes, Mapping) else executes).at(dtype)
        out, lse = steps(c, chosen, q, k, v, **options)()
        tensor = bits.to_torch(out, c.output)
        return (tensor, bits.to_torch(lse, c.lse)) if "lse" in arguments["supports"] else tensor

    return kernel(name=name, framework="torch", dtypes=tuple(dtypes), **arguments)(attention)
