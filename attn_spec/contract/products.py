"""Roundings of a matrix product: of its factors on entry, of pieces that are left out, and of its sums.

A product x.y of n terms comes out as sum x_t y_t (1 + e_t) + underflow; the functions here bound the e_t, or the error
as a share of sum |x_t y_t|, whatever the order of the sum.

Matrix units that cut (Fasi, Higham, Mikaitis and Pranesh 2021; Khattak and Mikaitis, arXiv 2512.07004) add a block of
exact products and the accumulator at once: all are aligned to the largest and cut below a grid of at most g times its
size, g = 2u 2^-extra_bits, then the sum is cut to the accumulator's format. The largest term lies on the grid, so each
other term costs at most g times the largest, and the block at most (number of its products) g + 2u times the sum of
sizes. Over all blocks that makes prod (1 + g)^n (1 + 2u)^blocks - 1 times sum |x_t y_t|.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.contract.stages import EXACT, Rounding, contains
from attn_spec.contract.terms import count, guard, remembered, standing, stands, term, times
from attn_spec.numbers.formats import FORMATS, Format

#: The widest format that matrix units with sums of their own multiply, in bits: float16's and tf32's.
WIDEST = 11

Factors = tuple[tuple[float, float | np.ndarray], ...]


def on_matrix_unit(contract: ResolvedContract) -> bool:
    """Return whether products are summed by a matrix unit that aligns and truncates; wider formats add one by one, and
    so do products that are rounded.
    """
    narrow = contract.stages.multiplicands.format.precision <= WIDEST and contract.products is None
    return narrow and contract.matrix_rounding == "toward_zero"


@remembered(256)
def rounding_on_entry(contract: ResolvedContract, source: Format) -> Rounding:
    """Return the rounding of a factor of format ``source`` on entry to a product, all its pieces together.

    Each piece rounds what the pieces before it left: with P pieces u^P |x| is left at last, and each underflow.
    """
    one, pieces = contract.stages.multiplicands.of(source), contract.multiplicand_pieces
    if pieces == 1:
        return one
    left = term("what the last piece leaves", one.u**pieces)
    return Rounding(left, count("underflow of a second piece", 4) * one.eta)


@remembered(256)
def skipped_pieces(contract: ResolvedContract, *sources: Format) -> float:
    """Products of pieces that are not formed, relative to the product: sum of u^(i + j) (1 + u)^2 over i + j >= P."""
    P = contract.multiplicand_pieces
    u, w = (contract.stages.multiplicands.of(source).u for source in sources)
    return (
        term(
            "products of pieces, all left out",
            sum(
                u**i * w**j
                for i in range(P)
                for j in range(P)
                if i + j >= P + (not stands("products of pieces that are left out"))
            ),
        )
        * times("a product of pieces is one of rounded pieces", 1 + u)
        * times("a product of pieces is one of rounded pieces", 1 + w)
    )


def multiplicand(contract: ResolvedContract, dtype: str) -> Rounding:
    """Return the rounding of q, k and v on entry to a product, unscaled."""
    return rounding_on_entry(contract, FORMATS[dtype])


def probability_cast(contract: ResolvedContract) -> Rounding:
    """Return the rounding of the probabilities from the softmax's format to their own, and on to the product's.

    A scale c multiplies a probability p first, and rounds unless it is a power of 2. What c p loses to underflow is
    divided by c with all else: fl(c p) / c = p (1 + e) + f / c. The underflow of c p itself, of p at most, is one of
    those that a weight has.
    """
    own, enters = probability_store(contract), rounding_on_entry(contract, contract.stages.probabilities.format)
    cast = (
        term("the cast of the probabilities", own.u)
        + term("entry of the probabilities to the product", enters.u)
        + term("the cast of the probabilities", term("both roundings of a probability, multiplied", own.u * enters.u))
    )
    scaled = contract.stages.softmax.u if contract.rounds_scale else 0.0
    lost = term("underflow of a probability's cast", own.eta * (1 + enters.u)) + term(
        "underflow of a probability's entry", enters.eta
    )
    return Rounding(
        cast + term("the product of a probability and its scale", scaled * (1 + cast)),
        lost / contract.probability_scale,
    )


def unscaling(contract: ResolvedContract) -> tuple[float, float]:
    """Return the factor for ``growth`` of dividing an output by the scale of probabilities, by a reciprocal perhaps.

    The output is in the format of its accumulator or of the softmax then. A power of 2 changes exponents only.
    """
    widest = max(contract.stages.softmax.u, contract.stages.output_accumulation.u)
    return widest, count("the division by the scale of probabilities", 2 if contract.rounds_scale else 0)


def probability_store(contract: ResolvedContract) -> Rounding:
    """Return the rounding of the probabilities from the softmax's format to their own."""
    return (
        EXACT
        if contains(contract.stages.probabilities.format, contract.stages.softmax.format)
        else contract.stages.probabilities
    )


def casts_row_sum(contract: ResolvedContract) -> bool:
    """Return whether the row sum adds probabilities after their cast."""
    return guard(
        "the cast in the row sum",
        contract.row_sum_of == "cast"
        and contract.normalize == "after_product"
        and guard(
            "a row sum of what a cast only flushes",
            probability_cast(contract) != EXACT,
            probability_cast(contract).u > 0,
        ),
        False,
    )


def row_sum_entry(contract: ResolvedContract) -> Rounding:
    """Return the rounding of one weight to the row sum's format: exact, but for flushing, unless that is narrower."""
    stages = [contract.stages.softmax]
    if casts_row_sum(contract):  # several pieces have more bits together than one multiplicand
        stages.append(contract.stages.probabilities)
        if guard("pieces that enter a row sum together", contract.multiplicand_pieces == 1, True):
            stages.append(contract.stages.multiplicands)
    narrowest = min((stage.format for stage in stages), key=lambda form: form.precision)
    return term("the entry of a weight to the row sum", contract.stages.row_sum.of(narrowest), EXACT)


def number_of_products(contract: Contract, n: np.ndarray | float) -> np.ndarray | float:
    """Products of pieces that a product of n terms is the sum of."""
    return n * times(
        "a product of pieces is several", contract.multiplicand_pieces * (contract.multiplicand_pieces + 1) // 2
    )


def roundings_of_sum(
    contract: ResolvedContract, stage: str, n: np.ndarray | float, blocks: np.ndarray | float | None = None
) -> Factors:
    """Factors for ``growth`` of a sum of n products in the accumulators of ``stage``, see the module.

    ``blocks`` bounds the blocks of a matrix unit; None is one for each product. An inner accumulator is added to the
    outer one, by an operation of its own, at most once for each product.
    """
    pieces, n = _size_of_pieces(contract), number_of_products(contract, n)
    depth = (
        n - 1.0 + count("the rounding of a product before its sum", 1)
        if contract.summation_depth is None
        else np.minimum(n, contract.summation_depth - 1 + count("a declared depth of summation", 1))
    )
    if contract.inner_accumulation is None:
        factors = _roundings_of_sum(contract, contract.format(stage), n, depth, blocks)
    else:
        inner = np.minimum(depth, contract.inner_terms)
        factors = _roundings_of_sum(
            contract, FORMATS[contract.inner_accumulation], np.minimum(n, contract.inner_terms), inner, blocks
        )
        factors = (
            *term("the inner accumulator's sums", factors, ()),
            (contract.stage(stage).u, term("additions to the outer accumulator", depth)),
        )
    return (*_roundings_before_sum(contract), *((u, times("sizes of pieces", pieces) * m) for u, m in factors))


def _roundings_before_sum(contract: ResolvedContract) -> Factors:
    """Factors of rounding each product to a format of its own: fl(x y) = x y (1 + e) + f."""
    rounded = contract.stages.products
    return () if rounded is None else term("products rounded before sums", ((rounded.u, 1.0),), ())


def _size_of_pieces(contract: ResolvedContract) -> float:
    """Bound the sum of the sizes of the products of pieces, relative to the product of their factors.

    It is at least 1, so 1 + g to this power is at least 1 + this times g.
    Pieces that round to nearest may have other signs: sum |x_i| <= (1 + u)(1 + u + u^2 + ..) |x|, for each factor.
    """
    if contract.multiplicand_pieces == 1:
        return 1.0
    u = contract.stages.multiplicands.u
    return ((1 + u) / (1 - u)) ** 2


def _roundings_of_sum(
    contract: ResolvedContract,
    form: Format,
    n: np.ndarray | float,
    depth: np.ndarray | float,
    blocks: np.ndarray | float | None,
) -> Factors:
    if not on_matrix_unit(contract):
        cuts = times("sums that are cut one by one", 2 if contract.rounding == "toward_zero" else 1)
        return ((form.unit_roundoff * cuts, depth),)
    cut = count("the cut of a sum on a matrix unit", 2) * form.unit_roundoff
    if contract.matrix_block == 1:
        return ((cut, term("the cuts of single sums", depth)),)
    aligned = cut * times("bits below the grid of a block", 2.0**-contract.matrix_extra_bits)
    passed = n if blocks is None else np.minimum(n, number_of_products(contract, blocks))
    if contract.summation_depth is not None:  # each of the blocks on the way may hold any number of the products
        passed = np.minimum(passed, depth)
    # The largest is off the grid if that has fewer bits than the accumulator or than a product.
    widest = max(form.precision, 2 * contract.stages.multiplicands.format.precision)
    if widest > form.precision + contract.matrix_extra_bits:
        n = n + term("the largest off the grid", passed)
    return ((aligned, term("alignment to the largest", n)), (cut, term("the cut of a block's sum", passed)))


def output_sums(contract: ResolvedContract, keys: np.ndarray, length: int) -> Factors:
    """Factors of the sum of p.v over visible keys of ``length``; tiles of a matrix unit end in blocks of their own."""
    return roundings_of_sum(
        contract,
        "output_accumulation",
        keys,
        blocks=math.ceil(length / contract.matrix_block) + term("blocks at the ends of tiles", contract.tiles(length)),
    )


def sum_underflow(contract: ResolvedContract, stage: str) -> float:
    """Absolute error of one product, or of one addition, in the accumulators of ``stage``."""
    outer, inner = contract.stage(stage).eta, contract.stages.inner_accumulation
    summed = outer if inner is None else max(outer, term("the underflow of an inner accumulator", inner.eta))
    rounded = contract.stages.products
    return summed if rounded is None else summed + term("underflow of products rounded before sums", rounded.eta)


def exact_bits(contract: ResolvedContract, stage: str) -> int:
    """Bits that a partial sum may have, in units of a common grid, and still be exact whatever the order."""
    lost = min(0, contract.matrix_extra_bits) if on_matrix_unit(contract) else 0
    before = standing(
        ("an inner accumulator's bits", "inner_accumulation"), ("the bits of products rounded before sums", "products")
    )
    return min(form.precision for form in contract.formats(stage, *before)) + term(
        "bits that a matrix unit loses", lost
    )
