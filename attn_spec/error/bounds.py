"""How far each element of an attention output may lie from the truth under a contract.

Every bound is deterministic and per element, and holds for every tiling and order of summation, with or without
fused multiply-add. Symbols: P = exp(s - L) weights, o = P v, n visible keys of a row, A = e^alpha - 1. What stands
for the float64 evaluation of the formulas is told in ``row_sum_bounds``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.error import value_spread
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.domain import empty_rows_in_domain, in_domain
from attn_spec.error.dropout_bounds import factor_roundings, factor_underflow, weight_stages
from attn_spec.error.far_keys import without_far_keys
from attn_spec.error.intermediates import Intermediates, kept
from attn_spec.error.operand_bounds import value_format, value_sizes
from attn_spec.error.products import (
    Factors,
    casts_row_sum,
    entry,
    left_out,
    probability_cast,
    sum_underflow,
    sums,
    terms,
)
from attn_spec.error.readings import readings
from attn_spec.error.roundoff import Rounding, conversion, growth, rounding
from attn_spec.error.row_sum_bounds import (
    EVALUATION,
    INFLATION,
    WeightError,
    amplification,
    deviations,
    evaluation_alpha,
    lse_error,
    weight_error,
)
from attn_spec.error.weight_bounds import (
    exponential_error,
    merge_weight_error,
    partial_lse_error,
    reference_rounding,
    weight_error_by_lse,
)

#: Total relative error of a row's weights from which the hull bound may be the smaller one.
HULL_FROM = 2.0**-4


@dataclass(frozen=True)
class ForwardBound:
    """The largest errors allowed, and the rows they hold for."""

    #: Of "output" [B, Hq, Sq, Dv] and "lse" [B, Hq, Sq].
    allowed: dict[str, np.ndarray]
    #: bool [B, Hq, Sq]: of those that see a key; and those that see none, whose answer a convention decides.
    in_domain: np.ndarray
    empty_in_domain: np.ndarray
    #: That of the output of a layer, bool [B, 1, Sq]; None: that of its heads.
    output_domain: np.ndarray | None = None

    def domain_of(self, name: str) -> np.ndarray:
        """Where the bound of a quantity holds."""
        apart = name == "output" and self.output_domain is not None
        return self.output_domain if apart else self.in_domain  # type: ignore[return-value]


@np.errstate(all="ignore")
def forward_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound under a resolved contract. The true output lies in ``o`` +- ``slack`` (default: x.O, exact)."""
    o = x.O if o is None else o
    slack = np.broadcast_to(np.asarray(slack, dtype=np.float64), o.shape)
    near = [(without_far_keys(x, c), c) for c in readings(contract)]
    weights = [(y, c, weight_error(y, c)) for y, c in near]
    output = np.maximum.reduce([output_error(y, c, w, o, slack) for y, c, w in weights])
    lse = np.maximum.reduce([lse_error(y, c, w) for y, c, w in weights])
    looked_at = {id(y): y for y, _ in near}.values()
    inside = np.logical_and.reduce([in_domain(y, contract, output) for y in looked_at])
    return ForwardBound({"output": output, "lse": lse}, inside, empty_rows_in_domain(x, contract))


@kept
@np.errstate(all="ignore")
def evaluation_error(x: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves: the same theorems under the float64 contract.

    The formula is given the computed o for the true one, see :func:`amplification`.
    """
    amplify = amplification(evaluation_alpha(without_far_keys(x, EVALUATION)))
    bound = forward_bound(x, EVALUATION)
    output, lse = bound.allowed["output"] * amplify[..., None], bound.allowed["lse"] * amplify
    return replace(bound, allowed={"output": output, "lse": lse})


@np.errstate(all="ignore")
def output_error(x: Intermediates, c: ResolvedContract, w: WeightError, o: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """|O_hat - o| element by element, [.., Sq, Dv]; a contract with normalize="by_lse" has :func:`_by_lse_error`.

    Write the computed weights as P(1 + a), |a| <= A, with factors 1 + b of the numerator only, |b| <= B, and 1 + c
    of the row sum only, |c| <= C. v_j is c_ij v_j under dropout. Because sum_j P (v_j - o) = 0,

        O_hat - o = [ sum P a (v - o) + sum P (1 + a)(b v - c o) + underflow ] / sum P (1 + a)(1 + c).

    Where the denominator cannot be kept away from 0 only :func:`hull_error` remains. Values that are off by f_j
    themselves have the output sum P v^, which is off by sum P f, and about which all of this is said.
    """
    off = value_spread.slack(x, c)
    slack = slack + off
    if c.normalize == "by_lse":
        return _by_lse_error(x, c, w, o, slack) + off * INFLATION
    e = numerator_error(x, c, w, o, slack)
    spread = value_spread.spread(x, c, w.PA, o) + w.PA.sum(-1, keepdims=True) * slack
    X = np.where(e.kappa > 0, (spread + e.rest) / e.kappa, np.inf)
    if w.PA.sum(-1).max(initial=0.0) > HULL_FROM or not np.isfinite(X).all():
        X = np.fmin(X, hull_error(x, c, w, o, e) + slack + e.outside_hull)
    return (X + off + e.finish * (np.abs(o) + slack + X) + e.tiny) * INFLATION


@dataclass(frozen=True)
class NumeratorError:
    """What makes up the error of the output beside sum P a (v - o)."""

    #: The other terms of the numerator, [.., Sq, Dv], and the least denominator, [.., Sq, 1].
    rest: np.ndarray
    kappa: np.ndarray
    #: Relative growth of a weight in the numerator only, [.., Sq, Sk].
    B: np.ndarray
    #: Of the normalized output: relative, [.., Sq, 1], and absolute.
    finish: np.ndarray
    tiny: np.ndarray | float
    #: How far underflow may carry a convex combination of the values, [.., Sq, 1].
    outside_hull: np.ndarray
    #: What an absolute error becomes when the row sum divides it, at most, whatever the errors of the scores.
    divided: np.ndarray


@np.errstate(all="ignore")
def numerator_error(
    x: Intermediates, c: ResolvedContract, w: WeightError, o: np.ndarray, slack: np.ndarray | float
) -> NumeratorError:
    """B, underflow, the denominator and the last roundings of :func:`output_error`."""
    before, every = float(c.normalize != "after_product"), renormalizations(x, c)
    cast, enters, softmax = probability_cast(c), entry(c, value_format(x, c)), rounding(c, "softmax")
    rescaled, out, partial = rounding(c, "output_accumulation"), output_cast(c), rounding(c, "partial_outputs")
    tiny_sum, merges = sum_underflow(c, "output_accumulation"), c.lse_merges
    # Normalizing by a reciprocal rounds twice. What a factor has multiplied is cast apart from the row sum.
    factor, lost = factor_roundings(x, c, *weight_stages(c)), factor_underflow(x, c, *weight_stages(c))
    own = [
        (cast.u, (2 if factor else 0) if casts_row_sum(c) else 1),
        *factor,
        (enters.u, 1),
        (left_out_of_output(x, c), 1),
        (softmax.u, 3 * every or 2 * before),
    ]
    moved = every - 1 if every else w.R
    length = x.problem.key_length
    B = growth(*own, *output_sums(c, x.keys, length), (rescaled.u, moved + 2 * merges), (partial.u, merges))
    if merges:
        B = (1 + B) * (1 + _merge_growth(x, c)) - 1
    size_v, size_o = value_sizes(x, c), np.abs(o) + slack
    total_v, most_B = x.dropped(x.seen) @ size_v, B.max(axis=-1, keepdims=True, initial=0.0)
    steps = terms(c, x.keys) + w.R.max(axis=-1, keepdims=True, initial=0.0) + every
    f, flushed = x.largest_factor, 2 * (before + every) * softmax.eta + lost
    absolute = (1 + most_B) * ((cast.eta + flushed) * total_v + 4 * steps * tiny_sum * f)
    # A v that underflows on entry is off by enters.eta whatever its weight, so the row sum does not scale it down.
    entering = (1 + most_B) * (enters.eta + lost)
    underflow = (1.0 if before else w.inverse_sum) * absolute + entering * x.dropped(w.P1A).sum(-1, keepdims=True)
    underflow = underflow + w.inverse_sum * ((1 + most_B) * w.eta * total_v + x.keys * w.eta_sum * size_o)
    # An output that waits for its merge may underflow, and so may what it is multiplied by.
    waits = 4 * merges * (softmax.eta + tiny_sum + partial.eta)
    waiting = (1 + most_B) * waits * f * (1 + x.keys + total_v + x.keys * size_o)
    rest = underflow + waiting + x.dropped(w.P1A * B) @ size_v + (w.P1A * w.C).sum(-1, keepdims=True) * size_o
    # An accumulator that is wider than the softmax is rounded to that before it is divided by the row sum.
    narrowing = conversion(c, "softmax", c.format("output_accumulation")).u * (1 - before)
    finish = growth((softmax.u, 2 * (1 - before)), (narrowing, 1), (out.u, 1))
    if merges:  # normalized by e^L, with L rounded, instead of by the sum of the e^(L_t - L) themselves
        finish = (1 + finish) * np.exp(merges * partial_lse_error(x, c)) - 1
    divided = 4 * np.exp(c.reference_distance + reference_rounding(x, c))
    return NumeratorError(
        divided=divided,
        rest=rest,
        kappa=1 - w.fall.sum(-1, keepdims=True) - w.inverse_sum * x.keys * w.eta_sum,
        B=B,
        finish=finish,
        tiny=f * (3 * softmax.eta + lost) + out.eta + _difference_error(x, c, w, most_B),
        outside_hull=2 * divided * absolute + 2 * f * entering + 2 * waiting,
    )


def renormalizations(x: Intermediates, c: ResolvedContract) -> int:
    """How often a weight is divided by one row sum and multiplied by another, under normalize="every_tile".

    The ratios of row sums telescope; each rounds a reciprocal, the quotient and its product with the rescale factor,
    and then what that multiplies.
    """
    return c.tiles(x.problem.key_length) if c.normalize == "every_tile" else 0


def _difference_error(x: Intermediates, c: ResolvedContract, w: WeightError, most_B: np.ndarray) -> np.ndarray | float:
    """Absolute error of merges o - b (o - o'), which are rounded where o - o' is large and b small, [.., Sq, Dv].

    b = 1/(1 + exp(L - L')) is off by the error of its exponential and two roundings, the difference and the product
    by one each. Both outputs are convex combinations of the visible values, but for their own errors B and C. The
    error of L' - L is that of the weights, b and 1 - b alike, and counted there.
    """
    if c.merging != "difference" or not c.lse_merges:
        return 0.0
    high, low = value_spread.visible_range(x, c)
    off = most_B + w.C.max(axis=-1, keepdims=True, initial=0.0)
    work = max(rounding(c, stage).u for stage in ("softmax", "output_accumulation"))
    own = (1 + growth((work, 4))) * math.exp(exponential_error(c)) - 1
    return c.lse_merges * own * (high - low + 4 * off * np.maximum(np.abs(high), np.abs(low)))


def output_cast(c: ResolvedContract) -> Rounding:
    """Rounding of the finished output from the widest format it may be in: merged parts may be in either."""
    divided, merged = c.normalize == "after_product", c.lse_merges > 0
    stages = ["softmax"] * divided + ["output_accumulation"] * (not divided or merged)
    return conversion(c, "output", max((c.format(stage) for stage in stages), key=lambda form: form.precision))


def left_out_of_output(x: Intermediates, c: ResolvedContract) -> float:
    """Products of pieces of a probability and a value that are not formed, relative to the product."""
    return left_out(c, c.format("probabilities"), value_format(x, c))


def output_sums(c: ResolvedContract, keys: np.ndarray, length: int) -> Factors:
    """Factors of the sum of p.v over visible keys of ``length``; tiles of a matrix unit end in blocks of their own."""
    return sums(c, "output_accumulation", keys, blocks=math.ceil(length / c.matrix_block) + c.tiles(length))


@np.errstate(all="ignore")
def _by_lse_error(
    x: Intermediates, c: ResolvedContract, w: WeightError, o: np.ndarray, slack: np.ndarray
) -> np.ndarray:
    """|O_hat - o| where O_hat = sum_j exp(s_j - LSE) v_j, whose weights need not add up to 1.

    The error of the LSE multiplies the whole row; all others are those of single terms.
    """
    EL = lse_error(x, c, w)[..., None]
    A = weight_error_by_lse(x, c, EL)
    cast, enters, softmax = probability_cast(c), entry(c, value_format(x, c)), rounding(c, "softmax")
    out, tiny = output_cast(c), sum_underflow(c, "output_accumulation") * x.largest_factor
    factor, lost = factor_roundings(x, c, "softmax"), factor_underflow(x, c, "softmax")
    length = x.problem.key_length
    factors = [(cast.u, 1), (enters.u, 1), (left_out_of_output(x, c), 1), *factor, *output_sums(c, x.keys, length)]
    B = growth(*factors)
    PA, P1A = deviations(x, np.where(x.visible, A + np.log1p(B), 0.0))
    size_v = value_sizes(x, c)
    G, total_v = np.expm1(np.minimum(EL, 700.0)), x.dropped(x.seen) @ size_v
    absolute = (1 + B) * ((cast.eta + 4 * softmax.eta + lost) * total_v + 4 * terms(c, x.keys) * tiny)
    PA, P1A = x.dropped(PA * w.widen), x.dropped(P1A * w.widen)
    entering = (enters.eta + lost) * P1A.sum(-1, keepdims=True)
    own = PA @ size_v + absolute + (1 + B) * entering
    X = (1 + G) * own + G * (np.abs(o) + slack)
    return (X + out.u * (np.abs(o) + slack + X) + out.eta + lost) * INFLATION


def hull_error(x: Intermediates, c: ResolvedContract, w: WeightError, o: np.ndarray, e: NumeratorError) -> np.ndarray:
    """Error of any convex combination of the visible values, widened by B and C, [.., Sq, Dv].

    Whatever the computed weights, they are non-negative and add up to the row sum but for 1 + B, 1 + C and what
    underflows in the row sum alone, and the row sum is at least about its largest term, exp(0) but for the rounding of
    the reference. inf where C is too large to say anything.
    """
    high, low = value_spread.visible_range(x, c)
    most_B, most_C = (z.max(axis=-1, keepdims=True, initial=0.0) for z in (e.B, w.C))
    most_C = most_C + e.divided * x.keys * w.eta_sum
    loose = np.where(most_C < 0.25, (1 + most_B) / (1 - 2 * np.minimum(most_C, 0.25)) - 1, np.inf)
    return np.maximum(high - o, o - low) + loose * np.maximum(np.abs(high), np.abs(low))


def _merge_growth(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Factor of the numerator only, less 1, of merges through log-sum-exps, [.., Sq, Sk].

    Each divides by l_t, stores o_t and multiplies it by e^(L_t - L), which L may have been summed up from or not.
    """
    stores = growth((rounding(c, "softmax").u, 4 * c.lse_merges))
    return (1 + stores) * np.exp(np.minimum(2 * c.lse_merges * merge_weight_error(x, c), 700.0)) - 1
