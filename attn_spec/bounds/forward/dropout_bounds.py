"""Roundings of weights times 1 / (1 - p) under dropout, or times a descale of their values, and where that fits.

A kernel may multiply the weights before their cast, or after it those that are normalized; the finished output; or,
where a product of the softmax's format enters that with weights as it is, the values. A backward pass may multiply dP
and dV, or what they are made of. Each is one product in the format of the softmax, or of what holds the factor.

Or it keeps the factor for the end (FlashAttention-2): with (1 - p) D in place of D, P (keep dP' - (1 - p) D) is
(1 - p) dS, and sigma / (1 - p) multiplies its products with k and q. Then D and what is finished each have one product
more, and what underflows on the way to dQ, dK or the gradient of a bias is multiplied by 1 / (1 - p).

A descale of values is such a factor. ``value_descale_on`` of a contract says what it multiplies. An underflow before
that product is multiplied by the factor, and one behind it is not: the bound has the larger (``Intermediates.raised``).
A descale that is a power of 2 changes no digit, but may make what it multiplies underflow. Values that it multiplies
are rounded to the format of products, and to that of operands, all the same.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.operand_bounds import value_sizes
from attn_spec.bounds.replay import replay_of
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import Factors
from attn_spec.contract.roundoff import is_power_of
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, standing, term
from attn_spec.numbers.formats import FORMATS

#: The least 1 - p, a power of 2, that no format rounds.
_EXACT = 2.0**-3


def weight_stages(contract: ResolvedContract) -> tuple[str, ...]:
    """Return the stages in which weights, values or outputs may be multiplied."""
    normalized = contract.normalize == "before_product"
    stored = standing(("products of probabilities that are normalized", "probabilities")) if normalized else ()
    return ("softmax", *stored)


def factor_underflow(forward: Intermediates, contract: ResolvedContract, *stages: str) -> float:
    """Bound the loss to underflow of a product with a factor; 0 where it is not rounded, nor made smaller."""
    d = forward.problem.v_descale
    lost = max(contract.stage(stage).eta for stage in stages) if _of_dropout(forward, contract, *stages) else 0.0
    if d is None:
        return lost
    product, operand = _roundings_of_digits(forward, contract)
    if _has_powers_of_2(d) and d.min(initial=1.0) >= 1 and not (product.u or operand.eta):
        return lost
    of_values = max(contract.stage(stage).eta for stage in (*stages, *_value_stages(contract)))
    if contract.value_descale_on == "operands":  # which are stored once more
        of_values += contract.stages.score_accumulation.eta
    return max(lost, term("underflow of a product with a descale of values", of_values))


def factor_roundings(forward: Intermediates, contract: ResolvedContract, *stages: str) -> Factors:
    """Return the roundings of a product with 1 / (1 - p), and with a descale of values, in the coarsest stage."""
    return (*_of_dropout(forward, contract, *stages), *_of_descale(forward, contract, *stages))


def _of_dropout(forward: Intermediates, contract: ResolvedContract, *stages: str) -> Factors:
    """Return the roundings of a product with 1 / (1 - p) in the coarsest of these stages; 1, 2, 4, .. are exact.

    p is rounded, which moves 1 - p by a share m = u p / (1 - p) of it, and the inverse of that by a factor of up to
    1 / (1 - m); then 1 - p, its inverse and the product are.
    """
    kept = 1 - (forward.problem.dropout_p or 0.0)
    if forward.problem.dropout_keep is None or (is_power_of(2, kept) and kept >= _EXACT):
        return ()
    u = max(contract.stage(stage).u for stage in stages)
    moved = u * (1 - kept) / kept
    return (
        (
            u,
            count("roundings of 1 / (1 - p)", 4) - term("the rounding of p", math.log1p(-moved) / math.log1p(u))
            if moved < 1
            else math.inf,
        ),
    )


def _of_descale(forward: Intermediates, contract: ResolvedContract, *stages: str) -> Factors:
    """Return the roundings of a product with a descale of values, in the coarsest stage; powers of 2 are exact.

    The descale is loaded, and there is one product more than without it, of values, weights, outputs or constants.
    Values that it has multiplied are rounded as products and stored as operands are, also where it is a power of 2.
    """
    d = forward.problem.v_descale
    of_scale = _of_block_scale(forward, contract)
    if d is None:
        return of_scale
    if _has_powers_of_2(d) and not of_scale:
        product, operand = _roundings_of_digits(forward, contract)
        made = ((product.u, count("the product of a value and a power of 2", 1)),) if product.u else ()
        return (*made, *_store(operand.u))
    on_operands = contract.value_descale_on == "operands"
    further = ("score_accumulation",) if on_operands else _value_stages(contract)
    u = max(contract.stage(stage).u for stage in (*stages, *further))
    stored = _store(contract.stages.operands.u) if on_operands else ()
    return ((u, count("a descale of values as it is loaded, and its product", 2)), *stored, *of_scale)


def _store(u: float) -> Factors:
    """Return the rounding of a value that a descale has multiplied to the format of operands."""
    return ((u, count("the store of a value that a descale multiplies", 1)),) if u else ()


def _roundings_of_digits(forward: Intermediates, contract: ResolvedContract) -> tuple[Rounding, Rounding]:
    """Return the roundings of a value that a power of 2 multiplies, as a product and as an operand: its digits are its
    own until a narrower format holds them.
    """
    if contract.value_descale_on != "operands":
        return EXACT, EXACT
    stages, own = contract.stages, FORMATS[forward.problem.dtype_of("v")]
    product = stages.score_accumulation.of(own)
    return product, stages.operands.of(stages.score_accumulation.format if product.u else own)


def _of_block_scale(forward: Intermediates, contract: ResolvedContract) -> Factors:
    """Return by how much the scale of a quantiser of values may be another, as a rounding of that size."""
    problem = replay_of(forward.problem, contract)
    if problem is None:
        return ()
    error = float(np.max(problem.scale_error("v_descale"), initial=0.0))
    return ((error, count("the scale of a block of values", 1)),) if error else ()


def _value_stages(contract: ResolvedContract) -> tuple[str, ...]:
    """Return the further stages in which a descale of values may multiply."""
    return {"output": ("output_accumulation",), "probabilities": (), "operands": ("operands",)}[
        contract.value_descale_on
    ]


def _has_powers_of_2(x: np.ndarray) -> bool:
    return bool((np.frexp(x)[0] == 0.5).all())


def late_roundings(forward: Intermediates, contract: ResolvedContract) -> Factors:
    """Return the roundings of D by 1 - p, or of finished gradients by 1 / (1 - p), if the factor comes last."""
    return factor_roundings(
        forward,
        contract,
        *standing(
            ("the softmax's format at the end", "softmax"),
            ("the format of what is finished when it is raised", "score_accumulation"),
        ),
    )


def factor_fits(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether 1 - p, its inverse and the inverse times any value are normal numbers wherever they are held.

    So must what is left of 1 - p be when p is rounded: at least half of it.
    """
    kept, stages = (
        1 - (forward.problem.dropout_p or 0.0),
        ("score_accumulation", "stored_scores", *weight_stages(contract)),
    )
    most, least, stages = _with_descales(forward, contract, stages)
    largest = max(value_sizes(forward, contract).max(initial=0.0), 1.0) * most / kept
    smallest = 2 * max(form.smallest_normal for form in contract.formats(*stages))
    rounded = all(2 * contract.stage(stage).u * (1 - kept) <= kept for stage in stages)
    return forward.c is None or (rounded and kept * least >= smallest and 2 * largest < contract.largest(*stages))


def _with_descales(
    forward: Intermediates, contract: ResolvedContract, stages: tuple[str, ...]
) -> tuple[float, float, tuple[str, ...]]:
    """Return the largest and the smallest descale of values, at least and at most 1, and all stages of factors."""
    d = forward.problem.v_descale
    if d is None:
        return 1.0, 1.0, stages
    return float(d.max(initial=1.0)), float(d.min(initial=1.0)), (*stages, *_value_stages(contract))
