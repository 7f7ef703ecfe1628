"""Codes times scales of blocks of columns, in one level or two: operands of products, and what is open of them.

Theorem. Let a scale lie between two numbers a <= b, and a number x between two others. Then code times scale lies
between the products of the code's ends with a or b, by its sign. Where the scale is one of a few numbers of its format,
the product lies in the union of what each of them makes. So a scale of a power of 2 that may be either of two opens
half a step of the coarser one, and not a factor of 2.

Products with codes of several scales are summed, and no descale of the sum has all of them. So codes times scales are
the operands. The scale of the second level is a descale.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.bounds.codes import (
    Codes,
    between,
    divided,
    known_within,
    largest_of_blocks,
    loaded,
    relative_error,
    rounded,
    scale_as_stored,
    scale_of,
    sizes_between,
    widened,
)
from attn_spec.contract.quantisers import Quantiser
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EVERY, FORMATS

#: Scales that are told apart where one may be several; more of them are an interval.
_TOLD_APART = 3
#: Exponents of the least and the largest scale of which something is said. Above the least, a number that is subnormal
#: in float32 has the code 0, whether it is flushed or not.
_LEAST, _MOST = -100, 60


@np.errstate(all="ignore")
def codes_times_scales(
    quantiser: Quantiser, low: np.ndarray, high: np.ndarray, there: np.ndarray, first: np.ndarray
) -> Codes:
    """Return codes times scales of numbers that lie between ``low`` and ``high``, [B, H, S, D].

    Scales are those of the second level, 1 without one. The rest is as :func:`codes.quantised` has it.
    """
    low, high = loaded(quantiser, low, high)
    sizes = sizes_between(low, high)
    a_low, a_high = (largest_of_blocks(quantiser, y, there, first) for y in sizes)
    of_all = replace(quantiser, block=quantiser.second_level or "head", columns=None, second_level=None, lanes=1)
    g_low, g_high = (
        second_scale(quantiser, largest_of_blocks(of_all, y, there, first), sign)
        for y, sign in zip(sizes, (-1, 1), strict=True)
    )
    g = second_scale(quantiser, largest_of_blocks(of_all, sizes[1], there, first), 0)
    s_low, s_high = (block_scale(quantiser, a, by, sign) for a, by, sign in ((a_low, g_high, -1), (a_high, g_low, 1)))
    s = np.clip(block_scale(quantiser, a_high, g, 0), s_low, s_high)
    quotient = bits.nearest(between(quantiser, low, high) / product(quantiser, s, g), quantiser.arithmetic)
    middle = rounded(quantiser, quotient, 0) * s
    below, above = np.full(low.shape, np.inf), np.full(low.shape, -np.inf)
    for least, most in scales_between(quantiser, s_low, s_high):
        ends = (product(quantiser, least, g_low), product(quantiser, most, g_high))
        codes = [
            rounded(quantiser, t, sign) for t, sign in zip(widened(quantiser, low, high, *ends), (-1, 1), strict=True)
        ]
        below = np.minimum(below, codes[0] * np.where(codes[0] < 0, most, least))
        above = np.maximum(above, codes[1] * np.where(codes[1] < 0, least, most))
    top = quantiser.largest_code * s_high
    # Where the least magnitude may be 0, a scale is anything up to the largest.
    unclear = (a_low == 0) & (a_high > 0)
    below, above = np.where(unclear, -top, below), np.where(unclear, top, above)
    middle = np.clip(np.where(unclear, 0.0, middle), below, above)
    radius = np.maximum(above - middle, middle - below)
    smallest = np.where(unclear & (EVERY[quantiser.scale_dtype].precision != 4), s_high, s_low)
    unknown = ~(np.isfinite(s_high) & np.isfinite(a_high) & (smallest >= 2.0**_LEAST) & (s_high <= 2.0**_MOST))
    if quantiser.second_level:
        unknown = unknown | ~(g_low >= 2 * FORMATS["float32"].smallest_normal)
    # A scale of all blocks that is not finite makes NaN of a block of zeros, too.
    unknown = there & ((unknown & (a_high != 0)) | ~np.isfinite(g_high))
    error = relative_error(g_low, g, g_high)
    found = {"middle": middle, "radius": radius, "scales": g, "error": error, "of_blocks": s}
    return known_within(np.broadcast_to(there & (a_high > 0), low.shape), unknown, **found)


def second_scale(quantiser: Quantiser, most: np.ndarray, sign: int) -> np.ndarray:
    """Return the scale of the second level from the largest magnitude, the least, the most or its own; 1 if none."""
    if not quantiser.second_level:
        return np.ones(most.shape)
    quotient = most / (quantiser.most * EVERY[quantiser.scale_dtype].largest)
    return bits.nearest(divided(quantiser, quotient, sign), "float32")


def block_scale(quantiser: Quantiser, most: np.ndarray, g: np.ndarray, sign: int) -> np.ndarray:
    """Return the scale of blocks over that of the second level, the least, the most, or its own; it saturates then."""
    if not quantiser.second_level:
        return scale_of(quantiser, most, sign)
    s = divided(quantiser, divided(quantiser, most / quantiser.most, sign) / g, sign)
    return scale_as_stored(quantiser, np.where(s > (top := EVERY[quantiser.scale_dtype].largest), top, s))


def product(quantiser: Quantiser, s: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return what numbers are divided by: the scale of a block, times that of the second level, rounded."""
    return bits.nearest(s * g, quantiser.arithmetic) if quantiser.second_level else s


def scales_between(quantiser: Quantiser, least: np.ndarray, most: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return intervals that hold all scales from the least to the most; all but the last are one number each."""
    found, one = [], least
    while len(found) < _TOLD_APART - 1 and (one < most).any():
        found.append((one, one))
        one = np.minimum(one + bits.spacing(one, quantiser.scale_dtype), most)
    return [*found, (one, most)]


def holding(quantiser: Quantiser, own: str, scales: np.ndarray) -> str:
    """Return a format that has every product of a code and one of these scales: that of the tensor if it can be.

    A product of numbers of p and q bits has p + q bits, and p if the other is a power of 2.
    """
    code, scale = EVERY[quantiser.format], EVERY[quantiser.scale_dtype]
    digits = code.precision + (scale.precision if scale.precision > 1 else 0)
    least, most = (2.0 ** float(np.floor(np.log2(x))) for x in (scales.min(initial=1.0), scales.max(initial=1.0)))
    lowest, largest = least * 2.0 ** (1 - scale.precision) * code.smallest_subnormal, 2 * most * code.largest
    able = (
        name
        for name in (own, "bfloat16", "tf32", "float32")
        if FORMATS[name].precision >= digits
        and FORMATS[name].smallest_subnormal <= lowest
        and FORMATS[name].largest >= largest
    )
    return next(able, "float64")
