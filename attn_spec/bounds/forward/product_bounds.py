"""Bounds on the errors of products of q and k under a contract: operands, scaled or not, and their products."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.intermediates import Intermediates, kept
from attn_spec.bounds.operand_bounds import operand_error, pair_error, stored_format
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import entry, exact_bits, left_out, sum_underflow, sums, terms
from attn_spec.contract.roundoff import growth, is_power_of
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, guard, term, times
from attn_spec.numbers import bits
from attn_spec.numbers.formats import Format


def operand_scaling(x: Intermediates, c: ResolvedContract) -> Rounding:
    """Rounding of q or k by a scale that multiplies them first, relative to the unscaled operand.

    Two roundings of the constant, one of the product, which is stored; one more where log2(e) or the inverse of a
    softcap is folded in. Without those a power of 4 has an exact root and never rounds, unless storing does; but it
    may underflow.
    """
    sigma, dtype = abs(x.problem.scale_value), stored_format(x, c)
    if c.scale_on == "scores" or sigma == 0:
        return EXACT
    folds = c.base2 or x.problem.softcap is not None
    if sigma == 1 and not folds:  # nothing to multiply, but storing may round
        return term("storing operands of scale 1", c.stages.stored_scores.of(dtype), EXACT)
    stored, work = c.stages.stored_scores, c.stages.score_accumulation
    exact = (
        not folds
        and is_power_of(count("powers of 2 have no exact root", 4), sigma)
        and guard("storing a scaled operand that has more bits", stored.of(dtype).u == 0, True)
    )
    of_factor = count("roundings of the operand's factor", 2) + count("the rounding of a folded factor", int(folds))
    rounded = growth((stored.u, count("storing a scaled operand", 1)), (work.u, of_factor))
    unscaled = times("underflow of a scaled operand before it is unscaled", _unscaling(x, c))
    return Rounding(0.0 if exact else float(rounded), term("underflow of a scaled operand", stored.eta * unscaled))


def operand_entry(x: Intermediates, c: ResolvedContract) -> Rounding:
    """Rounding of q or k on entry to q.k, relative to the unscaled operand; a scale has multiplied it before."""
    scaled = operand_scaling(x, c)
    if c.scale_on == "scores" or x.problem.scale_value == 0:
        return entry(c, stored_format(x, c))
    enters = entry(c, operand_format(x, c))
    if scaled.u == 0:  # the digits are still those of q; the exponent is another, and may be below the range
        moved = term("underflow on entry of an operand moved by a power of 4", c.stages.multiplicands.eta)
        enters = Rounding(entry(c, stored_format(x, c)).u, max(enters.eta, moved))
    unscaled = times("underflow on entry, before it is unscaled", _unscaling(x, c))
    return Rounding(enters.u, term("underflow on entry of a scaled operand", enters.eta * unscaled))


def operand_format(x: Intermediates, c: ResolvedContract) -> Format:
    """The format of q and k when they enter q.k."""
    return stored_format(x, c) if c.scale_on == "scores" else c.stages.stored_scores.format


def _unscaling(x: Intermediates, c: ResolvedContract) -> float:
    """Return the factor from an absolute error of a scaled operand, or of its product, to one of the unscaled."""
    sigma = abs(x.problem.scale_value)
    return 1.0 if c.scale_on == "scores" or not sigma else last_factor(x) / sigma


def last_factor(x: Intermediates) -> float:
    """The largest number that may multiply a product of q and k, or of dS and one of them: sigma itself, if no operand
    was scaled; 1, if one was; or a softcap c, if one was multiplied by sigma / c.
    """
    return max(1.0, abs(x.problem.scale_value), term("unscaling by a softcap", x.problem.softcap or 0.0))


def dot_product_error(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Error of q.k before the scale, but of operands that were scaled: |q|.|k| growth + underflow.

    Each factor enters, pieces of their product are left out, and it passes at most d roundings, for every order and
    tree (Higham, section 3.1), or the cuts of a matrix unit (``products``). The error is 0 where every partial sum is
    exact, see :func:`exact_scores`. Operands other than q and k have errors of their own, and so has what is
    no product of them (``operand_bounds``).
    """
    if (of_pairs := pair_error(x, c)) is not None:
        return of_pairs
    d, form = x.q.shape[-1], operand_format(x, c)
    enters, scaled = operand_entry(x, c), operand_scaling(x, c)
    roundings = sums(c, "score_accumulation", d, blocks=math.ceil(d / c.matrix_block))
    relative = growth(
        (enters.u, count("entry of both operands of a score", 2)),
        (left_out(c, form, form), count("pieces left out of a score", 1)),
        (scaled.u, count("scaling both operands", 2)),
        *term("sums of a score", roundings, ()),
    )
    eta = term("underflow of operands on entry", enters.eta) + term("underflow of operands that are scaled", scaled.eta)
    of_q, of_k = _operand_sizes(x, c)
    sizes = of_q.sum(-1)[..., :, None] + of_k.sum(-1)[..., None, :]
    # A product may have been scaled already when it underflows; later roundings make an underflow grow.
    underflow = term(
        "underflow of a score's sums",
        count("underflow of both products and sums", 2)
        * terms(c, d)
        * sum_underflow(c, "score_accumulation")
        * times("underflow of a scaled score's sums", _unscaling(x, c)),
    )
    underflow = (
        underflow
        + term(
            "underflow of operands times the other operand", eta * (sizes + term("both operands underflow", d * eta))
        )
    ) * times("roundings make underflow grow", 1 + relative)
    rounded = relative * term("roundings make errors of operands grow", product_sizes(x, c), x.magnitude) + underflow
    if (operands := operand_error(x, c)) is not None:
        return term("errors of both operands of a score", operands.moves(x)) + rounded
    return np.where(exact_scores(x, c), 0.0, rounded)


def _operand_sizes(x: Intermediates, c: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """The largest that the operands may be, [B, Hq, Sq, D] and [B, Hq, Sk, D]."""
    errors = operand_error(x, c)
    return (x.q_size, x.k_size) if errors is None else (x.q_size + errors.q, x.k_size + errors.k)


@kept
@np.errstate(all="ignore")
def product_sizes(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """The sum of the sizes of the products that a score is, at most, [.., Sq, Sk]."""
    if operand_error(x, c) is None or x.score.pairs is not None:
        return x.magnitude
    of_q, of_k = _operand_sizes(x, c)
    return of_q @ of_k.swapaxes(-1, -2)


@np.errstate(all="ignore")
def shared_error(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """The part of :func:`dot_product_error` that two products of the same operands have in common."""
    errors, of_pairs = operand_error(x, c), pair_error(x, c)
    if errors is None:
        return np.zeros(x.dot.shape)
    if of_pairs is None:
        return errors.moves(x)
    # What the operands' errors have moved is rounded in each again.
    again = pair_error(x, c, shared=False)
    assert again is not None
    moved = growth((c.stages.score_accumulation.u, x.q.shape[-1] + 4), (c.stages.stored_scores.u, 4))
    return np.maximum(
        of_pairs
        - term("roundings that two scores of a pair do not share", again)
        - term("roundings of errors that two scores share", moved * of_pairs),
        0.0,
    )


@kept
@np.errstate(all="ignore")
def exact_scores(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """Return where q.k is exact in any order: every partial sum is a multiple of g = 2^(low q + low k) below 2^p g.

    ``low`` is the exponent of the lowest set bit of a vector's entries; p the accumulator's precision. Neither a
    product nor an operand may be subnormal where such numbers round or are flushed.
    """
    sigma, form = abs(x.problem.scale_value), operand_format(x, c)
    if operand_error(x, c) is not None:
        return np.zeros(x.dot.shape, dtype=bool)
    if (
        guard("exact scores have operands that enter exactly", operand_entry(x, c).u, False)
        or guard("exact scores have operands that are not scaled inexactly", operand_scaling(x, c).u, False)
        or guard("exact scores have all products of pieces", left_out(c, form, form), False)
    ):
        return np.zeros(x.dot.shape, dtype=bool)
    low_q, low_k = lowest_bits(x)
    low_q, low_k = low_q[..., :, None], low_k[..., None, :]
    fits = np.log2(x.magnitude) <= exact_bits(c, "score_accumulation") + np.minimum(low_q + low_k, 4000.0) - 1e-9
    operands = np.minimum(low_q, low_k) + (min(0.0, math.log2(sigma)) if c.scale_on == "operands" and sigma else 0.0)
    products = np.minimum(operands, low_q + low_k) + min(0.0, math.log2(sigma) if sigma else 0.0)
    summed = max(form.emin for form in c.formats("score_accumulation", "inner_accumulation"))
    return (
        guard("exact scores fit the accumulator", fits, True)
        & guard("exact scores have normal products", products >= summed, True)
        & guard("exact scores have normal operands", operands >= _smallest_operand(x, c), True)
    )


@kept
def lowest_bits(x: Intermediates) -> tuple[np.ndarray, np.ndarray]:
    """Exponents of the lowest set bits of q [.., Sq] and k [.., Sk], which every contract asks for."""
    return bits.lowest_bit_exponent(x.q, -1), bits.lowest_bit_exponent(x.k, -1)


def _smallest_operand(x: Intermediates, c: ResolvedContract) -> float:
    """The exponent below which an entry of q or k, scaled or not, may change on its way into the product."""
    enters = c.stages.multiplicands.format
    moved = c.scale_on == "operands" and abs(x.problem.scale_value) != 1
    lowest = float(enters.emin) if moved or c.flushes(enters, entering=True) else -math.inf
    stored = c.stages.stored_scores.format
    if c.scale_on == "operands" and (moved or c.flushes(stored)):
        lowest = max(lowest, stored.emin)
    return lowest
