"""Terms of the error of a row's output beside those of its weights, for normalizing by the row sum or by the LSE.

Symbols as in ``bounds``: P = exp(s - L) weights, o = P v, n visible keys of a row, A = e^alpha - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.forward import value_spread
from attn_spec.bounds.forward.cast_bounds import largest_cast_weight, raised_before_cast, saturation
from attn_spec.bounds.forward.dropout_bounds import factor_roundings, factor_underflow, weight_stages
from attn_spec.bounds.forward.output_scale_bounds import reading, scaled_underflow, scaling
from attn_spec.bounds.forward.row_sum_bounds import (
    WeightError,
    deviations,
    divided,
    lse_error,
    rounding_by_lse,
    row_sum_growth,
)
from attn_spec.bounds.forward.score_bounds import narrows_scores
from attn_spec.bounds.forward.sink_bounds import tiles_of
from attn_spec.bounds.forward.weight_bounds import (
    exponential_error,
    merge_weight_error,
    partial_lse_error,
    weight_error_by_lse,
)
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.operand_bounds import value_format, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    casts_row_sum,
    number_of_products,
    output_sums,
    probability_cast,
    rounding_on_entry,
    skipped_pieces,
    sum_underflow,
    unscaling,
)
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, term, times

#: Total relative error of a row's weights up to which the first order is as good as the largest mean.
LINEAR_UP_TO = 2.0**-4


@dataclass(frozen=True, kw_only=True)
class OutputTerms:
    """Terms of the output's error beside sum P a (v - o)."""

    #: The other terms of the numerator, [.., Sq, Dv], and the least denominator, [.., Sq, 1].
    rest: np.ndarray
    kappa: np.ndarray
    #: Relative growth of a weight in the numerator only, and in the row sum only, [.., Sq, Sk or 1].
    B: np.ndarray
    C: np.ndarray
    #: Roundings of the normalized output: relative, [.., Sq, 1], and absolute.
    finish: np.ndarray
    tiny: np.ndarray | float
    #: Error that underflow may make in a weighted mean of the values, [.., Sq, Dv or 1].
    outside_hull: np.ndarray
    #: The output that all of this is about, and how far that may lie from the truth itself, [.., Sq, Dv].
    o: np.ndarray
    slack: np.ndarray | float
    #: Rows whose weights have errors beyond LINEAR_UP_TO, [.., Sq].
    rough: np.ndarray
    #: The first order of the error where weights are not divided by their sum, [.., Sq, Dv].
    first: np.ndarray | None = None


@np.errstate(all="ignore")
def output_terms(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, o: np.ndarray, slack: np.ndarray | float
) -> OutputTerms:
    """B, C, underflow, the denominator and the last roundings of ``output_bounds.output_error``."""
    before, every = float(contract.normalize != "after_product"), renormalizations(forward, contract)
    cast, enters, softmax = (
        probability_cast(contract),
        rounding_on_entry(contract, value_format(forward, contract)),
        contract.stages.softmax,
    )
    out, partial = output_cast(contract), contract.stages.partial_outputs
    tiny_sum, merges = sum_underflow(contract, "output_accumulation"), contract.lse_merges
    factor, lost = (
        factor_roundings(forward, contract, *weight_stages(contract)),
        factor_underflow(forward, contract, *weight_stages(contract)),
    )
    # What a factor has multiplied is cast apart from the row sum.
    B = numerator_growth(
        forward,
        contract,
        weights,
        casts=(count("casts of what the row sum has cast", 2) if factor else 0) if casts_row_sum(contract) else 1,
    )
    B = B + (1 + B) * saturation(contract, largest_cast(forward, contract, weights)[..., None])
    if merges:
        B = (1 + B) * (1 + merged_growth(forward, contract)) - 1
    size_v, size_o = (
        term("errors of values in roundings of the output", value_sizes(forward, contract), forward.v_size),
        np.abs(o) + slack + term("errors of values in the size of the output", value_spread.slack(forward, contract)),
    )
    total_v, most_B = forward.raised(forward.seen) @ size_v, B.max(axis=-1, keepdims=True, initial=0.0)
    steps = (
        number_of_products(contract, forward.keys)
        + term("underflow of the output at rescalings", weights.R.max(axis=-1, keepdims=True, initial=0.0))
        + every
    )
    f, flushed = (
        forward.largest_factor,
        term("underflow of normalized weights", 2 * (before + every) * softmax.eta) + lost,
    )
    absolute = times("roundings make the output's underflow grow", 1 + most_B) * (
        (term("underflow of the probabilities' cast", cast.eta) + flushed) * total_v
        + term(
            "underflow of the output's sums",
            count("several underflows of each of the output's sums", 4) * steps * tiny_sum * f,
        )
    )
    # A v that underflows on entry is off by enters.eta whatever its weight, so the row sum does not scale it down.
    entering = times("roundings make a value's underflow grow", 1 + most_B) * (enters.eta + lost)
    underflow = times("underflow before normalization", 1.0 if before else weights.inverse_sum) * absolute + term(
        "underflow of values on entry", entering * forward.raised(weights.P1A).sum(-1, keepdims=True)
    )
    underflow = underflow + weights.inverse_sum * (
        term("underflow of the weights in the numerator", (1 + most_B) * weights.eta * total_v)
        + term("underflow of the row sum in the output", forward.keys * weights.eta_sum * size_o)
    )
    # An output that waits for its merge may underflow, and so may what it is multiplied by.
    waits = (
        count("several underflows of a merge", 4)
        * merges
        * (
            term("underflow of merged weights", softmax.eta)
            + term("underflow of merged outputs", tiny_sum)
            + term("underflow of partial outputs", partial.eta)
        )
    )
    waiting = (1 + most_B) * waits * f * (1 + forward.keys + total_v + forward.keys * size_o)
    rest = (
        underflow
        + waiting
        + term(
            "roundings of the numerator alone",
            term("dropout's factor in roundings of the numerator", forward.dropped(weights.P1A * B), weights.P1A * B)
            @ size_v,
        )
        + term("roundings of the row sum alone", (weights.P1A * weights.C).sum(-1, keepdims=True) * size_o)
    )
    # An accumulator that is wider than the softmax is rounded to that before it is divided by the row sum.
    # Each part of a row is narrowed, and is as large as the row at most.
    parts = forward.keys if merges else 1.0
    narrowing = EXACT if before else softmax.of(contract.stages.output_accumulation.format)
    finish = gamma(
        (softmax.u, count("roundings of the normalization", 2) * (1 - before)),
        (narrowing.u, count("the accumulator narrowed to the softmax", 1)),
        (out.u, count("the output's cast", 1)),
        unscaling(contract),
        scaling(forward, contract),
        reading(forward, contract),
    )
    if merges:  # normalized by e^L, with L rounded, instead of by the sum of the e^(L_t - L) themselves
        finish = term(
            "merged outputs normalized by a rounded LSE",
            (1 + finish) * np.exp(merges * partial_lse_error(forward, contract)) - 1,
            finish,
        )
    return OutputTerms(
        rest=rest,
        kappa=1
        - term("a row sum that falls below the output's", weights.fall.sum(-1, keepdims=True))
        - term("underflow of the output's row sum", weights.inverse_sum * forward.keys * weights.eta_sum),
        B=B,
        C=row_sum_growth(forward, contract, weights),
        o=o,
        slack=slack,
        finish=finish,
        tiny=term(
            "underflow of the normalization", f * (count("underflows of the normalization", 3) * softmax.eta + lost)
        )
        + scaled_underflow(forward, contract, out)
        + times("dropout raises what underflows in a narrowed accumulator", f)
        * times("parts of a row that are narrowed", parts)
        * divided(forward, contract)
        * term("underflow of the accumulator narrowed to the softmax", narrowing.eta)
        + term("merges by a difference", _difference_error(forward, contract, weights, most_B)),
        outside_hull=count("underflows of a mean", 2)
        * times("the row sum that divides the underflow of a mean", divided(forward, contract))
        * (
            term("underflow of a mean", absolute)
            + term("underflow of weights in a mean", (1 + most_B) * weights.eta * total_v)
        )
        + term(
            "underflow of values on entry to a mean", count("underflows of values on entry to a mean", 2) * f * entering
        )
        + term("underflow of partial outputs in the hull", count("underflows of outputs that wait", 2) * waiting),
        rough=weights.PA.sum(-1) > LINEAR_UP_TO,
    )


def largest_cast(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """Return the largest number that a cast to the format of probabilities rounds in each row, [.., Sq].

    A weight that its row sum has divided, or that its log-sum-exp has made, is at most 1 but for roundings.
    """
    if contract.normalize == "after_product":
        return largest_cast_weight(forward, contract)
    raised = (
        contract.probability_scale * raised_before_cast(forward, contract) * (1 + gamma((contract.stages.softmax.u, 3)))
    )
    if contract.normalize == "by_lse":
        return raised * growth_by_lse(forward, contract, weights)
    return raised * np.exp(np.minimum(weights.defect[..., 0], 700.0))


def growth_by_lse(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """Return the largest factor by which weights exp(s - LSE) of a row exceed their shares in its sum, [.., Sq]."""
    again = not narrows_scores(contract)
    above = rounding_by_lse(forward, contract, weights, again=again).max(axis=-1, initial=0.0)
    return np.exp(np.minimum(above, 700.0))


def numerator_growth(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, *, casts: int
) -> np.ndarray:
    """Relative growth of a weight in the numerator of its part only, if its cast rounds it ``casts`` times there."""
    before, every = float(contract.normalize != "after_product"), renormalizations(forward, contract)
    u = probability_cast(contract).u
    # A reciprocal rounds, and the product with it.
    normalized = (
        count("roundings of normalizing after every tile", 3) * every
        if every
        else count("roundings of normalizing before the product", 2) * before
    )
    own = (
        (u, term("the probabilities' cast in the numerator", min(casts, 1))),
        (u / times("a second cast, relative to the first", 1 - u), max(casts - 1, 0)),  # beside the row sum's
        *term("the product with 1 / (1 - p)", factor_roundings(forward, contract, *weight_stages(contract)), ()),
        (rounding_on_entry(contract, value_format(forward, contract)).u, count("entry of the values", 1)),
        (left_out_of_output(forward, contract), count("pieces left out of the output", 1)),
        (contract.stages.softmax.u, normalized),
    )
    moved = term(
        "rescaling after every tile", every - 1 if every else term("rescalings of the output", weights.R), weights.R
    )
    return gamma(
        *own,
        *term("sums of the output", output_sums(contract, forward.keys, forward.problem.key_length), ()),
        (contract.stages.output_accumulation.u, moved),
    )


def merged_growth(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Relative growth of a part of the numerator in all merges, [.., Sq, Sk]."""
    rescaled, partial = contract.stages.output_accumulation.u, contract.stages.partial_outputs.u
    return (
        1
        + gamma(
            (rescaled, count("merges of the output", 2) * contract.lse_merges),
            (partial, term("storing partial outputs", contract.lse_merges)),
        )
    ) * times("what merging adds to the numerator", 1 + _merge_growth(forward, contract)) - 1


def renormalizations(forward: Intermediates, contract: ResolvedContract) -> int:
    """Return how often a weight is divided by one row sum and multiplied by another, under normalize="every_tile".

    The ratios of row sums telescope; each rounds a reciprocal, the quotient and its product with the rescale factor,
    and then what that multiplies.
    """
    return tiles_of(forward, contract) if contract.normalize == "every_tile" else 0


def _difference_error(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, most_B: np.ndarray
) -> np.ndarray | float:
    """Absolute error of merges o - b (o - o'), which are rounded where o - o' is large and b small, [.., Sq, Dv].

    b = 1/(1 + exp(L - L')) is off by the error of its exponential and two roundings, the difference and the product
    by one each. Both outputs are convex combinations of the visible values, but for their own errors B and C. The
    error of L' - L is that of the weights, b and 1 - b alike, and counted there.
    """
    if contract.merging != "difference" or not contract.lse_merges:
        return 0.0
    high, low = value_spread.visible_range(forward, contract)
    off = most_B + weights.C.max(axis=-1, keepdims=True, initial=0.0)
    work = max(contract.stages.softmax.u, contract.stages.output_accumulation.u)
    own = (1 + gamma((work, 4))) * math.exp(exponential_error(contract)) - 1
    apart = term("the range of what is subtracted", high - low) + 4 * off * np.maximum(np.abs(high), np.abs(low))
    return contract.lse_merges * own * apart


def output_cast(contract: ResolvedContract) -> Rounding:
    """Return the rounding of the finished output from its widest possible format; merged parts may be in either."""
    divided, merged = contract.normalize == "after_product", contract.lse_merges > 0
    stages = [contract.stages.softmax] * divided + [contract.stages.output_accumulation] * (not divided or merged)
    return contract.stages.output.of(max((stage.format for stage in stages), key=lambda form: form.precision))


def left_out_of_output(forward: Intermediates, contract: ResolvedContract) -> float:
    """Products of pieces of a probability and a value that are not formed, relative to the product."""
    return skipped_pieces(contract, contract.stages.probabilities.format, value_format(forward, contract))


@np.errstate(all="ignore")
def terms_by_lse(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, o: np.ndarray, slack: np.ndarray
) -> OutputTerms:
    """Return the terms of O_hat = sum_j exp(s_j - LSE) v_j, whose weights need not add up to 1.

    To first order the error of the LSE multiplies the whole row; all others are those of single terms. Or each weight
    is its share of the sum of all, but for its own roundings, and O_hat a mean of values that these have moved. Scores
    that are stored in a narrower format than they are accumulated in are read again, others may be computed again.
    """
    E_L, off = lse_error(forward, contract, weights)[..., None], value_spread.slack(forward, contract)
    A = weight_error_by_lse(forward, contract, E_L)
    cast, enters, softmax = (
        probability_cast(contract),
        rounding_on_entry(contract, value_format(forward, contract)),
        contract.stages.softmax,
    )
    out, tiny = output_cast(contract), sum_underflow(contract, "output_accumulation") * forward.largest_factor
    factor, lost = factor_roundings(forward, contract, "softmax"), factor_underflow(forward, contract, "softmax")
    length = forward.problem.key_length
    factors = [
        (cast.u, count("the cast of weights exp(s - LSE)", 1)),
        (enters.u, count("values with weights exp(s - LSE)", 1)),
        (left_out_of_output(forward, contract), count("pieces with weights exp(s - LSE)", 1)),
        *term("the product with 1 / (1 - p) of weights exp(s - LSE)", factor, ()),
        *term("sums with weights exp(s - LSE)", output_sums(contract, forward.keys, length), ()),
    ]
    B = gamma(*factors)
    B = B + (1 + B) * saturation(contract, largest_cast(forward, contract, weights)[..., None])
    PA, P1A = deviations(
        forward,
        np.where(
            forward.visible,
            term("the error of weights exp(s - LSE)", A)
            + term("roundings of terms with weights exp(s - LSE)", np.log1p(B)),
            0.0,
        ),
    )
    size_v = term("errors of values in the output, by LSE", value_sizes(forward, contract), forward.v_size)
    G, total_v = np.where(E_L < 700, np.expm1(np.minimum(E_L, 700.0)), np.inf), forward.raised(forward.seen) @ size_v
    absolute = times("underflow grown, with weights exp(s - LSE)", 1 + B) * (
        (
            term("underflow of the cast of weights exp(s - LSE)", cast.eta)
            + term(
                "underflow of weights exp(s - LSE)",
                count("several underflows of weights exp(s - LSE)", 4) * softmax.eta,
            )
            + lost
        )
        * total_v
        + term(
            "underflow of sums with weights exp(s - LSE)",
            count("several underflows of sums with weights exp(s - LSE)", 4)
            * number_of_products(contract, forward.keys)
            * tiny,
        )
    )
    PA, P1A = forward.dropped(PA * weights.widen), forward.raised(P1A * weights.widen)
    entering = (enters.eta + lost) * P1A.sum(-1, keepdims=True)
    own = PA @ size_v + absolute + term("underflow of values with weights exp(s - LSE)", (1 + B) * entering)
    again = not narrows_scores(contract)
    moved = (
        times("roundings of a mean of weights exp(s - LSE)", 1 + B)
        * times(
            "weights exp(s - LSE) that are no shares",
            np.exp(np.minimum(rounding_by_lse(forward, contract, weights, again=again), 700.0)),
        )
        - 1
    )
    return OutputTerms(
        rest=absolute,
        kappa=np.ones(forward.L.shape),
        B=moved,
        C=np.zeros(forward.L.shape),
        o=o,
        slack=slack,
        finish=np.full(
            forward.L.shape,
            term("the cast of an output by LSE", out.u)
            + (1 + out.u) * gamma(unscaling(contract), scaling(forward, contract), reading(forward, contract)),
        ),
        tiny=term("underflow of the cast of an output by LSE", scaled_underflow(forward, contract, out)) + lost,
        outside_hull=term("underflow of a mean of weights exp(s - LSE)", absolute)
        + term(
            "underflow of values on entry to a mean of weights exp(s - LSE)",
            (1 + moved.max(axis=-1, keepdims=True, initial=0.0)) * forward.largest_factor * (enters.eta + lost),
        ),
        rough=((1 + G) * PA.sum(-1, keepdims=True) + G > LINEAR_UP_TO)[..., 0],
        first=times("the LSE and the weights together", 1 + G) * own
        + term(
            "the LSE's error in the output",
            G
            * (
                np.abs(o)
                + term("the evaluation of the output that an LSE multiplies", slack)
                + term("errors of values in the output that an LSE multiplies", off)
            ),
        )
        + term("values that are off, by LSE", off),
    )


def _merge_growth(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Factor of the numerator only, less 1, of merges through log-sum-exps, [.., Sq, Sk].

    Each divides by l_t, stores o_t and multiplies it by e^(L_t - L), which L may have been summed up from or not.
    """
    stores = gamma((contract.stages.softmax.u, count("stores of a merge", 4) * contract.lse_merges))
    return (1 + stores) * np.exp(
        np.minimum(
            term("all weights of a merge", count("the weights of a merge", 2) * contract.lse_merges)
            * merge_weight_error(forward, contract),
            700.0,
        )
    ) - 1
