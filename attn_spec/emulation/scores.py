"""The scores of one tile of keys under any arithmetic, and which of them a query sees: one method per step.

Each step is a seam: a mutant (``mutants``) is a subclass that overrides a single one. The rounding of every step is the
contract's (``arithmetic``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import is_power_of
from attn_spec.contract.stages import contains
from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.problem.handled import refuse

from .arithmetic import Order
from .matrix_products import MatrixProducts

#: Options that the steps here and in ``dropout`` evaluate, and scores of pairs that ``operands`` has made of others.
HANDLES = (
    *("causal", "causal_alignment", "window", "mask", "scale", "softcap", "bias", "alibi_slopes", "pair_scores"),
    *("dropout_keep", "dropout_p", "dropout_seed"),
)


@dataclass(frozen=True, eq=False)
class Tile:
    """Keys that are visited together."""

    #: Key indices; those from Sk on do not exist.
    cols: np.ndarray
    #: Which of them each query attends to, bool [B, Hq, Sq, tile].
    visible: Any
    #: Whether it is visited last.
    is_last: bool


class Scores(MatrixProducts):
    """One call. Arrays are [B, Hq, Sq, ..]; scores of a tile are [B, Hq, Sq, tile]."""

    #: The tile being visited.
    tile: Tile

    def __init__(self, contract: ResolvedContract, order: Order, q: Any, k: Any, v: Any, **options: Any) -> None:
        super().__init__(contract, order)
        refuse([name for name, x in options.items() if name not in HANDLES and x is not None], type(self).__name__)
        self.q, self.k, self.v = (self.read(tensor) for tensor in (q, k, v))
        self.Sq, self.D = self.q.shape[2:]
        self.Sk, self.Dv = self.v.shape[2:]
        self.scale = options.get("scale")
        self.causal = options.get("causal", False)
        self.alignment = options.get("causal_alignment", "top_left")
        self.window = options.get("window") or (None, None)
        self.softcap: Any = options.get("softcap")
        #: Scores before the scale [B, Hq, Sq, Sk] of which q and k are not the factors, or None.
        self.pair_scores = options.get("pair_scores")
        self.mask: Any
        self.bias: Any
        self.mask, self.bias = (
            None if options.get(name) is None else self.broadcast(values_of(options[name])) for name in ("mask", "bias")
        )
        self.bias_dtype = "float64" if self.bias is None else of(options["bias"]).dtype_of(options["bias"])
        self.slopes = options.get("alibi_slopes")

    # Reading

    def read(self, tensor: Any) -> Any:
        """The values of q, k or v."""
        return self.array(values_of(tensor))

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
            yield Tile(cols, self.array(self.visible(cols)), is_last=visit == len(starts) - 1)

    def load_k(self) -> Any:
        return self.load(self.k)

    def load_v(self) -> Any:
        return self.load(self.v)

    def load(self, x: Any) -> Any:
        """The tile of k or v for each query head, [B, Hq, tile, ..]; zeros past the end."""
        cols = self.tile.cols
        values = x[:, self.map_kv_head()][:, :, np.minimum(cols, self.Sk - 1)]
        return self.xp.where(self.array((cols < self.Sk)[:, None]), values, 0.0)

    # Scores

    def scores(self) -> Any:
        """Scores of the tile, hidden keys included, in units of ln 2 when the exponential is base 2."""
        s = self.score(self.q, self.load_k())
        if self.puts_bias_first:
            return self.change_base(self.apply_scale(self.apply_bias_first(s)))
        s = self.apply_softcap(self.apply_scale(s))
        return self.apply_alibi(self.apply_bias(s if self.folds_base or self.folds_exponent else self.change_base(s)))

    def default_scale(self) -> float:
        return 1 / math.sqrt(self.D)

    def factor(self) -> Any:
        """The scale as the kernel holds it."""
        return self.constant(self.default_scale() if self.scale is None else self.scale, roundings=2)

    @property
    def scales_operands(self) -> bool:
        """Whether the scale multiplies q, and perhaps k, before their product."""
        return self.c.scale_on == "operands" and self.pair_scores is None

    @property
    def folds_base(self) -> bool:
        """Whether log2(e) is part of the scale of the query."""
        return self.scales_operands and self.order.scaling == "folded" and self.is_base2 and self.softcap is None

    @property
    def folds_softcap(self) -> bool:
        """Whether the inverse of the softcap is part of the scale of the query."""
        return self.scales_operands and self.order.scaling == "folded" and self.softcap is not None

    @property
    def folds_exponent(self) -> bool:
        """Whether scores wait unscaled for an exponent with the scale and log2(e) in one constant."""
        wanted = self.order.exponent_folded and self.is_base2 and not self.scales_operands
        plain = not self.has_addends and self.softcap is None and self.c.reference_distance == 0
        return wanted and plain and (self.scale is None or self.scale > 0)

    @property
    def has_addends(self) -> bool:
        """Whether a bias or ALiBi is added to the scores."""
        return self.bias is not None or self.slopes is not None

    @property
    def puts_bias_first(self) -> bool:
        """Whether bias and ALiBi are divided by the scale and added to q.k."""
        wanted = self.order.bias_first and self.has_addends and self.softcap is None and not self.scales_operands
        kept = contains(self.c.format("stored_scores"), self.c.format("score_accumulation"))
        return wanted and kept and self.scale != 0

    def query_factor(self) -> Any:
        """What multiplies the query under a contract that scales operands, when it is not a root of the scale."""
        if self.folds_base:
            return self.times(self.factor(), self.log2e, "score_accumulation")
        return self.scale_over_softcap() if self.folds_softcap else self.factor()

    def scale_over_softcap(self) -> Any:
        return self.round(self.factor() / self.constant(self.softcap), "score_accumulation")

    def score(self, q: Any, k: Any) -> Any:
        """q.k of operands that are scaled first, under a contract that does so, and then enter the product."""
        if self.pair_scores is not None:
            return self.read(self.option_tile(self.pair_scores, self.tile.cols))
        q, k = self.enter_scores(q, k)
        dot = self.add_products(lambda d: (q[..., d, None], k[..., None, :, d]), self.D, "score_accumulation")
        return self.convert(dot, "stored_scores", "score_accumulation")

    def enter_scores(self, q: Any, k: Any) -> tuple[Any, Any]:
        """q and k as their product reads them."""
        if not self.scales_operands:
            return self.enter(q), self.enter(k)
        if self.order.scaling == "roots":
            root, sign = self.root(), self.xp.sign(self.factor())
            q, k = (self.times(x, r, "stored_scores") for x, r in ((q, sign * root), (k, root)))
            source = self.source_of_scaled()
            return self.enter(q, source), self.enter(k, source)
        return self.enter(self.times(q, self.query_factor(), "stored_scores"), "stored_scores"), self.enter(k)

    def source_of_scaled(self) -> str:
        """The stage that last rounded an operand, q or k, after a root of the scale has multiplied it.

        An exact root changes no digit: then that is the stage that the operand came from.
        """
        wide = contains(self.c.format("stored_scores"), self.c.format("score_accumulation"))
        return "input" if self.has_exact_root and wide else "stored_scores"

    @property
    def has_exact_root(self) -> bool:
        """True if the square root of the scale is a power of 2."""
        return is_power_of(4, abs(self.default_scale() if self.scale is None else self.scale))

    def root(self) -> Any:
        """The square root of the scale as the kernel holds it."""
        root = self.xp.sqrt(abs(self.factor()))
        return root if self.has_exact_root else self.round(root, "score_accumulation")

    def apply_scale(self, s: Any) -> Any:
        if self.scales_operands or self.folds_exponent:
            return s
        return self.times(s, self.factor(), "stored_scores")

    def apply_softcap(self, s: Any) -> Any:
        if self.softcap is None:
            return s
        cap = self.constant(self.softcap)
        if not self.folds_softcap:
            s = self.times(s, self.round(1 / cap, "score_accumulation"), "stored_scores")
        return self.times(self.tanh(s), cap, "stored_scores")

    def change_base(self, s: Any) -> Any:
        """Scores, or a log-sum-exp, in units of ln 2 when the exponential is base 2."""
        return self.times(s, self.log2e, "score_accumulation") if self.is_base2 else s

    def apply_bias(self, s: Any) -> Any:
        if self.bias is None:
            return s
        return self.add(s, self.bias_in_base(), "stored_scores")

    def bias_in_base(self) -> Any:
        """The tile of the bias in units of ln 2, where scores are."""
        return self.change_base(self.load_bias())

    def load_bias(self) -> Any:
        """The tile of the bias; loading rounds nothing but may flush, unless the order says that it rounds."""
        bias = self.array(self.option_tile(self.bias, self.tile.cols))
        bias = self.convert(bias, "stored_scores", self.bias_dtype) if self.order.bias_rounded else bias
        loaded = self.convert(bias, "score_accumulation", "input")
        return self.xp.where(loaded == 0, loaded, bias)

    def apply_bias_first(self, s: Any) -> Any:
        """q.k + bias / scale, and ALiBi likewise."""
        inverse = self.round(1 / self.factor(), "score_accumulation")
        added = [] if self.bias is None else [self.load_bias()]
        for term in added if self.slopes is None else [*added, self.load_alibi()]:
            s = self.add(s, self.times(term, inverse, "score_accumulation"), "stored_scores")
        return s

    def apply_alibi(self, s: Any) -> Any:
        return s if self.slopes is None else self.add(s, self.change_base(self.load_alibi()), "stored_scores")

    def load_alibi(self) -> Any:
        """The tile of - m |i - j|, or of m j where keys are counted from one of them."""
        d = self.tile.cols - self.alibi_origin()
        term = self.alibi_term(-abs(d) if self.alibi_from == "query" else d)
        return self.convert(term, "stored_scores", "score_accumulation")

    def alibi_term(self, d: np.ndarray) -> Any:
        """m d in the format that such terms have, if it is narrower than that of sums."""
        if contains(self.c.format("alibi_terms"), self.c.format("score_accumulation")):
            return self.slope_times(d)
        m, d = (self.convert(x, "alibi_terms", "score_accumulation") for x in (self.alibi_slope(), self.of_integers(d)))
        return self.round(m * d, "alibi_terms")

    def slope_times(self, d: np.ndarray) -> Any:
        """m d, [B, Hq, Sq, ..] for integers [Sq, ..]."""
        return self.times(self.alibi_slope(), self.of_integers(d), "score_accumulation")

    def alibi_slope(self) -> Any:
        """m as it is loaded."""
        given, dtype = self.array(values_of(self.slopes)), of(self.slopes).dtype_of(self.slopes)
        return self.convert(given, "score_accumulation", dtype)

    def of_integers(self, d: np.ndarray) -> Any:
        return self.array(d.astype(np.float64))

    @property
    def alibi_from(self) -> str:
        """Where keys are counted from: behind the query distances are no differences."""
        return self.order.alibi_from if self.causal else "query"

    def alibi_origin(self) -> np.ndarray:
        """The key from which each query counts, [Sq, 1]."""
        last = np.full((self.Sq, 1), self.Sk - 1)
        return {"query": self.diagonal(), "first": 0 * last, "last": last}[self.alibi_from]

    def row_shift(self) -> Any:
        """How much larger the scores of each row are than those of the definition, [B, Hq, Sq, 1] or 0."""
        if self.slopes is None or self.alibi_from == "query":
            return 0.0
        return self.slope_times(self.diagonal() - self.alibi_origin())

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

    def hide(self, s: Any) -> Any:
        return self.xp.where(self.tile.visible, s, -np.inf)
