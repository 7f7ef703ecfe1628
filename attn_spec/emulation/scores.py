"""The scores of one tile of keys under any arithmetic, and their visibility: one method per step.

Each step is a seam: a mutant (``reports.proof.zoo``) is a subclass that overrides one step. The contract determines the
rounding of every step (``arithmetic``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from attn_spec.attention.terms import ADDENDS, BENDS, DESCALES, TERMS
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import is_power_of
from attn_spec.contract.stages import contains
from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.problem import masks
from attn_spec.problem.handled import refuse
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import TIE

from .arithmetic import Order
from .descales import SCALES, Descales
from .operands import Execution, Number
from .sequences import LENGTHS, Sequences, sequences_of
from .tile import Tile

#: Terms that are added to a score and have a step here.
ADDED = ("bias", "alibi_slopes")
#: Terms of a score that have a step here, or a formula that :meth:`Scores.apply_term` evaluates.
EXECUTED = ("scale", *BENDS, *ADDED)
#: Options that tie inputs to one another, of which no step reads anything.
TIES = tuple(name for name, row in OPTIONS.items() if row.kind == TIE)
#: Options that the steps here and in ``dropout`` evaluate, and the scores of pairs that ``operands`` makes of others.
HANDLES = (
    *("causal", "causal_alignment", "window", "window_sinks", "attention_chunk", "mask", *EXECUTED, "pair_scores"),
    *("dropout_keep", "dropout_p", "dropout_seed", "o_scale", "sinks", "v_descale"),
    *TIES,
    *LENGTHS,
)


class Scores(Descales):
    """The scores of one call. Arrays are [B, Hq, Sq, ..]; scores of a tile are [B, Hq, Sq, tile]."""

    def __init__(self, contract: ResolvedContract, order: Order, q: Any, k: Any, v: Any, **options: Any) -> None:
        super().__init__(contract, order, **{name: options.get(name) for name in SCALES})
        refuse([name for name, x in options.items() if name not in HANDLES and x is not None], type(self).__name__)
        self.q, self.k, self.v = (self.read(tensor) for tensor in (q, k, v))
        self.Sq, self.D = self.q.shape[2:]
        self.Sk, self.Dv = self.v.shape[2:]
        self.scale = options.get("scale")
        self.causal = options.get("causal", False)
        self.alignment = options.get("causal_alignment", "top_left")
        self.window = options.get("window") or (None, None)
        self.window_sinks = options.get("window_sinks") or 0
        self.chunk: Any = options.get("attention_chunk")
        self.softcap: Any = options.get("softcap")
        #: Names of the terms that bend the score, and the numbers of all terms but the scale.
        of_operands = DESCALES if self.c.descale_on == "operands" else ()
        self.bends = tuple(n for n in BENDS if options.get(n) is not None and n not in of_operands)
        self.numbers = {
            name: np.asarray(values_of(options[name]) if OPTIONS[name].tensor else options[name], dtype=np.float64)
            for name in (*BENDS, *ADDENDS)
            if options.get(name) is not None
        }
        #: Scores before the scale [B, Hq, Sq, Sk] of which q and k are not the factors, or None.
        self.pair_scores = options.get("pair_scores")
        self.mask: Any
        self.bias: Any
        self.mask, self.bias = (
            None if options.get(name) is None else self.broadcast(values_of(options[name])) for name in ("mask", "bias")
        )
        self.bias_dtype = "float64" if self.bias is None else of(options["bias"]).dtype_of(options["bias"])
        self.slopes = options.get("alibi_slopes")
        self.sequences = self.read_sequences(options)
        self.sinks = options.get("sinks")

    # Reading

    def read(self, tensor: Any) -> Any:
        """Return the values of q, k or v."""
        return self.array(values_of(tensor))

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        """Return where the sequences of the call begin and end."""
        return sequences_of(self.Sq, self.Sk, options)

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        """Return a mask or bias as [B, Hq, Sq, Sk]."""
        return np.broadcast_to(option, (*self.q.shape[:3], self.Sk))

    def map_kv_head(self) -> np.ndarray:
        """Return the kv head that each query head reads, [Hq]."""
        return np.arange(self.q.shape[1]) // (self.q.shape[1] // self.k.shape[1])

    def tiles(self) -> Iterator[Tile]:
        """Yield the tiles in the order of visit, all of one length: the tile at the end may pass the last key."""
        own = self.sinks is not None and self.order.sink != "with_keys"
        columns = self.Sk if own or self.sinks is None else self.Sk + 1
        size = self.order.kv_tile or max(columns, 1)
        starts = np.arange(0, columns, size)
        if self.order.tiles == "reverse":
            starts = starts[::-1]
        if self.order.tiles == "random":
            starts = np.random.default_rng(self.order.seed).permutation(starts)
        every = [start + np.arange(size) for start in starts]
        if own:  # what follows the last key is padding, and no second sink
            of_sink, every = np.array([self.Sk]), [np.where(cols < self.Sk, cols, cols + 1) for cols in every]
            every = [of_sink, *every] if self.order.sink == "first" else [*every, of_sink]
        for visit, cols in enumerate(every):
            yield Tile(cols, self.array(self.sees(cols)), is_last=visit == len(every) - 1)

    def load_k(self) -> Any:
        return self.load(self.k)

    def load_v(self) -> Any:
        return self.load(self.v)

    def load(self, x: Any) -> Any:
        """Return the tile of k or v for each query head, [B, Hq, tile, ..]; zeros past the last key."""
        cols = self.tile.cols
        if not self.Sk:  # a sink alone
            return self.array(np.zeros((len(x), self.q.shape[1], len(cols), x.shape[3])))
        values = x[:, :, np.minimum(cols, self.Sk - 1)][:, self.map_kv_head()]  # the tile first: heads are copied
        return self.xp.where(self.array((cols < self.Sk)[:, None]), values, 0.0)

    # Scores

    def scores(self) -> Any:
        """Return scores of the tile, masked keys and a sink included, in units of ln 2 if the exponential is base 2.

        If log2(e) is folded into the exponent, the scores are unscaled.
        """
        s, at_sink = self.scores_of_keys(), self.tile.cols == self.Sk
        return (
            s if self.sinks is None or not at_sink.any() else self.xp.where(self.array(at_sink), self.sink_score(), s)
        )

    def sink_score(self) -> Any:
        """Return the sink as a score, [B, Hq, Sq, 1]: loaded, moved as the scores of its row are, in their units."""
        return self.change_base(self.moved_sink())

    def moved_sink(self) -> Any:
        """Return the sink of each row, moved by the number by which all scores of the row are larger."""
        shift, z = self.row_shift(), self.load_sink()
        return self.add(z, shift, "stored_scores") if np.ndim(shift) else z

    def load_sink(self) -> Any:
        """Return the sink of each head in the format of scores, [1, Hq, 1, 1]."""
        given, dtype = self.array(values_of(self.sinks)), of(self.sinks).dtype_of(self.sinks)
        return self.convert(given, "stored_scores", dtype)

    def scores_of_keys(self) -> Any:
        """Return the scores of the keys of the tile."""
        s = self.score(self.q, self.load_k())
        if self.puts_bias_first:
            return self.change_base(self.apply_scale(self.apply_bias_first(s)))
        s = self.bend(self.apply_factors(s) if self.multiplies_factors else self.apply_scale(s))
        return self.apply_alibi(self.apply_bias(s if self.folds_base or self.folds_exponent else self.change_base(s)))

    def default_scale(self) -> float:
        return 1 / math.sqrt(self.D)

    def factor(self) -> Any:
        """Return the scale as the kernel holds it."""
        return self.constant(self.default_scale() if self.scale is None else self.scale, roundings=2)

    @property
    def scales_operands(self) -> bool:
        """True if the scale multiplies q, and perhaps k, before their product."""
        return self.c.scale_on == "operands" and self.pair_scores is None

    @property
    def folds_base(self) -> bool:
        """True if log2(e) is part of the query's factor."""
        return self.scales_operands and self.order.scaling == "folded" and self.is_base2 and not self.bends

    @property
    def folds_softcap(self) -> bool:
        """True if the inverse of the softcap is part of the query's factor."""
        return self.scales_operands and self.order.scaling == "folded" and self.bends == ("softcap",)

    @property
    def folds_exponent(self) -> bool:
        """True if scores stay unscaled until an exponent that has the scale and log2(e) in one constant."""
        wanted = self.order.exponent_folded and self.is_base2 and not self.scales_operands
        plain = not self.has_addends and not self.bends and self.c.reference_distance == 0 and self.sinks is None
        return wanted and plain and (self.scale is None or self.scale > 0)

    @property
    def has_addends(self) -> bool:
        """True if a bias or ALiBi is added to the scores."""
        return self.bias is not None or self.slopes is not None

    @property
    def puts_bias_first(self) -> bool:
        """True if bias and ALiBi are divided by the scale and added to q.k."""
        wanted = self.order.bias_first and self.has_addends and not self.bends and not self.scales_operands
        kept = contains(self.c.format("stored_scores"), self.c.format("score_accumulation"))
        return wanted and kept and self.scale != 0

    def query_factor(self) -> Any:
        """Return the query's factor under a contract that scales operands, unless that is a root of the scale."""
        if self.folds_base:
            return self.times(self.factor(), self.log2e, "score_accumulation")
        return self.scale_over_softcap() if self.folds_softcap else self.factor()

    def scale_over_softcap(self) -> Any:
        return self.round(self.factor() / self.constant(self.softcap), "score_accumulation")

    def score(self, q: Any, k: Any) -> Any:
        """Return q.k of operands, scaled first if the contract scales operands, rounded on entry to the product."""
        if self.pair_scores is not None:
            return self.read(self.option_tile(self.pair_scores, self.tile.cols))
        q, k = self.enter_scores(q, k)
        dot = self.add_products(lambda d: (q[..., d, None], k[..., None, :, d]), self.D, "score_accumulation")
        return self.convert(dot, "stored_scores", "score_accumulation")

    def enter_scores(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Return q and k as their product reads them."""
        q, k = self.descaled_operands(q, k)
        if not self.scales_operands:
            return self.enter(q, self.operand_source), self.enter(k, self.operand_source)
        if self.order.scaling == "roots":
            root, sign = self.root(), self.xp.sign(self.factor())
            q, k = (self.times(x, r, "stored_scores") for x, r in ((q, sign * root), (k, root)))
            source = self.source_of_scaled()
            return self.enter(q, source), self.enter(k, source)
        q = self.enter(self.times(q, self.query_factor(), "stored_scores"), "stored_scores")
        return q, self.enter(k, self.operand_source)

    def source_of_scaled(self) -> str:
        """Return the stage that last rounded an operand, q or k, after a root of the scale has multiplied it.

        An exact root changes no significant bit: then the stage is that of the operand itself.
        """
        wide = contains(self.c.format("stored_scores"), self.c.format("score_accumulation"))
        return self.operand_source if self.has_exact_root and wide else "stored_scores"

    @property
    def has_exact_root(self) -> bool:
        """True if the square root of the scale is a power of 2."""
        return is_power_of(4, abs(self.default_scale() if self.scale is None else self.scale))

    def root(self) -> Any:
        """Return the square root of the scale as the kernel holds it."""
        root = self.xp.sqrt(abs(self.factor()))
        return root if self.has_exact_root else self.round(root, "score_accumulation")

    def apply_scale(self, s: Any) -> Any:
        if self.scales_operands or self.folds_exponent:
            return s
        return self.times(s, self.factor(), "stored_scores")

    def bend(self, s: Any) -> Any:
        """Return the score before what is added to it: each term by its own step, or by its formula."""
        for name in BENDS:
            if name == "softcap":
                s = self.apply_softcap(s)
            elif name in self.bends and name in DESCALES:
                s = s if self.multiplies_factors else self.apply_descale(name, s)
            elif name in self.bends:
                s = self.apply_term(name, s)
        return s

    @property
    def multiplies_factors(self) -> bool:
        """True if the scale and the descales are one factor, which multiplies the score."""
        return self.order.descales_first and not self.scales_operands and any(name in DESCALES for name in self.bends)

    def apply_factors(self, s: Any) -> Any:
        """Return the score times the product of the scale and the descales."""
        factor = self.factor()
        for name in DESCALES:
            factor = self.times(factor, self.descales(name), "score_accumulation") if name in self.bends else factor
        return self.times(s, factor, "stored_scores")

    def apply_descale(self, name: str, s: Any) -> Any:
        """Return the score times the descale of q or k."""
        return self.times(s, self.descales(name), "stored_scores")

    def apply_term(self, name: str, s: Any) -> Any:
        """Return a term, whose formula is evaluated operation by operation."""
        return TERMS[name].value(Execution(self), Number(s, "stored_scores", self), self.given_numbers()).values

    def given_numbers(self) -> dict[str, Number]:
        """Return the numbers of bends as formulas take them."""
        given = {name: self.numbers[name] for name in self.bends if name not in DESCALES}
        return {name: Execution(self).given(x.reshape(1, 1, 1, 1)) for name, x in given.items()}

    def apply_softcap(self, s: Any) -> Any:
        if self.softcap is None:
            return s
        cap = self.constant(self.softcap)
        if not self.folds_softcap:
            s = self.times(s, self.round(1 / cap, "score_accumulation"), "stored_scores")
        return self.times(self.tanh(s), cap, "stored_scores")

    def change_base(self, s: Any) -> Any:
        """Return scores, or a log-sum-exp, in units of ln 2 if the exponential is base 2."""
        return self.times(s, self.log2e, "score_accumulation") if self.is_base2 else s

    def apply_bias(self, s: Any) -> Any:
        if self.bias is None:
            return s
        return self.add(s, self.bias_in_base(), "stored_scores")

    def bias_in_base(self) -> Any:
        """Return the tile of the bias in the units of the scores."""
        return self.change_base(self.load_bias())

    def load_bias(self) -> Any:
        """Return the tile of the bias. Loading may flush subnormals, and rounds only if the order says so."""
        bias = self.array(self.option_tile(self.bias, self.tile.cols))
        bias = self.convert(bias, "stored_scores", self.bias_dtype) if self.order.bias_rounded else bias
        loaded = self.convert(bias, "score_accumulation", "input")
        return self.xp.where(loaded == 0, loaded, bias)

    def apply_bias_first(self, s: Any) -> Any:
        """Return q.k + bias / scale + ALiBi / scale."""
        inverse = self.round(1 / self.factor(), "score_accumulation")
        added = [] if self.bias is None else [self.load_bias()]
        for term in added if self.slopes is None else [*added, self.load_alibi()]:
            s = self.add(s, self.times(term, inverse, "score_accumulation"), "stored_scores")
        return s

    def apply_alibi(self, s: Any) -> Any:
        return s if self.slopes is None else self.add(s, self.change_base(self.load_alibi()), "stored_scores")

    def load_alibi(self) -> Any:
        """Return the tile of -m |i - j|, or of m j if the kernel counts keys from the first or the last key."""
        d = self.tile.cols - self.alibi_origin()
        term = self.alibi_term(-abs(d) if self.alibi_from == "query" else d)
        return self.convert(term, "stored_scores", "score_accumulation")

    def alibi_term(self, d: np.ndarray) -> Any:
        """Return m d, in the format of ALiBi terms if that is narrower than the format of sums."""
        if contains(self.c.format("alibi_terms"), self.c.format("score_accumulation")):
            return self.slope_times(d)
        m, d = (self.convert(x, "alibi_terms", "score_accumulation") for x in (self.alibi_slope(), self.of_integers(d)))
        return self.round(m * d, "alibi_terms")

    def slope_times(self, d: np.ndarray) -> Any:
        """Return m d, [B, Hq, Sq, ..] for integers [Sq, ..] or [B, 1, Sq, ..]."""
        return self.times(self.alibi_slope(), self.of_integers(d), "score_accumulation")

    def alibi_slope(self) -> Any:
        """Return m as it is loaded."""
        given, dtype = self.array(values_of(self.slopes)), of(self.slopes).dtype_of(self.slopes)
        return self.convert(given, "score_accumulation", dtype)

    def of_integers(self, d: np.ndarray) -> Any:
        return self.array(d.astype(np.float64))

    @property
    def alibi_from(self) -> str:
        """Origin from which keys are counted: the "query" unless attention is causal, as |i - j| is no difference."""
        return self.order.alibi_from if self.causal else "query"

    def alibi_origin(self) -> np.ndarray:
        """Return the key from which each query counts, [Sq, 1]."""
        last = np.full((self.Sq, 1), self.Sk - 1)
        return {"query": self.diagonal(), "first": 0 * last, "last": last}[self.alibi_from]

    def row_shift(self) -> Any:
        """Return how much larger the scores of each row are than those of the definition, [B, Hq, Sq, 1] or 0."""
        if self.slopes is None or self.alibi_from == "query":
            return 0.0
        return self.slope_times(self.diagonal() - self.alibi_origin())

    # Visibility

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        """Return a tile of the mask or bias; elements past the last key are never used."""
        if not self.Sk:  # a sink alone
            return np.zeros((*option.shape[:-1], len(cols)), dtype=option.dtype)
        return option[..., np.minimum(cols, self.Sk - 1)]

    def sees(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys, or sinks, of the tile each query attends to, bool [B, Hq, Sq, tile]."""
        seen = self.visible(cols)
        return seen if self.sinks is None else np.where(cols == self.Sk, self.sees_sink(), seen)

    def sees_sink(self) -> np.ndarray:
        """Return which rows have a sink, those of queries that are there, bool [1 or B, 1 or Hq, Sq, 1]."""
        return (values_of(self.sinks) > -np.inf) & (np.arange(self.Sq)[:, None] < self.sequences.used_queries)

    def visible(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys of the tile each query attends to, bool [B, Hq, Sq, tile]."""
        seen = self.visible_without_bias(cols)
        return seen if self.bias is None else seen & (self.option_tile(self.bias, cols) > -np.inf)

    def visible_without_bias(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys of the tile each query attends to if no bias is -inf, bool [B, Hq, Sq, tile]."""
        seen = self.in_bounds(cols) & self.on_band(cols) & self.in_sequence(cols)
        if self.mask is not None:
            seen = seen & (self.option_tile(self.mask, cols) != 0)
        return np.broadcast_to(seen, (*self.q.shape[:3], len(cols)))

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return cols < self.Sk

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys of the tile belong to the sequence of each query, [1 or B, 1, 1 or Sq, tile].

        Without lengths of keys a sequence ends where the tensor does, which ``in_bounds`` tests alone.
        """
        of = self.sequences
        seen = (of.first_keys <= cols) & (np.arange(self.Sq)[:, None] < of.used_queries)
        return seen if np.ndim(of.end_keys) == 0 else seen & (cols < of.end_keys)

    def diagonal(self) -> np.ndarray:
        """Return the key that each query is aligned with, [Sq, 1], or [B, 1, Sq, 1] beside lengths of sequences."""
        return self.sequences.aligned_keys(self.Sq, self.alignment)

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys causality, the window and the chunks leave visible, [Sq, tile] or [B, 1, Sq, tile]."""
        distance = cols - self.diagonal()
        seen = masks.in_window(distance, self.from_first_key(cols), self.window, self.window_sinks)
        if self.causal:
            seen = seen & masks.band(distance, None, 0)
        return seen if self.chunk is None else seen & self.in_chunk(cols)

    def in_chunk(self, cols: np.ndarray) -> np.ndarray:
        """Return which keys are in the chunk of the key that each query is aligned with: the shape of ``on_band``."""
        return masks.in_chunk(self.from_first_key(self.diagonal()), self.from_first_key(cols), self.chunk)

    def from_first_key(self, keys: np.ndarray) -> np.ndarray:
        """Return the places of keys counted from the first key of their sequence, behind padding on the left."""
        return keys - self.sequences.first_keys

    def hide(self, s: Any) -> Any:
        return self.xp.where(self.tile.visible, s, -np.inf)
