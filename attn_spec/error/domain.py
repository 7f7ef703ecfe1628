"""Where a contract says something: the rows in which nothing can overflow, and every constant is a normal number."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.error.block_sums import CONJUNCTION, MAXIMUM, BlockSums
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.dropout_bounds import factor_fits
from attn_spec.error.far_keys import without_far_keys
from attn_spec.error.intermediates import GradientIntermediates, Intermediates, kept
from attn_spec.error.operand_bounds import cotangent_sizes, operand_error, unknown_keys, value_sizes
from attn_spec.error.score_bounds import last_factor, may_add_bias_first, row_shift, score_error
from attn_spec.error.weight_bounds import reference_rounding


@np.errstate(all="ignore")
def in_domain(x: Intermediates, c: ResolvedContract, allowed: np.ndarray) -> np.ndarray:
    """Rows with a visible key where no intermediate can overflow under a resolved contract, [.., Sq].

    ``allowed`` [.., Sq, Dv] is how far the output may lie from the truth.
    """
    inside = (x.keys[..., 0] > 0) & _numbers_fit(x, c) & _weights_fit(x, c) & factor_fits(x, c)
    widest = (np.abs(x.O) + allowed).max(axis=-1, initial=0.0)
    held = 2 * (np.abs(x.L) + row_shift(x, c))[..., 0]
    inside &= (widest < 0.99 * c.format("softmax").largest) & (held < c.format("lse").largest)
    return inside & (widest < 0.99 * c.format("output").largest)


@np.errstate(all="ignore")
def empty_rows_in_domain(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows that see no key, and of which nothing that is hidden can overflow, [.., Sq].

    A mask may be added to a score as -inf, and 0 multiply a value: of an infinity both make NaN.
    """
    return (x.keys[..., 0] == 0) & _numbers_fit(x, c)


@kept
def _numbers_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose constants, operands and scores fit their formats, those of hidden keys too."""
    entries = max(np.abs(tensor).max(initial=0.0) for tensor in (x.q, x.k, value_sizes(x, c)))
    enter = bool(entries < c.format("multiplicands").largest) | (c.multiplicands == x.problem.dtype)
    return constants_fit(x, c) & enter & _scores_fit(x, c)


def constants_fit(x: Intermediates, c: ResolvedContract) -> bool:
    """Whether the scale, the softcap and the inverse of each that is needed are normal numbers of their format."""
    form, sigma, cap = c.format("score_accumulation"), abs(x.problem.scale_value), x.problem.softcap
    constants = [sigma] if sigma else []
    if sigma and x.problem.has_addends:
        constants.append(1 / sigma)  # bias and ALiBi may be divided by the scale
    if cap is not None:
        constants += [cap, 1 / cap] + ([sigma / cap] if sigma else [])  # a kernel may multiply by the quotient
    return all(2 * form.smallest_normal <= constant < form.largest / 2 for constant in constants)


def _scores_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose products, scores and scaled operands fit the formats they are kept in."""
    sigma, cap = abs(x.problem.scale_value), x.problem.softcap
    operands = operand_error(x, c)
    scores = np.maximum(x.magnitude * max(1.0, sigma), np.maximum(np.abs(x.s) + row_shift(x, c), np.abs(x.scaled)))
    largest = c.largest("score_accumulation", "inner_accumulation", "stored_scores", "softmax")
    inside = 4 * scores.max(axis=-1, initial=0.0) < largest
    if operands is not None:  # infinite where an operation could overflow or divide by 0
        keys = np.all(np.isfinite(operands.k), axis=-1, keepdims=True).swapaxes(-1, -2) | ~x.visible
        queries = np.isfinite(operands.q).all(axis=-1) | _unseen_zeros(x)
        inside &= queries & keys.all(axis=-1) & ~unknown_keys(x, c)[..., None]
    if may_add_bias_first(x, c):
        ahead = np.abs(x.M[..., 0]) + np.abs(x.scaled).max(axis=-1, initial=0.0)  # where the bias is divided by it
        ahead = ahead + row_shift(x, c)[..., 0]
        inside &= 4 * ahead / sigma < largest
    if c.scale_on == "operands":
        folded = 1.5 * sigma * max(1.0, 1 / cap if cap else 0.0)
        entries = max(x.q_size.max(initial=0.0), x.k_size.max(initial=0.0)) * max(1.0, folded)
        inside &= bool(2 * entries < c.largest("stored_scores", "multiplicands"))
    return inside


def _unseen_zeros(x: Intermediates) -> np.ndarray:
    """Queries [.., Sq] of zeros that see no key: the operand of zeros that nobody uses is 0, as that of such a key."""
    return (x.keys[..., 0] == 0) & ~np.any(x.problem.q, axis=-1)


def _weights_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose weights, row sums and sums of p.v fit, and whose reference is near enough."""
    weighs_one = c.normalize == "after_product"
    off = reference_rounding(x, c)[..., 0]
    top = np.exp(c.reference_distance + off)
    sizes = value_sizes(x, c)
    sums = x.dropped(x.seen if weighs_one else x.P) @ sizes
    sums = 2 * (top if weighs_one else 1.0) * sums.max(axis=-1, initial=0.0)
    inside = sums < c.largest("output_accumulation", "inner_accumulation")
    # Where the row sum's reciprocal multiplies the output, that must be a normal number.
    reciprocal = 1 / c.format("softmax").smallest_normal if weighs_one else np.inf
    inside &= 2 * top * x.keys[..., 0] < min(c.largest("row_sum", "softmax"), reciprocal)
    # So must the row sum itself, which the largest weight need not bring to 1.
    low = np.exp(-off - (0.0 if c.reference == "maximum" else c.reference_distance))
    smallest = max(c.format(stage).smallest_normal for stage in ("row_sum", "softmax"))
    inside &= low > 2 * smallest
    if weighs_one:
        inside &= 2 * top < c.largest("probabilities", "multiplicands")
        inside &= (sums if c.lse_merges else _numerator(x, c, off)) < c.format("softmax").largest
    if c.lse_merges or c.normalize == "every_tile":  # an output of fewer keys may be any combination of their values
        largest = x.largest_factor * sizes.max(axis=-1, initial=0.0)
        seen = np.where(x.seen, largest[..., None, :], 0.0).max(axis=-1, initial=0.0)
        waits = ("partial_outputs", "softmax") if c.lse_merges else ("output_accumulation",)
        inside &= (4 if c.merging == "difference" else 2) * seen < c.largest(*waits)
        if c.reference != "maximum":  # the row sum of fewer keys need not hold the largest weight
            inside &= low * np.exp(-_depth(x, c)) > 2 * smallest
    return inside & _reference_fits(x, c)


def _depth(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """How far below the maximum the computed scores of a row reach, [.., Sq]; inf where some are far."""
    reach = np.where(x.visible, x.M - x.s + score_error(x, c), 0.0).max(axis=-1, initial=0.0)
    return np.where(np.any(x.seen & ~x.visible, axis=-1), np.inf, reach)


def _numerator(x: Intermediates, c: ResolvedContract, off: np.ndarray) -> np.ndarray:
    """Twice the largest sum of p.v of a whole row, [.., Sq]: it is rounded to the softmax's format to be divided.

    ``off`` [.., Sq] is how far rounding moves the reference.
    That of a part of the row, which is normalized to be merged, may be as large as the sum of its values.
    """
    over = {"maximum": c.reference_slack, "upper_bound": 0.0, "zero": (x.M + row_shift(x, c))[..., 0]}[c.reference]
    weights = 2 * np.exp(over + off + (x.L - x.M)[..., 0])
    return weights * (x.dropped(x.P) @ value_sizes(x, c)).max(axis=-1, initial=0.0)


def _reference_fits(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose reference lies within ``reference_range`` of the maximum."""
    M = x.M[..., 0]
    if c.reference == "maximum":
        return np.ones(M.shape, dtype=bool)
    if c.reference == "zero":
        return np.abs(M) + row_shift(x, c)[..., 0] <= c.reference_range
    if score_of(x.problem).pairs is not None:
        return np.zeros(M.shape, dtype=bool)  # no product of lengths is a bound
    keys = np.where(np.isfinite(x.k).all(axis=-1), np.linalg.norm(x.k, axis=-1), np.inf)
    highest = abs(x.problem.scale_value) * np.linalg.norm(x.q, axis=-1) * keys.max(axis=-1, initial=0.0)[..., None]
    highest = np.where(np.linalg.norm(x.q, axis=-1) == 0, 0.0, highest)
    if x.problem.softcap is not None:
        highest = np.minimum(highest, x.problem.softcap)
    if x.problem.bias is not None:
        highest = highest + np.where(np.isfinite(x.problem.bias), x.problem.bias, 0.0).max(initial=0.0)
    return 1.01 * highest + row_shift(x, c)[..., 0] - M <= c.reference_range


@dataclass(frozen=True, kw_only=True)
class RowFacts(BlockSums):
    """What rows of a backward pass say of the domain, [B, Hq]."""

    #: Whether every row that sees a key is in the forward domain, and nothing hidden overflows in others.
    rows: np.ndarray = field(metadata=CONJUNCTION)
    #: The largest |dP| and |D|, and the largest sum of sizes of dS k.
    magnitude: np.ndarray = field(metadata=MAXIMUM)
    delta: np.ndarray = field(metadata=MAXIMUM)
    of_q: np.ndarray = field(metadata=MAXIMUM)


@dataclass(frozen=True, kw_only=True)
class HeadFacts(BlockSums):
    """What heads say of the domain of the group they belong to: [B, Hq], or summed [B, Hkv]."""

    #: Whether no score gradient can overflow.
    inside: np.ndarray = field(metadata=CONJUNCTION)
    #: The largest size of a sum.
    widest: np.ndarray


@np.errstate(all="ignore")
def row_facts(x: Intermediates, g: GradientIntermediates, c: ResolvedContract, dS: np.ndarray) -> RowFacts:
    """Those of some rows; ``dS`` is the error of the score gradients, [B, Hq, Sq, Sk]."""
    rows = in_domain(without_far_keys(x, c), c, np.zeros(x.O.shape)) | empty_rows_in_domain(x, c)
    cotangent = cotangent_sizes(g)
    magnitude = (cotangent @ value_sizes(x, c).swapaxes(-1, -2)).max(axis=(-1, -2), initial=0.0)
    return RowFacts(
        rows=np.all(rows, axis=-1),
        magnitude=x.largest_factor * magnitude,
        delta=(cotangent * np.abs(x.O)).sum(-1).max(-1, initial=0.0),
        of_q=((np.abs(g.dS) + dS) @ x.k_size).max(axis=(-1, -2), initial=0.0),
    )


@np.errstate(all="ignore")
def head_facts(
    x: Intermediates, c: ResolvedContract, rows: RowFacts, *, of_k: np.ndarray, of_v: np.ndarray
) -> HeadFacts:
    """Those of all rows of heads; the sums of sizes of dS q and P dO are ``of_k`` and ``of_v``, [B, Hq, Sk, ..]."""
    factor = _early_factor(x)
    inside = rows.rows & (8 * factor * (rows.magnitude + rows.delta) < _largest(c))
    heads = [rows.of_q, *(of.max(axis=(-1, -2), initial=0.0) for of in (of_k, of_v))]
    return HeadFacts(inside=inside, widest=factor * np.maximum.reduce(heads))


@np.errstate(all="ignore")
def gradients_in_domain(c: ResolvedContract, of_heads: HeadFacts) -> np.ndarray:
    """Groups [B, Hkv] in which every row that sees a key is in the forward domain and no gradient can overflow.

    ``of_heads`` has been added up over the heads of each group.
    """
    widest = of_heads.widest
    return of_heads.inside & (4 * widest < _largest(c)) & np.isfinite(widest)


def _early_factor(x: Intermediates) -> float:
    """The largest number that may multiply dS, before its products or after."""
    return max(last_factor(x), abs(x.problem.scale_value) / (x.problem.softcap or 1.0))


def _largest(c: ResolvedContract) -> float:
    stages = ["multiplicands", "score_accumulation", "stored_scores", "softmax", "score_gradients"]
    stages += ["inner_accumulation", "gradient_accumulation", "partial_gradients", "gradients"]
    return c.largest(*stages)
