"""The domain of a contract: rows in which nothing can overflow, and every constant is a normal number."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.forward.dropout_bounds import factor_fits
from attn_spec.bounds.forward.product_bounds import dot_product_error, product_sizes
from attn_spec.bounds.forward.row_sum_bounds import WeightError, weight_error
from attn_spec.bounds.forward.score_bounds import farthest_key, may_add_bias_first, row_shift, scaled_error, score_error
from attn_spec.bounds.forward.weight_bounds import reference_rounding
from attn_spec.bounds.intermediates import Intermediates, finite, kept
from attn_spec.bounds.operand_bounds import operand_error, unknown_keys, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.coverage import says_nothing
from attn_spec.contract.products import output_sums
from attn_spec.contract.roundoff import growth
from attn_spec.contract.terms import guard, term, times


@np.errstate(all="ignore")
def in_domain(x: Intermediates, c: ResolvedContract, allowed: np.ndarray) -> np.ndarray:
    """Rows with a visible key where no intermediate of the output can overflow under a resolved contract, [.., Sq].

    ``allowed`` [.., Sq, Dv] is how far the output may lie from the truth.
    """
    inside = (
        (x.keys[..., 0] > 0)
        & numbers_fit(x, c)
        & guard("weights, row sums and outputs that fit", weights_fit(x, c), True)
        & guard("a factor of dropout that fits", factor_fits(x, c), True)
    )
    widest = (np.abs(x.O) + allowed).max(axis=-1, initial=0.0)
    return inside & guard(
        "outputs that overflow are outside the domain", widest <= c.largest("softmax", "output"), True
    )


@np.errstate(all="ignore")
def lse_fits(x: Intermediates, c: ResolvedContract, allowed: np.ndarray, unit: float = 1.0) -> np.ndarray:
    """Rows whose log-sum-exp fits its formats, [.., Sq]; it may lie ``allowed`` [.., Sq] from the truth.

    It is counted in multiples of ``unit``: ln 2, where it may be a logarithm of base 2.
    """
    L = np.where(np.isfinite(x.L), np.abs(x.L), 0.0) + row_shift(x, c)
    return (L[..., 0] + allowed) / unit <= term("log-sum-exps that fit", c.largest("lse", "softmax"), np.inf)


@np.errstate(all="ignore")
def empty_rows_in_domain(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows that see no key, and of which nothing that is hidden can overflow, [.., Sq].

    A mask may be added to a score as -inf, and 0 multiply a value: of an infinity both make NaN.
    """
    return (x.keys[..., 0] == 0) & guard("hidden scores of rows that see no key", numbers_fit(x, c), True)


@kept
def numbers_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose constants, operands and scores fit their formats, those of hidden keys too."""
    return (
        guard("constants that fit", constants_fit(x, c), True)
        & entries_fit(x, c)
        & guard("scores that overflow are outside the domain", scores_fit(x, c), True)
    )


def entries_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose q, k and v fit the format of multiplicands, as all numbers of their own dtype do."""
    if c.multiplicands == x.problem.dtype:
        return np.ones(x.s.shape[:-1], dtype=bool)
    largest, of_heads = c.largest("multiplicands"), max(_largest_of(x.k_size), _largest_of(value_sizes(x, c)))
    return guard("queries and keys that enter products", x.q_size.max(axis=-1, initial=0.0) <= largest, True) & guard(
        "values that enter products", bool(of_heads <= largest), True
    )


def _largest_of(tensor: np.ndarray) -> float:
    return float(np.abs(tensor).max(initial=0.0))


def constants_fit(x: Intermediates, c: ResolvedContract) -> bool:
    """Return whether the scale, the softcap and each inverse that is needed are normal numbers of their format."""
    form, sigma, cap = c.stages.score_accumulation.format, abs(x.problem.scale_value), x.problem.softcap
    constants = [sigma] if sigma else []
    if sigma and x.problem.has_addends:
        constants.append(1 / sigma)  # bias and ALiBi may be divided by the scale
    if cap is not None:
        constants += [cap, 1 / cap] + ([sigma / cap] if sigma else [])  # a kernel may multiply by the quotient
    return all(2 * form.smallest_normal <= constant < form.largest / 2 for constant in constants)


@np.errstate(all="ignore")
def scores_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose products, scores and scaled operands fit the formats they are kept in, as computed.

    A partial sum of products is at most the sum of their sizes, and all their errors. The last sum, of score and bias,
    overflows where it rounds to more than the largest number, which lies half a unit in the last place above it.
    """
    sigma, cap = abs(x.problem.scale_value), x.problem.softcap
    work, largest = c.stages.score_accumulation.u, c.largest("score_accumulation", "stored_scores", "softmax")
    folded = sigma * math.log2(math.e) * max(1.0, 1 / cap if cap else 0.0) * (1 + growth((work, 4)))
    in_products = max(1.0, folded) if c.scale_on == "operands" else 1.0
    # Errors are infinite of a hidden key without an operand, see operands_fit.
    products = (finite(product_sizes(x, c)) + finite(dot_product_error(x, c))) * in_products
    inside = most_of_row(products) <= term(
        "sums of products of q and k", c.largest("score_accumulation", "inner_accumulation", "stored_scores"), np.inf
    )
    scaled = np.abs(x.scaled) + finite(scaled_error(x, c))
    inside &= most_of_row(scaled * (1.0 if cap is None else max(1.0, 1 / cap))) <= term(
        "scaled scores before a softcap", largest, np.inf
    )
    shift, stored = row_shift(x, c), c.stages.stored_scores.u
    error = score_error(x, c)
    last = stored if x.problem.has_addends else 0.0
    finished = np.abs(x.s) + shift + np.maximum(error - last * np.abs(x.s), 0.0)
    inside &= most_of_row(np.where(x.visible, finished, 0.0)) < term(
        "scores that are stored", largest * (1 + last / 4), np.inf
    )
    sums, added = _additions(x)
    if sums:
        inside &= most_of_row(np.maximum.reduce(sums) + shift + np.where(x.visible, error, 0.0)) < term(
            "sums that are stored before the last addition", largest, np.inf
        )
    if guard("scores times log2(e)", c.base2, False):  # which may be kept as scores are, and so may what is added
        widest = np.maximum.reduce([np.where(x.visible, np.abs(y), 0.0) for y in (x.s, x.capped)] + sums + added)
        widest = widest + shift + np.where(x.visible, error, 0.0)
        inside &= most_of_row(widest) * math.log2(math.e) * (1 + 4 * work) <= c.largest(
            "score_accumulation", "softmax", term("scores times log2(e) that are stored", "stored_scores", "softmax")
        )
    inside &= operands_fit(x, c) & guard("terms of ALiBi", _alibi_fits(x, c), True)
    if guard("a bias that overflows where the scale divides it", may_add_bias_first(x, c), False):
        ahead = np.where(x.visible, np.abs(x.s - x.scaled), 0.0) + shift
        ahead = products + ahead / sigma * (1 + growth((work, 7)))
        inside &= most_of_row(ahead) <= largest
    if guard("operands that are scaled before their products", c.scale_on == "operands", False):
        entries = x.q_size.max(axis=-1, initial=0.0), x.k_size.max(axis=(-1, -2), initial=0.0)[..., None]
        inside &= np.maximum(*entries) * in_products <= c.largest("stored_scores", "multiplicands")
    return inside


def _additions(x: Intermediates) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sizes of the sums before the last, and of the terms that are added, of keys that a query sees, [.., Sq, Sk].

    A bias is added to the score after its softcap, then ALiBi.
    """
    bias = np.zeros(()) if x.problem.bias is None else np.where(x.visible, x.problem.bias, 0.0)
    added = [bias, x.s - x.capped - bias] if x.problem.has_addends else []
    sums = [x.capped + bias] if x.problem.alibi_slopes is not None and x.problem.bias is not None else []
    of_sums, of_added = ([np.where(x.visible, np.abs(y), 0.0) for y in part] for part in (sums, added))
    return of_sums, of_added


def most_of_row(x: np.ndarray) -> np.ndarray:
    """The largest number of each row."""
    return x.max(axis=-1, initial=0.0)


def _alibi_fits(x: Intermediates, c: ResolvedContract) -> np.ndarray | bool:
    """Rows [.., Sq] whose terms of ALiBi, and distances, fit the format that these are made in."""
    slopes, largest = x.problem.alibi_slopes, c.largest("alibi_terms")
    if slopes is None:
        return True
    far = farthest_key(x, c)
    return (np.maximum(far, slopes * far) * (1 + 4 * c.stages.alibi_terms.format.unit_roundoff) <= largest)[..., 0]


def operands_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose query has an operand, as all keys have that are seen: none overflows, or divides by 0.

    So have all that are hidden, since an infinity is NaN where -inf is added to it or 0 multiplies it.
    """
    operands = operand_error(x, c)
    if operands is None:
        return np.ones(x.s.shape[:-1], dtype=bool)
    keys = np.all(np.isfinite(operands.k), axis=-1, keepdims=True).swapaxes(-1, -2) | ~x.visible
    queries = np.isfinite(operands.q).all(axis=-1) | _unseen_zeros(x)
    return (
        queries
        & keys.all(axis=-1)
        & guard("operands of keys that are hidden", ~unknown_keys(x, c).any(axis=-1, keepdims=True), True)
    )


def _unseen_zeros(x: Intermediates) -> np.ndarray:
    """Queries [.., Sq] of zeros that see no key: the operand of zeros that nobody uses is 0, as that of such a key."""
    return (x.keys[..., 0] == 0) & ~np.any(x.problem.q, axis=-1)


def weights_fit(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose weights, row sums and sums of p.v fit, and whose reference is near enough."""
    weighs_one = c.normalize == "after_product"
    off = reference_rounding(x, c)[..., 0]
    # A maximum is one of the scores as they are computed.
    if guard("weights of scores that are off, of no maximum", c.reference != "maximum", False):
        off = off + most_of_row(score_error(x, c))
    top = np.exp(c.reference_distance + off)
    sizes, w = value_sizes(x, c), weight_error(x, c)
    # Terms are rounded as weights, as products, and in sums.
    grown = (1 + most_of_row(w.C)) * (1 + growth((c.stages.softmax.u, 3), (c.stages.probabilities.u, 1)))
    in_sums = grown * (1 + growth(*output_sums(c, x.keys[..., 0], x.problem.key_length)))
    sums = (top * most_of_row(x.dropped(x.seen) @ sizes) if weighs_one else _largest_mean(x, w, sizes)) * in_sums
    inside = sums <= term("sums of weights and values", c.largest("output_accumulation", "inner_accumulation"), np.inf)
    # Where the row sum's reciprocal multiplies the output, that must be a normal number; of a sum above 1 anywhere.
    normal = weighs_one or guard(
        "the reciprocal of a row sum above 1 of normalized weights", c.reference_distance > 0, False
    )
    reciprocal = 1 / c.stages.softmax.format.smallest_normal if normal else np.inf
    inside &= top * x.keys[..., 0] * grown <= term(
        "the largest row sum", min(c.largest("row_sum", "softmax"), reciprocal), np.inf
    )
    # So must the row sum itself, which the largest weight need not bring to 1.
    low = np.exp(-off - (0.0 if c.reference == "maximum" else c.reference_distance)) / grown
    smallest = max(c.stages.row_sum.format.smallest_normal, c.stages.softmax.format.smallest_normal)
    inside &= low >= term("the least row sum", smallest)
    if weighs_one:
        inside &= top * grown * times("a weight that dropout raises", x.largest_factor) <= term(
            "the largest weight", c.largest("probabilities", "multiplicands", "softmax"), np.inf
        )
        whole = sums if c.lse_merges else np.minimum(sums, _numerator(x, c, w, off) * in_sums)
        inside &= whole <= term("the sum that is divided by the row sum", c.stages.softmax.format.largest, np.inf)
    if c.lse_merges or c.normalize == "every_tile":  # an output of fewer keys may be any combination of their values
        seen = _largest_seen(x, sizes) * in_sums
        waits = ("partial_outputs", "softmax") if c.lse_merges else ("output_accumulation",)
        inside &= times("differences of outputs of parts", 2 if c.merging == "difference" else 1) * seen <= term(
            "outputs of parts", c.largest(*waits), np.inf
        )
        if c.reference != "maximum":  # the row sum of fewer keys need not hold the largest weight
            inside &= low * np.exp(-_depth(x, c)) >= term(
                "row sums of parts that are far below the reference", smallest
            )
    return inside & guard("a reference that is near enough", reference_fits(x, c), True)


def _depth(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Bound how far below the maximum the computed scores of a row reach, [.., Sq]; inf where some keys are far."""
    reach = np.where(x.visible, x.M - x.s + score_error(x, c), 0.0).max(axis=-1, initial=0.0)
    return np.where(np.any(x.seen & ~x.visible, axis=-1), np.inf, reach)


def _largest_seen(x: Intermediates, sizes: np.ndarray) -> np.ndarray:
    """The largest entry of any value that a row sees, dropped or not, [.., Sq]."""
    largest = x.largest_factor * sizes.max(axis=-1, initial=0.0)
    return most_of_row(np.where(x.seen, largest[..., None, :], 0.0))


def _largest_mean(x: Intermediates, w: WeightError, sizes: np.ndarray) -> np.ndarray:
    """The largest sum of normalized weights and sizes of values, [.., Sq]."""
    return np.fmin(most_of_row(x.dropped(w.P1A) @ sizes), _largest_seen(x, sizes))


def _numerator(x: Intermediates, c: ResolvedContract, w: WeightError, off: np.ndarray) -> np.ndarray:
    """The largest sum of p.v of a whole row, [.., Sq]: it is rounded to the softmax's format to be divided.

    ``off`` [.., Sq] is how far rounding moves the reference.
    That of a part of the row, which is normalized to be merged, may be as large as the sum of its values.
    """
    over = {"maximum": c.reference_slack, "upper_bound": 0.0, "zero": (x.M + row_shift(x, c))[..., 0]}[c.reference]
    weights = np.exp(over + off + (x.L - x.M)[..., 0])
    return weights * most_of_row(x.dropped(w.P1A) @ value_sizes(x, c))


def reference_fits(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose reference lies within ``reference_range`` of the maximum."""
    M = x.M[..., 0]
    if c.reference == "maximum":
        return np.ones(M.shape, dtype=bool)
    if c.reference == "zero":
        return np.abs(M) + row_shift(x, c)[..., 0] <= c.reference_range
    if says_nothing(c, x.problem):
        return np.zeros(M.shape, dtype=bool)
    keys = np.where(np.isfinite(x.k).all(axis=-1), np.linalg.norm(x.k, axis=-1), np.inf)
    highest = abs(x.problem.scale_value) * np.linalg.norm(x.q, axis=-1) * keys.max(axis=-1, initial=0.0)[..., None]
    highest = np.where(np.linalg.norm(x.q, axis=-1) == 0, 0.0, highest)
    if x.problem.softcap is not None:
        highest = np.minimum(highest, x.problem.softcap)
    if x.problem.bias is not None:
        highest = highest + np.where(np.isfinite(x.problem.bias), x.problem.bias, 0.0).max(initial=0.0)
    return 1.01 * highest + row_shift(x, c)[..., 0] - M <= c.reference_range
