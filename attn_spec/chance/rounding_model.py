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
from attn_spec.contract.products import casts_row_sum, multiplicand, on_matrix_unit, probability_cast, sums
from attn_spec.contract.roundoff import elementary_error, growth, is_power_of, row_sum_store
from attn_spec.contract.stages import contains


@dataclass(frozen=True)
class Roundings:
    """Squared sizes of the random roundings of one reading of a contract, each relative to what it multiplies."""

    #: Variance of the logarithm of one weight, b_j, [.., Sq, Sk]: everything but the operands of q.k.
    weight: np.ndarray
    #: Variance of one element of q or of k on entry to q.k.
    operand: float
    #: Variances of one weight in the numerator alone, n_j, and of one element of v.
    numerator: float
    value: float
    #: Variance of all partial sums of P v: coefficients of o^2 and of sum_j P_j^2 v_j^2, [.., Sq, 1].
    whole: np.ndarray
    parts: np.ndarray
    #: Variance of the factors of a row, l_t and r, [.., Sq, 1]; and of the factor of one element, f.
    row: np.ndarray
    element: float


@dataclass(frozen=True)
class Systematic:
    """Errors that need not have mean 0, as bounds."""

    #: Variance of the exponential of one weight.
    exponential: float
    #: Number of exponentials that a weight is made of: mean and mean square over orders.
    factors: float
    squared_factors: float
    #: Relative variance that all scores share: rounded constants.
    constants: float


def partial_sums(n: np.ndarray | np.float64, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of x^2 and q in the sum of E S_t^2 over all partial sums of n exchangeable terms, any order."""
    return np.minimum((n + 1) / 3, depth), np.minimum((n + 1) / 6 + 1 / 4, depth)


def systematic(x: Intermediates, c: ResolvedContract) -> Systematic:
    """The errors of a resolved contract that are bounded, not random."""
    tiles = c.tiles(x.problem.key_length)
    mean, square = (2.0, 6.0) if c.exp_of_zero_is_one else ((tiles + 1) / 2, (tiles + 1) * (2 * tiles + 1) / 6)
    work, sigma = c.stages.score_accumulation.u, abs(x.problem.scale_value)
    constants = 0.0 if is_power_of(2, sigma) else 2 * work
    if operand_scaling(x, c).u:
        constants = 4 * work
    if c.base2:
        constants += 2 * work
    one_tile = tiles == 1
    return Systematic(
        exponential=elementary_error(c, "exp_error"),
        factors=1.0 if one_tile else mean,
        squared_factors=1.0 if one_tile else square,
        constants=constants,
    )


def roundings(x: Intermediates, c: ResolvedContract) -> Roundings:
    """The random roundings of a resolved contract that leaves no reading open."""
    before = float(c.normalize == "before_product")
    n, depth = x.keys, c.summation_depth or np.inf
    cast, softmax, entry = probability_cast(c).u, c.stages.softmax.u, multiplicand(c, x.problem.dtype).u
    partial, row_sum = c.stages.output_accumulation.u, c.stages.row_sum.u
    narrowed = c.stages.softmax.of(c.stages.output_accumulation.format).u
    squares = (x.P**2).sum(axis=-1, keepdims=True)
    whole, parts = partial_sums(n, depth)
    rescaled = rescaled_partial_sums(x, c)
    return Roundings(
        weight=_log_weight(x, c) + (cast**2 if casts_row_sum(c) else 0.0),
        operand=_operand(x, c),
        numerator=(0.0 if casts_row_sum(c) else cast**2) + before * softmax**2,
        value=entry**2,
        whole=partial**2 * (whole + rescaled),
        # Each product is rounded before it is added, unless it is fused.
        parts=partial**2 * (parts + rescaled + 1),
        row=row_sum**2 * (whole + rescaled + (parts + rescaled) * squares) + row_sum_store(c) ** 2 + softmax**2,
        element=(1 - before) * (softmax**2 + narrowed**2) + c.stages.output.u**2,
    )


def rescaled_partial_sums(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Return the share of rescale factors in either coefficient of :func:`partial_sums`, [.., Sq, 1].

    At the k-th of n keys the maximum rises with probability 1/k, and the sum so far holds k of n terms: the sum of
    (1/k)(k/n)^2 is (1 + 1/n)/2, that of (1/k)(k/n)(1 - k/n) is less. If exp(0) is not 1, every tile counts.
    """
    tiles, n = c.tiles(x.problem.key_length), np.maximum(x.keys, 1)
    if tiles == 1:
        return np.zeros(n.shape)
    return (1 + 1 / n) / 2 if c.exp_of_zero_is_one else np.full(n.shape, (tiles + 1) / 3)


def _log_weight(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Squared roundings of s, of s - m and of the exponentials, [.., Sq, Sk].

    The arguments of a weight and of its rescale factors add up to s - M, so their squares add up to less than that of
    the whole. With base 2, score and maximum are multiplied by log2(e) first.
    """
    stored, work, softmax = c.stages.stored_scores.u, c.stages.score_accumulation.u, c.stages.softmax.u
    sigma, s2 = abs(x.problem.scale_value), np.where(x.visible, x.s**2, 0.0)
    whole, parts = partial_sums(np.float64(x.problem.head_dim), c.summation_depth or np.inf)
    variance = work**2 * (whole * s2 + (parts + 1) * squared_products(x))
    narrows = not contains(c.stages.stored_scores.format, c.stages.score_accumulation.format)
    variance += stored**2 * s2 * (float(narrows) + float(not is_power_of(2, sigma)))
    distance = np.where(x.visible, x.M - x.s + c.reference_slack, 0.0)
    factors = systematic(x, c).factors
    variance += softmax**2 * (distance**2 + factors)
    if c.base2:
        variance += work**2 * (s2 + 2 * s2.max(axis=-1, keepdims=True, initial=0.0))
    return np.where(x.visible, variance, 0.0)


def _operand(x: Intermediates, c: ResolvedContract) -> float:
    """Squared rounding of an entry of q or k: on entry to the product, and by a scale that multiplies it before."""
    scaled = c.stages.stored_scores.u if operand_scaling(x, c).u else 0.0
    return operand_entry(x, c).u ** 2 + scaled**2


def squared_products(x: Intermediates) -> np.ndarray:
    """sigma^2 sum_d q_d^2 k_d^2, [.., Sq, Sk]: the squared terms of a score."""
    return x.problem.scale_value**2 * (x.q**2 @ (x.k**2).swapaxes(-1, -2))


def log_weight_variance(x: Intermediates, r: Roundings, e: Systematic) -> np.ndarray:
    """Variance proxy of the logarithm of each weight, rounded operands and exponentials included, [.., Sq, Sk].

    The error of an exponential is a function of its argument, and so independent of v: in a sum with independent
    v_j it varies like a random one, by the randomness of v, with at most its bound for a standard deviation.
    """
    total = r.weight + 2 * r.operand * squared_products(x) + e.squared_factors * e.exponential**2
    return np.where(x.visible, total, 0.0)


def variance(x: Intermediates, r: Roundings, log_weight: np.ndarray) -> np.ndarray:
    """Variance proxy of each element of the output, [.., Sq, Dv]; ``log_weight`` is that of the weights."""
    Pv2 = x.P**2 @ x.v**2
    return _spread(x, log_weight) + (r.numerator + r.value + r.parts) * Pv2 + (r.whole + r.row + r.element) * x.O**2


def shared_variances(x: Intermediates, r: Roundings) -> tuple[np.ndarray, np.ndarray]:
    """The parts of :func:`variance` that come of rounding k, and of rounding v, which many rows read, [.., Sq, Dv]."""
    keys = _spread(x, r.operand * squared_products(x)) if r.operand else np.zeros(x.O.shape)
    return keys, r.value * (x.P**2 @ x.v**2)


def variance_of_sum(x: Intermediates, r: Roundings, a: np.ndarray) -> np.ndarray:
    """Variance proxy of sum a (O_hat - o) over all elements, exponentials left out; ``a`` is [.., Sq, Dv].

    Every rounding counts with its whole coefficient, summed over the elements it has an influence on.
    """
    av = a @ x.v.swapaxes(-1, -2)
    Pg = x.P * (av - (a * x.O).sum(axis=-1, keepdims=True))
    total = (r.weight * Pg**2).sum() + r.numerator * ((x.P * av) ** 2).sum()
    if r.operand:
        from_q = (Pg @ x.k) * x.q
        from_k = x.over_group(Pg.swapaxes(-1, -2) @ x.q) * x.problem.k
        total += r.operand * x.problem.scale_value**2 * ((from_q**2).sum() + (from_k**2).sum())
    if r.value:
        total += r.value * ((x.over_group(x.P.swapaxes(-1, -2) @ a) * x.problem.v) ** 2).sum()
    total += (a**2 * (r.parts * (x.P**2 @ x.v**2) + (r.whole + r.element) * x.O**2)).sum()
    return total + (r.row * (a * x.O).sum(axis=-1, keepdims=True) ** 2).sum()


def systematic_sum(x: Intermediates, e: Systematic, log_weight: np.ndarray, a: np.ndarray) -> float:
    """Largest |sum a (O_hat - o)| that the systematic errors and the second order can cause.

    An adversary chooses the sign of every exponential; the constants move all scores together. To second order
    exp(b) - 1 - b has a mean of at most half the variance of b, and the row sum's share of it at most the other half.
    """
    Pg = x.P * (a @ x.v.swapaxes(-1, -2) - (a * x.O).sum(axis=-1, keepdims=True))
    temperature = abs((Pg * np.where(x.visible, x.s, 0.0)).sum())
    each = e.factors * e.exponential + log_weight
    return float((np.abs(Pg) * each).sum() + e.constants * temperature)


def cut_sums(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Mean error of each output that matrix units may make by cutting their sums, [.., Sq, Dv]; cuts have a sign.

    A cut costs a share of the largest of a partial sum and its terms, see ``products``, which is at most the root of
    the mean of E S_t^2 and that of the sum of squared terms together. A cut from [0, 2u] is u and a rounding from
    [-u, u], so half of all that is mean.
    """
    if not on_matrix_unit(c):
        return np.zeros(x.O.shape)
    s = np.where(x.visible, x.scaled, 0.0)
    scores = _cut_share(c, "score_accumulation", np.float64(x.problem.head_dim), s**2, squared_products(x))
    weighted = x.P * np.where(x.visible, scores, 0.0)
    values = _cut_share(c, "output_accumulation", x.keys, x.O**2, x.P**2 @ x.v**2)
    return weighted @ np.abs(x.v) + weighted.sum(axis=-1, keepdims=True) * np.abs(x.O) + values


def _cut_share(
    c: ResolvedContract, stage: str, n: np.ndarray | np.float64, whole: np.ndarray, squares: np.ndarray
) -> np.ndarray:
    """All cuts of a sum of n exchangeable terms, given its square and the sum of its squared terms."""
    n = np.maximum(n, 1)
    mean_square, of_parts = partial_sums(n, np.inf)
    return growth(*sums(c, stage, n)) / 2 * (np.sqrt((mean_square * whole + of_parts * squares) / n) + np.sqrt(squares))


def temperature(x: Intermediates) -> np.ndarray:
    """Derivative of the output by a common relative change of all scores, sum_j P_j s_j (v_j - o), [.., Sq, Dv]."""
    Ps = x.P * np.where(x.visible, x.s, 0.0)
    return Ps @ x.v - Ps.sum(axis=-1, keepdims=True) * x.O


def _spread(x: Intermediates, log_weight: np.ndarray) -> np.ndarray:
    """sum_j P_j^2 var_j (v_j - o)^2, [.., Sq, Dv]."""
    W = x.P**2 * log_weight
    squares = W @ x.v**2 - 2 * x.O * (W @ x.v) + W.sum(axis=-1, keepdims=True) * x.O**2
    return np.maximum(squares, 0.0)
