"""Attention with online softmax under any arithmetic: a contract, executed literally, one method per step.

:class:`TiledAttention` is a fold over tiles of keys. Each step is a seam: a mutant (``reports.proof.zoo``) is a
subclass that overrides one step. The contract determines the rounding of every step (``arithmetic``). A kernel built
by :func:`kernels.emulate` therefore obeys the contract it declares, for any data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attn_spec.attention.terms import TERMS, at_most
from attn_spec.kernels.frameworks.framework import values_of

from .dropout import Dropout
from .tile import Tile


class TiledAttention(Dropout):
    """One forward call. Arrays are [B, Hq, Sq, ..]; scores of a tile are [B, Hq, Sq, tile]."""

    #: Log-sum-exp of each row, once it is known, [B, Hq, Sq, 1].
    L: Any
    #: The last weights that were cast, and their cast.
    last_cast: tuple[Any, Any] = (None, None)
    #: Counter of the calls of one kernel, for mutants with a memory.
    calls: Iterator[int] = itertools.repeat(0)

    def __call__(self) -> tuple[Any, Any]:
        """Return output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            m, l, acc = self.fold(self.tiles())
            return self.finish(acc, l), self.log_sum_exp(m, l)

    def fold(self, tiles: Iterable[Tile]) -> tuple[Any, ...]:
        """Visit tiles of keys one after the other; return their maximum, row sum and unnormalized output."""
        m, l, acc = self.nothing_seen()
        for self.tile in tiles:  # every step reads the current tile
            s = self.scores()
            m_new = self.update_max(m, self.tile_max(s))
            p = self.weights(self.hide(s), m_new)
            alpha = self.rescale_factor(m, m_new)
            l = self.accumulate_row_sum(self.rescale_row_sum(l, alpha), p)
            w = self.cast_probabilities(p, l)
            acc = self.accumulate_output(self.rescale_output(acc, alpha), w, self.load_v())
            m = m_new
        return m, l, acc

    def nothing_seen(self) -> tuple[Any, ...]:
        """Return the maximum, row sum and output of no keys."""
        rows = tuple(self.q.shape[:3])
        return tuple(self.array(np.full((*rows, n), x)) for n, x in ((1, -np.inf), (1, 0.0), (self.Dv, 0.0)))

    # Online softmax

    def tile_max(self, s: Any) -> Any:
        return self.xp.max(self.hide(s), axis=-1, keepdims=True)

    def update_max(self, m: Any, tile_max: Any) -> Any:
        """Return the running reference of the row.

        It is the maximum; under a lazy contract a number at most ``reference_slack`` below it; or the contract's fixed
        reference. A sink that is added to a finished row sum moves it only in rows that see no key.
        """
        if self.c.reference != "maximum":
            return self.fixed_reference(m)
        if self.is_at_last_sink:
            return self.xp.where(m == -np.inf, tile_max, m)
        m_new = self.xp.maximum(m, tile_max)
        slack = self.c.reference_slack / (math.log(2) if self.is_base2 else 1.0)
        return self.xp.where(self.xp.isfinite(m) & (m_new - m <= slack), m, m_new) if slack else m_new

    @property
    def adds_sink_last(self) -> bool:
        """True if the sink is reduced by the maximum of the keys alone."""
        return self.sinks is not None and self.order.sink == "last" and self.c.sink_reference == "keys"

    @property
    def is_at_last_sink(self) -> bool:
        """True at the tile of such a sink. Its weight may overflow the format of probabilities, and is not cast."""
        return self.adds_sink_last and self.tile.cols[0] == self.Sk

    def fixed_reference(self, m: Any) -> Any:
        """Return one reference for the row: zero, or an upper bound on its scores from norms of q and k."""
        nothing = self.xp.zeros_like(m)
        return nothing if self.c.reference == "zero" else nothing + self.upper_bound()

    def upper_bound(self) -> Any:
        """Return the largest score after all terms, if those before are at most |q| max |k|: [B, Hq, Sq, 1].

        A key that is not finite is left out: it may be masked, and a query that sees it has no finite answer.
        """
        q, k = (np.linalg.norm(values_of(x), axis=-1, keepdims=True) for x in (self.q, self.k))
        k = np.where(np.isfinite(k), k, 0.0)
        j = np.arange(self.Sk)[:, None]
        k = np.where((self.sequences.first_keys <= j) & (j < self.sequences.end_keys), k, 0.0)
        q = np.where(np.arange(self.Sq)[:, None] < self.sequences.used_queries, q, 0.0)
        k = k[:, self.map_kv_head()].max(axis=2, keepdims=True, initial=0.0)
        largest = q * k if self.pair_scores is None else np.abs(self.pair_scores).max(-1, keepdims=True, initial=0.0)
        scale = np.asarray(self.default_scale() if self.scale is None else self.scale, dtype=np.float64)
        p = {"scale": scale, **self.numbers}
        highest = at_most({name: TERMS[name] for name in p}, largest, p)
        if self.slopes is not None and self.alibi_from == "first":
            highest = highest + values_of(self.slopes) * self.Sk
        return self.array(highest * (math.log2(math.e) if self.is_base2 else 1.0))

    def subtract_lse(self, s: Any) -> Any:
        """Return s - L, for the log-sum-exp ``self.L`` [B, Hq, Sq, 1] of the row."""
        L = self.change_base(self.xp.where(-np.inf == self.L, 0.0, self.L))
        return self.round((self.score_in_base(s) if self.folds_exponent else s) - L, "softmax")

    def subtract(self, s: Any, m: Any) -> Any:
        """Return s - m, where m counts as 0 until a key is visible: -inf - -inf would be NaN."""
        m = self.xp.where(m == -np.inf, 0.0, m)
        if self.folds_exponent:
            return self.round(self.score_in_base(s) - self.reference_in_base(m), "softmax")
        return self.round(s - m, "softmax")

    def exponent_factor(self) -> Any:
        """Return scale log2(e) as one constant."""
        return self.times(self.factor(), self.log2e, "score_accumulation")

    def score_in_base(self, s: Any) -> Any:
        """Return s scale log2(e)."""
        c = self.exponent_factor()
        return s * c if self.order.fused else self.times(s, c, "score_accumulation")

    def reference_in_base(self, m: Any) -> Any:
        """Return m scale log2(e), which is subtracted from every score of a row."""
        return self.times(m, self.exponent_factor(), "score_accumulation")

    def weights(self, s: Any, m: Any) -> Any:
        """Return unnormalized weights p = exp(s - m), times the scale of probabilities if exponents have it."""
        b = self.exponent_offset
        if not b:
            return self.exponential(self.subtract(s, m))
        if not self.folds_exponent:
            return self.exponential(self.round(self.subtract(s, m) + b, "softmax"))
        reference = self.reference_in_base(self.xp.where(m == -np.inf, 0.0, m))
        moved = self.round(reference - b, "score_accumulation")
        return self.exponential(self.round(self.score_in_base(s) - moved, "softmax"))

    @property
    def exponent_offset(self) -> float:
        """Logarithm of base 2 of the scale of probabilities if it is added to exponents, else 0."""
        added = self.order.scale_in_exponent and self.c.exponent_offset
        return math.log2(self.c.probability_scale) if added else 0.0

    def rescale_factor(self, m: Any, m_new: Any) -> Any:
        if self.folds_exponent:
            difference = self.round(m - self.xp.where(m_new == -np.inf, 0.0, m_new), "score_accumulation")
            return self.exponential(self.times(difference, self.exponent_factor(), "softmax"))
        return self.exponential(self.subtract(m, m_new))

    def rescale_row_sum(self, l: Any, alpha: Any) -> Any:
        return self.rescale(l, alpha, "row_sum") if self.c.reference == "maximum" else l

    def rescale_output(self, acc: Any, alpha: Any) -> Any:
        return self.rescale(acc, alpha, "output_accumulation") if self.c.reference == "maximum" else acc

    def rescale(self, x: Any, alpha: Any, stage: str) -> Any:
        """Return an accumulator times a rescale factor."""
        return self.round(x * alpha, stage)

    def accumulate_row_sum(self, l: Any, p: Any) -> Any:
        casts = self.casts_row_sum and not self.is_at_last_sink
        p = self.scaled_weights(p) if self.casts_row_sum and not casts else p
        w = self.convert(self.cast_once(p) if casts else p, "row_sum", "multiplicands" if casts else "softmax")
        return self.accumulate(lambda j: w[..., j, None], w.shape[-1], "row_sum", l)

    @property
    def casts_row_sum(self) -> bool:
        """True if the row sum adds weights after their cast."""
        return self.c.row_sum_of == "cast" and self.c.normalize == "after_product"

    def cast(self, p: Any) -> Any:
        return self.enter(self.convert(self.held(self.scaled_weights(p)), "probabilities", "softmax"), "probabilities")

    def scaled_weights(self, p: Any) -> Any:
        """Return weights times the scale of probabilities, unless their exponents have it."""
        c = self.c.probability_scale
        return p if c == 1 or self.exponent_offset else self.times(p, c, "softmax")

    def held(self, p: Any) -> Any:
        """Return numbers before the cast of probabilities, at most its largest if the cast saturates."""
        if self.c.overflow != "saturates":
            return p
        largest = self.c.format("probabilities").largest
        return self.xp.where(p > largest, largest, p)

    def unscaled(self, acc: Any) -> Any:
        """Return an output without the scale of probabilities, unless the row sum that will divide it has it too."""
        c, scaled_sum = self.c.probability_scale, self.casts_row_sum or self.exponent_offset
        if c == 1 or scaled_sum:
            return acc
        stage = "output_accumulation" if self.order.divides else "softmax"
        return self.times(acc, self.constant(1 / c, stage=stage), stage)

    def unscaled_row_sum(self, l: Any) -> Any:
        """Return a row sum without the scale of probabilities, for its logarithm."""
        c = self.c.probability_scale
        if c == 1 or not (self.casts_row_sum or self.exponent_offset):
            return l
        return self.times(self.convert(l, "softmax", "row_sum"), self.constant(1 / c, stage="softmax"), "softmax")

    def cast_probabilities(self, p: Any, l: Any) -> Any:
        """Return the weights as they enter the product, divided by l first if the contract normalizes before it."""
        if self.c.normalize == "before_product":
            return self.cast(self.drop(self.normalized_weights(p, l)))
        return self.cast(self.drop(p)) if self.changes_weights else self.cast_once(p)

    def cast_once(self, p: Any) -> Any:
        """Return the cast of p, computed once for the row sum and for the product."""
        if self.last_cast[0] is not p:
            self.last_cast = (p, self.cast(p))
        return self.last_cast[1]

    def normalized_weights(self, p: Any, l: Any) -> Any:
        """Return p / l."""
        return self.divide(p, self.nonzero(l))

    def divide(self, x: Any, l: Any) -> Any:
        """Return x / l, or x (1 / l)."""
        return self.round(x / l if self.order.divides else x * self.round(1 / l, "softmax"), "softmax")

    def accumulate_output(self, acc: Any, w: Any, v: Any) -> Any:
        """Return acc + w v over the keys of non-zero weight: 0 times a masked NaN would be NaN."""
        if self.is_at_last_sink:  # it has no value
            return acc
        return self.weighted_sum(w, self.enter_values(v), "output_accumulation", acc)

    def enter_values(self, v: Any) -> Any:
        """Return the values of a tile as their product reads them."""
        return self.enter(*self.descaled_values(self.raised(v, "values")))

    def weighted_sum(self, w: Any, x: Any, stage: str, start: Any) -> Any:
        """Return start + sum_j w_j x_j, [.., tile] and [B, Hq, tile, ..]; x_j is replaced by 0 where w_j is 0."""

        def pair(j: int) -> tuple[Any, Any]:
            return w[..., j, None], self.xp.where(w[..., j, None] == 0, 0.0, x[:, :, None, j])

        return self.add_products(pair, w.shape[-1], stage, start)

    # Results

    def nonzero(self, l: Any) -> Any:
        """Return the row sum, and 1 for rows without a term: their output is 0 and their log-sum-exp -inf + log(1)."""
        return self.xp.where(l == 0, 1.0, self.convert(l, "softmax", "row_sum"))

    def finish(self, acc: Any, l: Any) -> Any:
        """Return acc / l, or acc if the weights were normalized already, without the scale of probabilities."""
        return self.finish_unscaled(self.unscaled(acc), l)

    def finish_unscaled(self, acc: Any, l: Any) -> Any:
        """Return acc / l, or acc if the weights were normalized already."""
        if self.c.normalize != "after_product":
            return self.stored_output(self.raised(acc, "output"), "output_accumulation")
        acc = self.divide(self.convert(acc, "softmax", "output_accumulation"), self.nonzero(l))
        return self.stored_output(self.raised(acc, "output"), "softmax")

    def log_sum_exp(self, m: Any, l: Any) -> Any:
        """Return the log-sum-exp as it is handed over."""
        return self.moved_back(self.natural_lse(m, l))

    def moved_back(self, lse: Any) -> Any:
        """Return the log-sum-exp of the definition's scores, from the one of the kernel's own scores."""
        shift = self.row_shift()
        return self.convert(self.add(lse, -shift[..., 0], "softmax"), "lse", "softmax") if np.ndim(shift) else lse

    def natural_lse(self, m: Any, l: Any) -> Any:
        """Return m + log(l), the natural logarithm; minus infinity where no key was seen."""
        if not self.folds_exponent:
            b = self.exponent_offset
            return self.log_of_sum(m, l if b else self.unscaled_row_sum(l), b)
        l = self.unscaled_row_sum(l)
        top = self.times(self.xp.where(m == -np.inf, 0.0, m), self.factor(), "score_accumulation")
        log = self.times(self.logarithm(self.nonzero(l)), self.ln2, "score_accumulation")
        return self.finished_lse(self.round(top + log, "softmax"), l)

    def log_of_sum(self, m: Any, l: Any, offset: float = 0.0) -> Any:
        """Return m + log(l) - offset for m and an offset in the units of the exponential, as the natural logarithm."""
        total = self.round(self.xp.where(m == -np.inf, 0.0, m) + self.logarithm(self.nonzero(l)), "softmax")
        total = self.round(total - offset, "softmax") if offset else total
        return self.finished_lse(self.times(total, self.ln2, "softmax") if self.is_base2 else total, l)

    def finished_lse(self, total: Any, l: Any) -> Any:
        """Return the log-sum-exp as it is stored."""
        return self.xp.where(l == 0, -np.inf, self.convert(total, "lse", "softmax"))[..., 0]
