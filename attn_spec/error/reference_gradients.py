"""What rounding leaves of the gradient of what is subtracted from scores, where a framework differentiates that too.

Such a gradient is 0 in exact arithmetic. Of m = max s of some keys W it is - sum_W p g from their weights, for
g = (dP - D) / l the gradient of a weight, and + sum_W p g from what l and p v are multiplied by for m's sake. But the
first has the rounded dP. The second has D as it is found, from p v and l as they were summed. With e_i the error of
dP_i, a_i the cast of p_i, b_ic the roundings of its product with v_ic, c_i those of p_i in l, and d the error of D
that the outputs do not explain,

    sum_W P_i (a_i dP_i + sum_c b_ic dO_ic v_ic - e_i + c_i D) + d

is left, and is a part of dS at the key that attains the maximum. Keys are visited in order, a chunk or a tile at a
time. So W is a part of the longest run of keys around the largest one of them.

Parts that are merged by their log-sum-exps L_t have one more such gradient each, P_t (dO o_t - D) of L_t. It has o_t as
that was stored, and the weights of the part have D_t = dO o_t, or sum P dP, as it was before. So all keys of a part
have a gradient left, P_i times that difference. Likewise where each tile is divided by a row sum of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.dropout_bounds import factor_underflow, late_roundings, weight_stages
from attn_spec.error.intermediates import GradientIntermediates, Intermediates
from attn_spec.error.operand_bounds import value_format, value_sizes
from attn_spec.error.output_bounds import (
    OutputTerms,
    merged_growth,
    numerator_growth,
    renormalizations,
)
from attn_spec.error.products import casts_row_sum, entry, probability_cast, sum_underflow, terms
from attn_spec.error.roundoff import conversion, growth, rounding
from attn_spec.error.row_sum_bounds import WeightError, divided
from attn_spec.error.weight_bounds import log_weight_error, reference_rounding
from attn_spec.error.weight_gradient_bounds import (
    cotangent_entering,
    division,
    division_underflow,
    largest_weight,
)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What is known of dP and D; arrays are [.., Sq, Sk] or [.., Sq, 1]."""

    x: Intermediates
    c: ResolvedContract
    w: WeightError
    #: The error of dP, and what dP and D less dL are at most.
    edP: np.ndarray
    dP: np.ndarray
    D: np.ndarray
    #: sum_c |dO_c|, sum_c |dO_c v_c|, which dropout has changed, and the last roundings of o in sum_c dO_c o_c.
    dO: np.ndarray
    of_v: np.ndarray
    last: np.ndarray
    #: Growth of a weight in the numerator beside its cast, and in the row sum.
    moved: np.ndarray
    C: np.ndarray

    @property
    def in_parts(self) -> bool:
        """Whether parts of a row are divided by row sums of their own."""
        return self.c.lse_merges > 0 or self.c.normalize == "every_tile"

    @property
    def own(self) -> np.ndarray:
        """The error of dP, with that of the cast of a weight that multiplies it."""
        return self.edP + probability_cast(self.c).u * self.dP

    @property
    def divided(self) -> np.ndarray:
        """What the division of an output by its row sum makes of sum_c dO_c o_c, of one key."""
        softmax = rounding(self.c, "softmax")
        narrowing = conversion(self.c, "softmax", self.c.format("output_accumulation"))
        relative = growth((softmax.u, 4 + 3 * renormalizations(self.x, self.c)), (narrowing.u, 1))
        tiny = 3 * softmax.eta + self.lost + divided(self.x, self.c) * narrowing.eta
        return relative * self.of_v + tiny * self.dO

    @property
    def lost(self) -> float:
        """What underflows where a factor of dropout multiplies a weight."""
        return factor_underflow(self.x, self.c, *weight_stages(self.c))

    def summed(self, n: np.ndarray | float) -> np.ndarray:
        """Roundings of a sum of n products of scores' formats."""
        stored = conversion(self.c, "stored_scores", self.c.format("score_accumulation"))
        return growth((rounding(self.c, "score_accumulation").u, n), (stored.u, 2))


@np.errstate(all="ignore")
def left_of_references(
    x: Intermediates,
    g: GradientIntermediates,
    c: ResolvedContract,
    w: WeightError,
    e: OutputTerms,
    *,
    most: np.ndarray,
    edP: np.ndarray,
    eD: np.ndarray,
) -> np.ndarray:
    """What is left of the gradients of references and of log-sum-exps of parts, in dA of each key, [.., Sq, Sk].

    ``x`` leaves far keys out; ``e`` are the terms of the output's error, ``most`` is the largest that each weight may
    be, ``edP`` and ``eD`` are the errors of dP and of D less dL.
    """
    dO = cotangent_entering(x, g, c)[0]
    dL = 0.0 if g.lse_cotangent is None else np.abs(g.lse_cotangent)[..., None]
    row = _Row(
        x=x,
        c=c,
        w=w,
        edP=edP,
        dP=np.where(x.visible, np.abs(g.dP) + edP, 0.0),
        D=np.abs(g.D) + eD + dL,
        dO=dO.sum(-1, keepdims=True),
        of_v=x.dropped(dO @ value_sizes(x, c).swapaxes(-1, -2)),
        last=(dO * (e.finish * np.abs(x.O) + e.tiny)).sum(-1, keepdims=True),
        moved=numerator_growth(x, c, w, casts=0),
        C=e.C,
    )
    left = np.zeros(())
    if c.reference == "maximum":
        left = _over_runs(x, c, np.where(x.visible, most * _in_run(row) + _underflow_in_run(row), 0.0))
    if row.in_parts:
        left = left + most * np.where(x.visible, _in_part(row), 0.0).max(axis=-1, keepdims=True, initial=0.0)
    again = row.summed(1)  # it is added to the gradient of a score
    return (1 + again) * left + again * most * (row.dP + row.D)


def _in_run(row: _Row) -> np.ndarray:
    """What a key adds to what is left of a maximum, over its weight."""
    x, c = row.x, row.c
    each = row.own + (growth(*division(x, c), *late_roundings(x, c)) + row.C) * row.D + division_underflow(x, c)
    each = each + row.summed(x.keys + 4) * (row.dP + row.D)
    if casts_row_sum(c) or c.score_gradients_of == "cast":
        each = each + probability_cast(c).u * row.D
    if c.delta == "probabilities":
        return each + row.summed(x.keys + 2) * row.dP
    apart = (1 + row.moved) * (1 + row.summed(x.v.shape[-1] + 2)) - 1
    each = each + apart * row.of_v + (row.divided if row.in_parts else row.last)
    return each + x.largest_factor * (entry(c, value_format(x, c)).eta + row.lost) * row.dO


def _underflow_in_run(row: _Row) -> np.ndarray:
    """What a key adds beside: what underflows before it is divided by l, and where it is stored."""
    x, c = row.x, row.c
    work, stored, softmax = (rounding(c, stage).eta for stage in ("score_accumulation", "stored_scores", "softmax"))
    steps = 4 * (1 + row.w.R.max(axis=-1, keepdims=True, initial=0.0) + renormalizations(x, c))
    of_sums = terms(c, steps) * sum_underflow(c, "output_accumulation") * x.largest_factor * row.dO
    of_weights = _cast_underflow(row) * row.dP + (steps * softmax + row.lost) * row.of_v
    small = 2 * x.v.shape[-1] * work + 4 * largest_weight(x, c) * work + 2 * stored
    return row.w.inverse_sum * (of_weights + of_sums) + x.largest_factor * small


def _in_part(row: _Row) -> np.ndarray:
    """How far dO o_t lies from D_t at most, where a part is that key alone."""
    x, c = row.x, row.c
    merged = (1 + merged_growth(x, c)) * (1 + row.summed(x.v.shape[-1] + 2)) - 1
    waits = 4 * c.lse_merges * sum(rounding(c, stage).eta for stage in ("softmax", "partial_outputs"))
    stored = merged * row.of_v + (1 + merged) * row.divided + waits * x.largest_factor * row.dO
    if c.delta == "output":
        return stored
    lost = row.lost + sum_underflow(c, "output_accumulation") * x.largest_factor
    lost = 4 * terms(c, x.keys) * lost * row.dO + (_cast_underflow(row) * row.dP).sum(-1, keepdims=True)
    moved = row.moved * (row.of_v + stored) + (entry(c, value_format(x, c)).eta + row.lost) * row.dO
    return stored + row.own + row.summed(x.keys + 2) * row.dP + moved + divided(x, c) * lost


def _cast_underflow(row: _Row) -> np.ndarray:
    """What the cast of a weight may lose to underflow, [.., Sq, Sk]: nothing of one that is surely a normal number."""
    x, c = row.x, row.c
    delta = log_weight_error(x, c).delta
    smallest = max(form.smallest_normal for form in c.formats("probabilities", "multiplicands"))
    highest = x.M + c.reference_distance + reference_rounding(x, c) + delta.max(axis=-1, keepdims=True, initial=0.0)
    return np.where(x.s - delta < highest + math.log(smallest) + 1.0, probability_cast(c).eta, 0.0)


def _over_runs(x: Intermediates, c: ResolvedContract, terms: np.ndarray) -> np.ndarray:
    """The sum of ``terms`` [.., n] over the longest run around each key of keys whose scores may be below its own."""
    delta = log_weight_error(x, c).delta
    low = np.where(x.visible, x.s - delta, -np.inf)
    high = np.where(x.visible, x.s + delta, -np.inf)
    before, after = reach(low, high), reach(low[..., ::-1], high[..., ::-1])[..., ::-1]
    sums = np.cumsum(np.concatenate([np.zeros((*terms.shape[:-1], 1)), terms], axis=-1), axis=-1)
    at = np.arange(terms.shape[-1])
    found = np.take_along_axis(sums, at + 1 + after, axis=-1) - np.take_along_axis(sums, at - before, axis=-1)
    return np.where(x.visible, np.maximum(found, terms) + 2.0**-44 * sums[..., -1:], 0.0)


def reach(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """How many keys directly before each have a ``low`` of at most its ``high``, [.., n]; by halves, widest first."""
    n = low.shape[-1]
    widest = [low]  # of 1, 2, 4, .. keys, ending with each
    while 2 ** len(widest) < n:
        last, width = widest[-1], 2 ** (len(widest) - 1)
        earlier = np.concatenate([np.full((*low.shape[:-1], min(width, n)), -np.inf), last[..., :-width]], axis=-1)
        widest.append(np.maximum(last, earlier))
    reach = np.zeros(low.shape, dtype=np.int64)
    for step in reversed(range(len(widest))):
        ends = np.arange(n) - 1 - reach
        inside = ends - 2**step + 1 >= 0
        largest = np.take_along_axis(widest[step], np.maximum(ends, 0), axis=-1)
        reach += np.where(inside & (largest <= high), 2**step, 0)
    return reach
