"""Variances, to first order, of the error of an output whose roundings are random.

The model is that of Connolly, Higham and Mary (2021, SIAM J. Sci. Comput. 43): each rounding is fl(x) = x(1 + e)
with |e| <= u and mean 0 whatever the earlier roundings were. A sum of c_i e_i is then sub-Gaussian with variance
proxy sum c_i^2 u_i^2 (Azuma and Hoeffding): it exceeds lambda times the root of that with probability at most
2 exp(-lambda^2 / 2). Symbols as in ``bounds``, g = v - o. To first order, with b_j the error of the logarithm of a
weight, n_j that of a weight or value in the numerator alone, a_t and l_t those of the accumulators, r and f those of
what multiplies a row and an element at last,

    O_hat - o = sum_j P_j b_j (v_j - o)  +  sum_j P_j v_j n_j  +  sum_t S_t a_t  -  o sum_t R_t l_t  +  o (r + f),

where S_t and R_t are the partial sums of P v and of P: rescaling a partial sum together with the maximum leaves its
share of the whole as it is. Errors that a row's weights have in common cancel, because sum_j P_j (v_j - o) = 0.

Partial sums depend on the order of the terms, which a contract leaves open. Terms that are exchangeable, as those of
independent inputs are, have sums over t of k of n terms with E S_t^2 = x^2 k(k - 1)/(n(n - 1)) + q k(n - k)/(n(n - 1)),
x the whole sum and q the sum of squared terms; summed over k = 1 .. n this is x^2 (n + 1)/3 + q (n + 1)/6, and no tree
has more than q/4 beside it (by dynamic programming up to n = 1024). In the same way the running maximum rises H_n
times, and a weight sees one rise after it on average, with mean square 3 (a Poisson mixture over its place: the rises
after a share t of the keys have mean log 1/t). These are averages over orders; one kernel has one order. Two things
cover the gap: tests pool at least 64 rows, and the variance proxy u^2 is three times that of a rounding error spread
evenly over its interval.

Four errors are no roundings and have no mean of 0: those of the exponential, of the constants (scale, log2 e), of sums
that matrix units cut, and the second order. They are kept apart, as bounds; see :class:`Systematic`, :func:`cut_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.forward.product_bounds import operand_entry, operand_scaling
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import casts_row_sum, multiplicand, on_matrix_unit, probability_cast, roundings_of_sum
from attn_spec.contract.roundoff import elementary_error, gamma, is_power_of, row_sum_store
from attn_spec.contract.stages import contains


@dataclass(frozen=True)
class Roundings:
    """Variance proxies of the random roundings of one reading of a contract: sums of u^2.

    Each is relative to what its roundings multiply. Roundings are bounded by u, so the variance of their sum is less.
    """

    #: Squared roundings of the logarithm of one weight, b_j, [.., Sq, Sk]: all but those of the operands of q.k.
    weight: np.ndarray
    #: Squared roundings of one element of q or of k on entry to q.k.
    operand: float
    #: Squared roundings of one weight in the numerator alone, n_j.
    numerator: float
    #: Squared rounding of one element of v.
    value: float
    #: Squared roundings of all partial sums of P v, as the coefficient of o^2, [.., Sq, 1].
    whole: np.ndarray
    #: Squared roundings of all partial sums of P v, as the coefficient of sum_j P_j^2 v_j^2, [.., Sq, 1].
    parts: np.ndarray
    #: Squared roundings of the factors of a row, l_t and r, [.., Sq, 1].
    row: np.ndarray
    #: Squared roundings of the factor of one element, f.
    element: float


@dataclass(frozen=True)
class Systematic:
    """Errors that need not have mean 0, as bounds."""

    #: Relative bound on the error of one exponential.
    exponential: float
    #: Number of exponentials that a weight is made of: mean and mean square over orders.
    factors: float
    squared_factors: float
    #: Relative bound on the error that all scores share: rounded constants.
    constants: float


def partial_sums(n: np.ndarray | np.float64, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of x^2 and q in the sum of E S_t^2 over all partial sums of n exchangeable terms, any order."""
    return np.minimum((n + 1) / 3, depth), np.minimum((n + 1) / 6 + 1 / 4, depth)


def systematic(forward: Intermediates, contract: ResolvedContract) -> Systematic:
    """Return the errors of a resolved contract that are bounded, not random."""
    tiles = contract.tiles(forward.problem.key_length)
    mean, square = (2.0, 6.0) if contract.exp_of_zero_is_one else ((tiles + 1) / 2, (tiles + 1) * (2 * tiles + 1) / 6)
    work, sigma = contract.stages.score_accumulation.u, abs(forward.problem.scale_value)
    constants = 0.0 if is_power_of(2, sigma) else 2 * work
    if operand_scaling(forward, contract).u:
        constants = 4 * work
    if contract.base2:
        constants += 2 * work
    one_tile = tiles == 1
    return Systematic(
        exponential=elementary_error(contract, "exp_error"),
        factors=1.0 if one_tile else mean,
        squared_factors=1.0 if one_tile else square,
        constants=constants,
    )


def roundings(forward: Intermediates, contract: ResolvedContract) -> Roundings:
    """Return the random roundings of a resolved contract that leaves no reading open."""
    before = float(contract.normalize == "before_product")
    n, depth = forward.keys, contract.summation_depth or np.inf
    cast, softmax, entry = (
        probability_cast(contract).u,
        contract.stages.softmax.u,
        multiplicand(contract, forward.problem.dtype_of("v")).u,
    )
    partial, row_sum = contract.stages.output_accumulation.u, contract.stages.row_sum.u
    narrowed = contract.stages.softmax.of(contract.stages.output_accumulation.format).u
    squares = (forward.P**2).sum(axis=-1, keepdims=True)
    whole, parts = partial_sums(n, depth)
    rescaled = rescaled_partial_sums(forward, contract)
    return Roundings(
        weight=_log_weight(forward, contract) + (cast**2 if casts_row_sum(contract) else 0.0),
        operand=_operand(forward, contract),
        numerator=(0.0 if casts_row_sum(contract) else cast**2) + before * softmax**2,
        value=entry**2,
        whole=partial**2 * (whole + rescaled),
        # Each product is rounded before it is added, unless it is fused.
        parts=partial**2 * (parts + rescaled + 1),
        row=row_sum**2 * (whole + rescaled + (parts + rescaled) * squares) + row_sum_store(contract) ** 2 + softmax**2,
        element=(1 - before) * (softmax**2 + narrowed**2) + contract.stages.output.u**2,
    )


def rescaled_partial_sums(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the share of rescale factors in either coefficient of :func:`partial_sums`, [.., Sq, 1].

    At the k-th of n keys the maximum rises with probability 1/k, and the sum so far holds k of n terms: the sum of
    (1/k)(k/n)^2 is (1 + 1/n)/2, that of (1/k)(k/n)(1 - k/n) is less. If exp(0) is not 1, every tile counts.
    """
    tiles, n = contract.tiles(forward.problem.key_length), np.maximum(forward.keys, 1)
    if tiles == 1:
        return np.zeros(n.shape)
    return (1 + 1 / n) / 2 if contract.exp_of_zero_is_one else np.full(n.shape, (tiles + 1) / 3)


def _log_weight(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Squared roundings of s, of s - m and of the exponentials, [.., Sq, Sk].

    The arguments of a weight and of its rescale factors add up to s - M, so their squares add up to less than that of
    the whole. With base 2, score and maximum are multiplied by log2(e) first.
    """
    stored, work, softmax = (
        contract.stages.stored_scores.u,
        contract.stages.score_accumulation.u,
        contract.stages.softmax.u,
    )
    sigma, s2 = abs(forward.problem.scale_value), np.where(forward.visible, forward.s**2, 0.0)
    whole, parts = partial_sums(np.float64(forward.problem.head_dim), contract.summation_depth or np.inf)
    variance = work**2 * (whole * s2 + (parts + 1) * squared_products(forward))
    narrows = not contains(contract.stages.stored_scores.format, contract.stages.score_accumulation.format)
    variance += stored**2 * s2 * (float(narrows) + float(not is_power_of(2, sigma)))
    distance = np.where(forward.visible, forward.M - forward.s + contract.reference_slack, 0.0)
    factors = systematic(forward, contract).factors
    variance += softmax**2 * (distance**2 + factors)
    if contract.base2:
        variance += work**2 * (s2 + 2 * s2.max(axis=-1, keepdims=True, initial=0.0))
    return np.where(forward.visible, variance, 0.0)


def _operand(forward: Intermediates, contract: ResolvedContract) -> float:
    """Squared rounding of an entry of q or k: on entry to the product, and by a scale that multiplies it before."""
    scaled = contract.stages.stored_scores.u if operand_scaling(forward, contract).u else 0.0
    return operand_entry(forward, contract).u ** 2 + scaled**2


def squared_products(forward: Intermediates) -> np.ndarray:
    """sigma^2 sum_d q_d^2 k_d^2, [.., Sq, Sk]: the squared terms of a score."""
    return forward.problem.scale_value**2 * (forward.q**2 @ (forward.k**2).swapaxes(-1, -2))


def log_weight_variance(forward: Intermediates, squared: Roundings, bounded: Systematic) -> np.ndarray:
    """Variance proxy of the logarithm of each weight, rounded operands and exponentials included, [.., Sq, Sk].

    The error of an exponential is a function of its argument, and so independent of v: in a sum with independent
    v_j it varies like a random one, by the randomness of v, with at most its bound for a standard deviation.
    """
    total = (
        squared.weight
        + 2 * squared.operand * squared_products(forward)
        + bounded.squared_factors * bounded.exponential**2
    )
    return np.where(forward.visible, total, 0.0)


def variance(forward: Intermediates, squared: Roundings, log_weight: np.ndarray) -> np.ndarray:
    """Variance proxy of each element of the output, [.., Sq, Dv]; ``log_weight`` is that of the weights."""
    Pv2 = forward.P**2 @ forward.v**2
    return (
        _spread(forward, log_weight)
        + (squared.numerator + squared.value + squared.parts) * Pv2
        + (squared.whole + squared.row + squared.element) * forward.O**2
    )


def shared_variances(forward: Intermediates, squared: Roundings) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of :func:`variance` from rounding k and from rounding v, which many rows share, [.., Sq, Dv]."""
    keys = (
        _spread(forward, squared.operand * squared_products(forward)) if squared.operand else np.zeros(forward.O.shape)
    )
    return keys, squared.value * (forward.P**2 @ forward.v**2)


def variance_of_sum(forward: Intermediates, squared: Roundings, a: np.ndarray) -> np.ndarray:
    """Variance proxy of sum a (O_hat - o) over all elements, exponentials left out; ``a`` is [.., Sq, Dv].

    Every rounding counts with its whole coefficient, summed over the elements it has an influence on.
    """
    av = a @ forward.v.swapaxes(-1, -2)
    Pg = forward.P * (av - (a * forward.O).sum(axis=-1, keepdims=True))
    total = (squared.weight * Pg**2).sum() + squared.numerator * ((forward.P * av) ** 2).sum()
    if squared.operand:
        from_q = (Pg @ forward.k) * forward.q
        from_k = forward.over_group(Pg.swapaxes(-1, -2) @ forward.q) * forward.problem.k
        total += squared.operand * forward.problem.scale_value**2 * ((from_q**2).sum() + (from_k**2).sum())
    if squared.value:
        total += squared.value * ((forward.over_group(forward.P.swapaxes(-1, -2) @ a) * forward.problem.v) ** 2).sum()
    total += (
        a**2 * (squared.parts * (forward.P**2 @ forward.v**2) + (squared.whole + squared.element) * forward.O**2)
    ).sum()
    return total + (squared.row * (a * forward.O).sum(axis=-1, keepdims=True) ** 2).sum()


def systematic_sum(forward: Intermediates, bounded: Systematic, log_weight: np.ndarray, a: np.ndarray) -> float:
    """Largest |sum a (O_hat - o)| that the systematic errors and the second order can cause.

    An adversary chooses the sign of every exponential; the constants move all scores together. To second order
    exp(b) - 1 - b has a mean of at most half the variance of b, and the row sum's share of it at most the other half.
    """
    Pg = forward.P * (a @ forward.v.swapaxes(-1, -2) - (a * forward.O).sum(axis=-1, keepdims=True))
    temperature = abs((Pg * np.where(forward.visible, forward.s, 0.0)).sum())
    each = bounded.factors * bounded.exponential + log_weight
    return float((np.abs(Pg) * each).sum() + bounded.constants * temperature)


def cut_sums(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Mean error of each output that matrix units may make by cutting their sums, [.., Sq, Dv]; cuts have a sign.

    A cut costs a share of the largest of a partial sum and its terms, see ``products``, which is at most the root of
    the mean of E S_t^2 and that of the sum of squared terms together. A cut from [0, 2u] is u and a rounding from
    [-u, u], so half of all that is mean.
    """
    if not on_matrix_unit(contract):
        return np.zeros(forward.O.shape)
    s = np.where(forward.visible, forward.scaled, 0.0)
    scores = _cut_share(
        contract, "score_accumulation", np.float64(forward.problem.head_dim), s**2, squared_products(forward)
    )
    weighted = forward.P * np.where(forward.visible, scores, 0.0)
    values = _cut_share(contract, "output_accumulation", forward.keys, forward.O**2, forward.P**2 @ forward.v**2)
    return weighted @ np.abs(forward.v) + weighted.sum(axis=-1, keepdims=True) * np.abs(forward.O) + values


def _cut_share(
    contract: ResolvedContract, stage: str, n: np.ndarray | np.float64, whole: np.ndarray, squares: np.ndarray
) -> np.ndarray:
    """All cuts of a sum of n exchangeable terms, given its square and the sum of its squared terms."""
    n = np.maximum(n, 1)
    mean_square, of_parts = partial_sums(n, np.inf)
    return (
        gamma(*roundings_of_sum(contract, stage, n))
        / 2
        * (np.sqrt((mean_square * whole + of_parts * squares) / n) + np.sqrt(squares))
    )


def temperature(forward: Intermediates) -> np.ndarray:
    """Return the output's derivative by a common relative change of scores, sum_j P_j s_j (v_j - o), [.., Sq, Dv]."""
    Ps = forward.P * np.where(forward.visible, forward.s, 0.0)
    return Ps @ forward.v - Ps.sum(axis=-1, keepdims=True) * forward.O


def _spread(forward: Intermediates, log_weight: np.ndarray) -> np.ndarray:
    """sum_j P_j^2 var_j (v_j - o)^2, [.., Sq, Dv]."""
    W = forward.P**2 * log_weight
    squares = W @ forward.v**2 - 2 * forward.O * (W @ forward.v) + W.sum(axis=-1, keepdims=True) * forward.O**2
    return np.maximum(squares, 0.0)
