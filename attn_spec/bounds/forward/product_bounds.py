"""Bounds on the errors of products of q and k under a contract: operands, scaled or not, and their products."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.attention.terms import DESCALES, divisor, used
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import memoized, of_forward_pass
from attn_spec.bounds.operand_bounds import largest_argument_error, operand_error, pair_error, stored_format
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    exact_bits,
    number_of_products,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.roundoff import gamma, is_power_of
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, guard, term, times
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS, Format


def operand_scaling(forward: Intermediates, contract: ResolvedContract) -> Rounding:
    """Return the rounding of q or k by a scale that multiplies them first, relative to the unscaled operand.

    Two roundings of the constant, one of the product, which is stored; one more where log2(e) or the inverse of
    a divisor of scores is folded in. Without those a power of 4 has an exact root and never rounds, unless storing
    does; but it may underflow.
    """
    sigma, dtype = abs(forward.problem.scale_value), stored_format(forward, contract)
    if contract.scale_on == "scores" or sigma == 0:
        return EXACT
    folds = contract.base2 or divisor(forward.problem) is not None
    if sigma == 1 and not folds:  # nothing to multiply, but storing may round
        return term("storing operands of scale 1", contract.stages.stored_scores.of(dtype), EXACT)
    stored, work = contract.stages.stored_scores, contract.stages.score_accumulation
    exact = (
        not folds
        and is_power_of(count("powers of 2 have no exact root", 4), sigma)
        and guard("storing a scaled operand that has more bits", stored.of(dtype).u == 0, True)
    )
    of_factor = count("roundings of the operand's factor", 2) + count("the rounding of a folded factor", int(folds))
    rounded = gamma((stored.u, count("storing a scaled operand", 1)), (work.u, of_factor))
    unscaled = times("underflow of a scaled operand before it is unscaled", _unscaling(forward, contract))
    return Rounding(0.0 if exact else float(rounded), term("underflow of a scaled operand", stored.eta * unscaled))


def operand_entry(forward: Intermediates, contract: ResolvedContract) -> Rounding:
    """Return the rounding of q or k, already scaled, on entry to q.k, relative to the unscaled operand."""
    scaled = operand_scaling(forward, contract)
    if contract.scale_on == "scores" or forward.problem.scale_value == 0:
        return rounding_on_entry(contract, stored_format(forward, contract))
    enters = rounding_on_entry(contract, operand_format(forward, contract))
    if scaled.u == 0:  # the digits are still those of q; the exponent is another, and may be below the range
        moved = term("underflow on entry of an operand moved by a power of 4", contract.stages.multiplicands.eta)
        enters = Rounding(rounding_on_entry(contract, stored_format(forward, contract)).u, max(enters.eta, moved))
    unscaled = times("underflow on entry, before it is unscaled", _unscaling(forward, contract))
    return Rounding(enters.u, term("underflow on entry of a scaled operand", enters.eta * unscaled))


def operand_format(forward: Intermediates, contract: ResolvedContract) -> Format:
    """Return the format of q and k when they enter q.k."""
    return stored_format(forward, contract) if contract.scale_on == "scores" else contract.stages.stored_scores.format


def _unscaling(forward: Intermediates, contract: ResolvedContract) -> float:
    """Return the factor from an absolute error of a scaled operand, or of its product, to one of the unscaled."""
    sigma = abs(forward.problem.scale_value)
    return 1.0 if contract.scale_on == "scores" or not sigma else last_factor(forward) / sigma


def last_factor(forward: Intermediates) -> float:
    """Return the largest number that may multiply a product of q and k, or of dS and one of them.

    It is sigma itself if no operand was scaled, 1 if one was, or a divisor c of scores if one was multiplied by
    sigma / c.
    """
    return max(1.0, abs(forward.problem.scale_value), term("unscaling by a softcap", divisor(forward.problem) or 0.0))


def dot_product_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of q.k before the scale, but of operands that were scaled: |q|.|k| growth + underflow.

    Each factor enters, pieces of their product are left out, and it passes at most d roundings, for every order and
    tree (Higham, section 3.1), or the cuts of a matrix unit (``products``). The error is 0 where every partial sum is
    exact, see :func:`exact_scores`. Operands other than q and k have errors of their own, and so has what is
    no product of them (``operand_bounds``).
    """
    if (of_pairs := pair_error(forward, contract)) is not None:
        return of_pairs
    d, form = forward.q.shape[-1], operand_format(forward, contract)
    enters, scaled = operand_entry(forward, contract), operand_scaling(forward, contract)
    roundings = roundings_of_sum(contract, "score_accumulation", d, blocks=math.ceil(d / contract.matrix_block))
    relative = gamma(
        (enters.u, count("entry of both operands of a score", 2)),
        (skipped_pieces(contract, form, form), count("pieces left out of a score", 1)),
        (scaled.u, count("scaling both operands", 2)),
        *term("sums of a score", roundings, ()),
    )
    eta = term("underflow of operands on entry", enters.eta) + term("underflow of operands that are scaled", scaled.eta)
    of_q, of_k = _operand_sizes(forward, contract)
    if descales_operands(forward, contract):
        return _descaled_product_error(forward, contract, relative, eta)
    sizes = of_q.sum(-1)[..., :, None] + of_k.sum(-1)[..., None, :]
    # A product may have been scaled already when it underflows; later roundings make an underflow grow.
    underflow = term(
        "underflow of a score's sums",
        count("underflow of both products and sums", 2)
        * number_of_products(contract, d)
        * sum_underflow(contract, "score_accumulation")
        * times("underflow of a scaled score's sums", _unscaling(forward, contract)),
    )
    underflow = (
        underflow
        + term(
            "underflow of operands times the other operand", eta * (sizes + term("both operands underflow", d * eta))
        )
    ) * times("roundings make underflow grow", 1 + relative)
    rounded = (
        relative * term("roundings make errors of operands grow", product_sizes(forward, contract), forward.magnitude)
        + underflow
    )
    if (operands := operand_error(forward, contract)) is not None:
        return term("errors of both operands of a score", operands.moves(forward)) + rounded
    return np.where(exact_scores(forward, contract), 0.0, rounded)


def descales_operands(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether descales multiply q or k before their product."""
    return contract.descale_on == "operands" and bool(used(forward.problem, DESCALES))


def _descaled_product_error(
    forward: Intermediates, contract: ResolvedContract, relative: np.ndarray, eta: float
) -> np.ndarray:
    """Error of the product of the operands d_q q and d_k k, over d_q d_k, in place of that of q.k.

    ``relative`` and ``eta`` are the roundings of an operand, and of their product, as without descales. A descale is
    loaded, multiplies the operand, and that is stored in the format of operands: the number d q is off by their
    roundings, and by an underflow, which is 1 / d times as large relative to q. So is what underflows later. What is
    open of codes moves the product, and is rounded with it.
    """
    problem, d = forward.problem, forward.q.shape[-1]
    work, stored = contract.stages.score_accumulation, contract.stages.operands
    rounded, tiny, factors = relative, [], []
    for name in DESCALES:
        used_one = getattr(problem, name) is not None
        factors.append(problem.by_pair(name) if used_one else np.ones((1, 1, 1, 1)))
        tiny.append(
            (eta + term("underflow of an operand that a descale multiplies", used_one * (work.eta + stored.eta)))
            / factors[-1]
        )
        if used_one:
            of_operand = gamma(
                (work.of(FORMATS[problem.dtype_of(name)]).u, count("a descale of operands, as it is loaded", 1)),
                (work.u, count("the product of an operand and its descale", 1)),
                (stored.u, count("the store of an operand that a descale multiplies", 1)),
            )
            rounded = (1 + rounded) * (1 + of_operand) - 1
    of_q, of_k = (x.sum(-1) for x in _operand_sizes(forward, contract))
    underflow = (
        term("underflow of descaled queries", tiny[0] * of_k[..., None, :])
        + term("underflow of descaled keys", tiny[1] * of_q[..., :, None])
        + term("underflow of both descaled operands", d * tiny[0] * tiny[1])
        + term(
            "underflow of sums of descaled operands",
            2
            * number_of_products(contract, d)
            * sum_underflow(contract, "score_accumulation")
            * _unscaling(forward, contract)
            / (factors[0] * factors[1]),
        )
    )
    found = rounded * product_sizes(forward, contract) + (1 + rounded) * underflow
    if (operands := operand_error(forward, contract)) is None:
        return found
    return found + term("errors of both operands of a score", operands.moves(forward))


def _operand_sizes(forward: Intermediates, contract: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest sizes of the operands, [B, Hq, Sq, D] and [B, Hq, Sk, D]."""
    errors = operand_error(forward, contract)
    return (
        (forward.q_size, forward.k_size)
        if errors is None
        else (forward.q_size + errors.E_q, forward.k_size + errors.E_k)
    )


@of_forward_pass
@np.errstate(all="ignore")
def product_sizes(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest sum of the sizes of a score's products, [.., Sq, Sk]."""
    if operand_error(forward, contract) is None or forward.score.pairs is not None:
        return forward.magnitude
    of_q, of_k = _operand_sizes(forward, contract)
    return of_q @ of_k.swapaxes(-1, -2)


@np.errstate(all="ignore")
def shared_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the part of :func:`dot_product_error` that two products of the same operands share.

    Of what is no product, w.tanh(q' + k'), that is all but the own roundings of each. They are those beside exact
    operands, and more. Where operands are off by e, an error of the argument meets a slope that is at most e^(3 e)
    times as large, since the logarithm of the slope of tanh changes by 2 at most where its argument changes by 1, and
    the argument by e and its rounding. What e has become is rounded again by each operation, and in the product.
    """
    errors, of_pairs = operand_error(forward, contract), pair_error(forward, contract)
    if errors is None:
        return np.zeros(forward.dot.shape)
    if of_pairs is None:
        return errors.moves(forward)
    again, work = pair_error(forward, contract, shared=False), contract.stages.score_accumulation
    assert again is not None
    d, entering = forward.q.shape[-1], contract.stages.multiplicands
    moved = gamma(
        (entering.u, 2),
        (skipped_pieces(contract, work.format, work.format), 1),
        (work.u, 4),
        (contract.stages.stored_scores.u, 4),
        *roundings_of_sum(contract, "score_accumulation", d, blocks=math.ceil(d / contract.matrix_block)),
    )
    steeper = times(
        "slopes that errors which two scores share make steeper",
        np.exp(np.minimum(3 * largest_argument_error(forward, contract), 700.0)),
    )
    shared = (
        of_pairs
        - term("roundings that two scores of a pair do not share", again * steeper)
        - term("roundings of errors that two scores share", moved * of_pairs)
    )
    return np.where(np.isfinite(of_pairs), np.maximum(shared, 0.0), 0.0)


@of_forward_pass
@np.errstate(all="ignore")
def exact_scores(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return where q.k is exact in any order: every partial sum is a multiple of g = 2^(low q + low k) below 2^p g.

    ``low`` is the exponent of the lowest set bit of a vector's entries; p the accumulator's precision. Neither a
    product nor an operand may be subnormal where such numbers round or are flushed.
    """
    sigma, form = abs(forward.problem.scale_value), operand_format(forward, contract)
    if operand_error(forward, contract) is not None or descales_operands(forward, contract):
        return np.zeros(forward.dot.shape, dtype=bool)
    if (
        guard("exact scores have operands that enter exactly", operand_entry(forward, contract).u, False)
        or guard(
            "exact scores have operands that are not scaled inexactly", operand_scaling(forward, contract).u, False
        )
        or guard("exact scores have all products of pieces", skipped_pieces(contract, form, form), False)
    ):
        return np.zeros(forward.dot.shape, dtype=bool)
    low_q, low_k = lowest_bits(forward)
    low_q, low_k = low_q[..., :, None], low_k[..., None, :]
    fits = (
        np.log2(forward.magnitude)
        <= exact_bits(contract, "score_accumulation") + np.minimum(low_q + low_k, 4000.0) - 1e-9
    )
    operands = np.minimum(low_q, low_k) + (
        min(0.0, math.log2(sigma)) if contract.scale_on == "operands" and sigma else 0.0
    )
    products = np.minimum(operands, low_q + low_k) + min(0.0, math.log2(sigma) if sigma else 0.0)
    summed = max(form.emin for form in contract.formats("score_accumulation", "inner_accumulation", "products"))
    return (
        guard("exact scores fit the accumulator", fits, True)
        & guard("exact scores have normal products", products >= summed, True)
        & guard("exact scores have normal operands", operands >= _smallest_operand(forward, contract), True)
    )


@memoized
def lowest_bits(forward: Intermediates) -> tuple[np.ndarray, np.ndarray]:
    """Exponents of the lowest set bits of q [.., Sq] and k [.., Sk], which every contract asks for."""
    return bits.lowest_bit_exponent(forward.q, -1), bits.lowest_bit_exponent(forward.k, -1)


def _smallest_operand(forward: Intermediates, contract: ResolvedContract) -> float:
    """Return the exponent below which an entry of q or k, scaled or not, may change on its way into the product."""
    enters = contract.stages.multiplicands.format
    moved = contract.scale_on == "operands" and abs(forward.problem.scale_value) != 1
    lowest = float(enters.emin) if moved or contract.flushes(enters, entering=True) else -math.inf
    stored = contract.stages.stored_scores.format
    if contract.scale_on == "operands" and (moved or contract.flushes(stored)):
        lowest = max(lowest, stored.emin)
    return lowest
