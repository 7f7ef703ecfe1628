"""The domain of a contract: rows in which nothing can overflow, and every constant is a normal number."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.attention.arithmetic import FLOATS
from attn_spec.attention.terms import ADDENDS, DESCALES, at_most, divisor, used, with_scale
from attn_spec.bounds.forward.cast_bounds import largest_that_is_cast, reference_off
from attn_spec.bounds.forward.dropout_bounds import factor_fits
from attn_spec.bounds.forward.output_scale_bounds import output_fits
from attn_spec.bounds.forward.output_terms import growth_by_lse, largest_cast, output_cast
from attn_spec.bounds.forward.product_bounds import descales_operands, dot_product_error, product_sizes
from attn_spec.bounds.forward.row_sum_bounds import WeightError, weight_error
from attn_spec.bounds.forward.score_bounds import (
    errors_after,
    farthest_key,
    may_add_bias_first,
    raised_by_factors,
    row_shift,
    scaled_error,
    score_error,
)
from attn_spec.bounds.forward.sink_bounds import above_maximum, below_maximum
from attn_spec.bounds.intermediates import Intermediates, finite
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.bounds.operand_bounds import codes_known, operand_error, unknown_keys, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.coverage import says_nothing
from attn_spec.contract.products import output_sums
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, term, times
from attn_spec.numbers.formats import narrowest


@np.errstate(all="ignore")
def in_domain(forward: Intermediates, contract: ResolvedContract, allowed: np.ndarray) -> np.ndarray:
    """Rows with a visible key where no intermediate of the output can overflow under a resolved contract, [.., Sq].

    ``allowed`` [.., Sq, Dv] is how far the output may lie from the truth.
    """
    inside = (
        (forward.keys[..., 0] > 0)
        & numbers_fit(forward, contract)
        & guard("weights, row sums and outputs that fit", weights_fit(forward, contract), True)
        & guard("a factor of dropout that fits", factor_fits(forward, contract), True)
    )
    fits = output_fits(forward, contract, np.abs(forward.O), allowed, output_cast(contract))
    return inside & guard("outputs that overflow are outside the domain", fits, True)


@np.errstate(all="ignore")
def lse_fits(forward: Intermediates, contract: ResolvedContract, allowed: np.ndarray, unit: float = 1.0) -> np.ndarray:
    """Rows whose log-sum-exp fits its formats, [.., Sq]; it may lie ``allowed`` [.., Sq] from the truth.

    It is counted in multiples of ``unit``: ln 2, where it may be a logarithm of base 2.
    """
    L = np.where(np.isfinite(forward.L), np.abs(forward.L), 0.0) + row_shift(forward, contract)
    return (L[..., 0] + allowed) / unit <= term("log-sum-exps that fit", contract.largest("lse", "softmax"), np.inf)


@np.errstate(all="ignore")
def empty_rows_in_domain(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows that see no key, and of which nothing that is hidden can overflow, [.., Sq].

    A mask may be added to a score as -inf, and 0 multiply a value: of an infinity both make NaN.
    """
    return (forward.keys[..., 0] == 0) & guard(
        "hidden scores of rows that see no key", numbers_fit(forward, contract), True
    )


@of_forward_pass
def numbers_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose constants, operands and scores fit their formats, those of hidden keys too."""
    return (
        guard("constants that fit", constants_fit(forward, contract), True)
        & guard("blocks of which nothing is known", codes_known(forward, contract), True)
        & entries_fit(forward, contract)
        & guard("scores that overflow are outside the domain", scores_fit(forward, contract), True)
    )


def entries_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose q, k and v fit the format of multiplicands, as all do of one that includes their dtypes."""
    if contract.multiplicands == narrowest(*map(forward.problem.dtype_of, "qkv")).name:
        return np.ones(forward.s.shape[:-1], dtype=bool)
    largest, of_heads = (
        contract.largest("multiplicands"),
        max(_largest_of(forward.k_size), _largest_of(value_sizes(forward, contract))),
    )
    return guard(
        "queries and keys that enter products", forward.q_size.max(axis=-1, initial=0.0) <= largest, True
    ) & guard("values that enter products", bool(of_heads <= largest), True)


def _largest_of(tensor: np.ndarray) -> float:
    return float(np.abs(tensor).max(initial=0.0))


def constants_fit(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether the scale, a divisor of scores and each inverse that is needed are normal numbers.

    So is the inverse of the scale of probabilities, in the formats that an output may be divided by it in.
    """
    form, sigma, cap = (
        contract.stages.score_accumulation.format,
        abs(forward.problem.scale_value),
        divisor(forward.problem),
    )
    constants = [sigma] if sigma else []
    if sigma and forward.problem.has_addends:
        constants.append(1 / sigma)  # bias and ALiBi may be divided by the scale
    if cap is not None:
        constants += [cap, 1 / cap] + ([sigma / cap] if sigma else [])  # a kernel may multiply by the quotient
    constants += _products_of_factors(forward, sigma or 1.0)
    divides = contract.formats("softmax", "output_accumulation")
    return all(2 * form.smallest_normal <= constant < form.largest / 2 for constant in constants) and all(
        2 * one.smallest_normal * contract.probability_scale <= 1 for one in divides
    )


def _products_of_factors(forward: Intermediates, sigma: float) -> list[float]:
    """Return the ends of all products of descales, the scale and log2(e), which a kernel may form; none without one."""
    least, most = min(sigma, 1.0), max(sigma, 1.0) * math.log2(math.e)
    if not (names := used(forward.problem, DESCALES)):
        return []
    for name in names:
        d = forward.problem.by_pair(name)
        least, most = least * d.min(initial=1.0), most * d.max(initial=1.0)
    return [least, most]


@np.errstate(all="ignore")
def scores_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose products, scores and scaled operands fit the formats they are kept in, as computed.

    A partial sum of products is at most the sum of their sizes, and all their errors. The last sum, of score and bias,
    overflows where it rounds to more than the largest number, which lies half a unit in the last place above it.
    """
    if forward.has_sink:
        return scores_fit(forward.of_keys, contract) & guard("sinks that fit", _sinks_fit(forward, contract), True)
    sigma, cap = abs(forward.problem.scale_value), divisor(forward.problem)
    work, largest = (
        contract.stages.score_accumulation.u,
        contract.largest("score_accumulation", "stored_scores", "softmax"),
    )
    folded = sigma * math.log2(math.e) * max(1.0, 1 / cap if cap else 0.0) * (1 + gamma((work, 4)))
    in_products = max(1.0, folded) if contract.scale_on == "operands" else 1.0
    # Errors are infinite of a hidden key without an operand, see operands_fit.
    products = (finite(product_sizes(forward, contract)) + finite(dot_product_error(forward, contract))) * in_products
    inside = most_of_row(products) <= term(
        "sums of products of q and k",
        contract.largest("products", "score_accumulation", "inner_accumulation", "stored_scores"),
        np.inf,
    )
    scaled = np.abs(forward.scaled) + finite(scaled_error(forward, contract))
    # Descales and the scale may multiply in any order, so that a product has those factors that are above 1.
    for name in used(forward.problem, DESCALES):
        descaled = np.abs(forward.after[name]) + finite(errors_after(forward, contract)[name])
        scaled = np.maximum.reduce([scaled, descaled, products * raised_by_factors(forward)])
    inside &= most_of_row(scaled * (1.0 if cap is None else max(1.0, 1 / cap))) <= term(
        "scaled scores before a softcap", largest, np.inf
    )
    shift, stored = row_shift(forward, contract), contract.stages.stored_scores.u
    error = score_error(forward, contract)
    last = stored if forward.problem.has_addends else 0.0
    finished = np.abs(forward.s) + shift + np.maximum(error - last * np.abs(forward.s), 0.0)
    inside &= most_of_row(np.where(forward.visible, finished, 0.0)) < term(
        "scores that are stored", largest * (1 + last / 4), np.inf
    )
    sums, added = _additions(forward)
    if sums:
        inside &= most_of_row(np.maximum.reduce(sums) + shift + np.where(forward.visible, error, 0.0)) < term(
            "sums that are stored before the last addition", largest, np.inf
        )
    # What is multiplied by log2(e) may be kept as scores are, and so may what is added.
    if guard("scores times log2(e)", contract.base2, False):
        widest = np.maximum.reduce(
            [np.where(forward.visible, np.abs(y), 0.0) for y in (forward.s, forward.bent)] + sums + added
        )
        widest = widest + shift + np.where(forward.visible, error, 0.0)
        inside &= most_of_row(widest) * math.log2(math.e) * (1 + 4 * work) <= contract.largest(
            "score_accumulation", "softmax", term("scores times log2(e) that are stored", "stored_scores", "softmax")
        )
    inside &= operands_fit(forward, contract) & guard("terms of ALiBi", _alibi_fits(forward, contract), True)
    if guard("a bias that overflows where the scale divides it", may_add_bias_first(forward, contract), False):
        ahead = np.where(forward.visible, np.abs(forward.s - forward.scaled), 0.0) + shift
        ahead = products + ahead / sigma * (1 + gamma((work, 7)))
        inside &= most_of_row(ahead) <= largest
    if descales_operands(forward, contract):
        inside &= guard("operands that descales multiply", _descaled_operands_fit(forward, contract), True)
    if guard("operands that are scaled before their products", contract.scale_on == "operands", False):
        entries = forward.q_size.max(axis=-1, initial=0.0), forward.k_size.max(axis=(-1, -2), initial=0.0)[..., None]
        inside &= np.maximum(*entries) * in_products <= contract.largest("stored_scores", "multiplicands")
    return inside


def _descaled_operands_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose query and keys, hidden ones too, fit the formats that hold them with their descales."""
    largest = contract.largest("score_accumulation", "operands", "multiplicands", "stored_scores") / 2
    q, k = (finite(x).max(axis=-1, initial=0.0) for x in (forward.q_size, forward.k_size))
    for name in used(forward.problem, DESCALES):
        d = forward.problem.by_pair(name)
        q, k = (q * d[..., 0], k) if name == "q_descale" else (q, k * d[..., 0, :])
    return (q <= largest) & (k <= largest).all(axis=-1, keepdims=True)


def _sinks_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose sink, in the units of scores or of their base, fits the formats of scores."""
    size = np.abs(forward.s[..., -1:]) + row_shift(forward, contract) + score_error(forward, contract)[..., -1:]
    in_base = math.log2(math.e) * (1 + 4 * contract.stages.score_accumulation.u) if contract.base2 else 1.0
    largest = contract.largest("score_accumulation", "stored_scores", "softmax")
    return (np.where(forward.visible[..., -1:], size, 0.0) * in_base < largest)[..., 0]


def _additions(forward: Intermediates) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sizes of the sums before the last, and of the terms that are added, of keys that a query sees, [.., Sq, Sk]."""
    names = list(used(forward.problem, ADDENDS))
    added = [forward.after[name] - forward.before(name) for name in names]
    sums = [forward.after[name] for name in names[:-1]]
    of_sums, of_added = ([np.where(forward.visible, np.abs(y), 0.0) for y in part] for part in (sums, added))
    return of_sums, of_added


def most_of_row(x: np.ndarray) -> np.ndarray:
    """Return the largest number of each row."""
    return x.max(axis=-1, initial=0.0)


def _alibi_fits(forward: Intermediates, contract: ResolvedContract) -> np.ndarray | bool:
    """Rows [.., Sq] whose terms of ALiBi, and distances, fit the format that these are made in."""
    slopes, largest = forward.problem.alibi_slopes, contract.largest("alibi_terms")
    if slopes is None:
        return True
    far = farthest_key(forward, contract)
    return (np.maximum(far, slopes * far) * (1 + 4 * contract.stages.alibi_terms.format.unit_roundoff) <= largest)[
        ..., 0
    ]


def operands_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose query has an operand, as all keys have that are seen: none overflows, or divides by 0.

    So have all that are hidden, since an infinity is NaN where -inf is added to it or 0 multiplies it.
    """
    forward = forward.of_keys
    operands = operand_error(forward, contract)
    if operands is None:
        return np.ones(forward.s.shape[:-1], dtype=bool)
    keys = np.all(np.isfinite(operands.E_k), axis=-1, keepdims=True).swapaxes(-1, -2) | ~forward.visible
    queries = np.isfinite(operands.E_q).all(axis=-1) | _unseen_zeros(forward)
    return (
        queries
        & keys.all(axis=-1)
        & guard("operands of keys that are hidden", ~unknown_keys(forward, contract).any(axis=-1, keepdims=True), True)
    )


def _unseen_zeros(forward: Intermediates) -> np.ndarray:
    """Return the queries [.., Sq] of zeros that see no key; the operand of an unused zero is 0, as for such a key."""
    return (forward.keys[..., 0] == 0) & ~np.any(forward.problem.q, axis=-1)


def weights_fit(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose weights, row sums and sums of p.v fit, and whose reference is near enough."""
    weighs_one, c = contract.normalize == "after_product", contract.probability_scale
    by_lse = contract.normalize == "by_lse"
    off = reference_off(forward, contract)
    top = c * np.exp(contract.reference_distance + off)
    sizes, weights = value_sizes(forward, contract), weight_error(forward, contract)
    # Terms are rounded as weights, as products, and in sums.
    grown = (1 + most_of_row(weights.C)) * (
        1 + gamma((contract.stages.softmax.u, 3), (contract.stages.probabilities.u, 1))
    )
    in_sums = grown * (1 + gamma(*output_sums(contract, forward.keys[..., 0], forward.problem.key_length)))
    sums = (
        top * most_of_row(forward.raised(forward.seen) @ sizes)
        if weighs_one
        else c * _largest_mean(forward, weights, sizes)
    ) * in_sums
    if by_lse:  # an error of the LSE, absolute in an exponent, makes the sum of the weights larger than 1
        sums = sums * growth_by_lse(forward, contract, weights)
    inside = sums <= term(
        "sums of weights and values", contract.largest("products", "output_accumulation", "inner_accumulation"), np.inf
    )
    # Where the row sum's reciprocal multiplies the output, that must be a normal number; of a sum above 1 anywhere.
    normal = weighs_one or guard(
        "the reciprocal of a row sum above 1 of normalized weights", contract.reference_distance > 0, False
    )
    reciprocal = 1 / contract.stages.softmax.format.smallest_normal if normal else np.inf
    # The sink alone may be above the reference.
    below, above = below_maximum(forward, contract)[..., 0], above_maximum(forward, contract)[..., 0]
    terms = forward.keys[..., 0] + term("a row sum with a sink above its reference", np.expm1(below))
    inside &= top * terms * grown <= term(
        "the largest row sum", min(contract.largest("row_sum", "softmax"), reciprocal), np.inf
    )
    # So must the row sum itself, which the largest weight need not bring to 1.
    low = np.exp(-above - off - (0.0 if contract.reference == "maximum" else contract.reference_distance)) / grown
    smallest = max(contract.stages.row_sum.format.smallest_normal, contract.stages.softmax.format.smallest_normal)
    inside &= low >= term("the least row sum", smallest)
    if weighs_one or by_lse or c != 1:  # a weight that a row sum has divided, and no scale multiplied, is at most 1
        cast = largest_cast(forward, contract, weights)
        inside &= cast < term("the largest weight", largest_that_is_cast(contract), np.inf)
        inside &= cast * (1 + most_of_row(weights.C)) * (1 + contract.stages.probabilities.u) <= term(
            "the largest weight", contract.largest("multiplicands", "softmax"), np.inf
        )
    if weighs_one:
        numerator = c * _numerator(forward, contract, weights, off) * in_sums
        whole = sums if contract.lse_merges else np.minimum(sums, numerator)
        inside &= whole <= term(
            "the sum that is divided by the row sum", contract.stages.softmax.format.largest, np.inf
        )
    # An output of fewer keys may be any combination of their values, and so may the sums of their products be.
    if contract.lse_merges or contract.normalize == "every_tile":
        seen = _largest_seen(forward, sizes) * in_sums
        most = contract.largest("products", "output_accumulation", "inner_accumulation") / c
        if contract.lse_merges:
            most = min(most, contract.largest("partial_outputs", "softmax") / _size_of_merged(contract))
        inside &= seen <= term("outputs of parts", most, np.inf)
        if contract.reference != "maximum":  # the row sum of fewer keys need not hold the largest weight
            inside &= low * np.exp(-_depth(forward, contract)) >= term(
                "row sums of parts that are far below the reference", smallest
            )
    return inside & guard("a reference that is near enough", reference_fits(forward, contract), True)


def _size_of_merged(contract: ResolvedContract) -> int:
    """Return the size of what a merge weighs, as a multiple of outputs of parts: these, or their difference."""
    return times("differences of outputs of parts", 2 if contract.merging == "difference" else 1)


def _depth(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound how far below the maximum the computed scores of a row reach, [.., Sq]; inf where some keys are far."""
    reach = np.where(forward.visible, forward.M - forward.s + score_error(forward, contract), 0.0).max(
        axis=-1, initial=0.0
    )
    return np.where(np.any(forward.seen & ~forward.visible, axis=-1), np.inf, reach)


def _largest_seen(forward: Intermediates, sizes: np.ndarray) -> np.ndarray:
    """Return the largest entry of any value that a row sees, dropped or not, [.., Sq]."""
    largest = forward.largest_factor * sizes.max(axis=-1, initial=0.0)
    return most_of_row(np.where(forward.seen, largest[..., None, :], 0.0))


def _largest_mean(forward: Intermediates, weights: WeightError, sizes: np.ndarray) -> np.ndarray:
    """Return the largest sum of normalized weights and sizes of values, [.., Sq]."""
    return np.fmin(most_of_row(forward.raised(weights.P1A) @ sizes), _largest_seen(forward, sizes))


def _numerator(forward: Intermediates, contract: ResolvedContract, weights: WeightError, off: np.ndarray) -> np.ndarray:
    """Return the largest sum p.v of a whole row, [.., Sq]; it is rounded to the softmax's format before its division.

    ``off`` [.., Sq] is how far rounding moves the reference.
    That of a part of the row, which is normalized to be merged, may be as large as the sum of its values.
    """
    over = {
        "maximum": contract.reference_slack,
        "upper_bound": 0.0,
        "zero": (forward.M + row_shift(forward, contract))[..., 0],
    }[contract.reference]
    row_sum = np.exp(over + off + below_maximum(forward, contract)[..., 0] + (forward.L - forward.M)[..., 0])
    return row_sum * most_of_row(forward.raised(weights.P1A) @ value_sizes(forward, contract))


def reference_fits(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Rows [.., Sq] whose reference lies within ``reference_range`` of the maximum."""
    M = forward.M[..., 0]
    if contract.reference == "maximum":
        return np.ones(M.shape, dtype=bool)
    if contract.reference == "zero":
        return np.abs(M) + row_shift(forward, contract)[..., 0] <= contract.reference_range
    if says_nothing(contract, forward.problem):
        return np.zeros(M.shape, dtype=bool)
    keys = np.where(np.isfinite(forward.k).all(axis=-1), np.linalg.norm(forward.k, axis=-1), np.inf)
    queries = np.linalg.norm(forward.q, axis=-1)
    highest = np.where(queries == 0, 0.0, queries * keys.max(axis=-1, initial=0.0)[..., None])
    highest = at_most(used(forward.problem), highest, with_scale(FLOATS, forward.problem))
    return 1.01 * highest + row_shift(forward, contract)[..., 0] - M <= contract.reference_range
