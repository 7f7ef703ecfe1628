"""Codes and scales of numbers that lie in intervals: the steps of a quantiser, at both ends, in their worst roundings.

``bounds.replay`` has the theorem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.contract.quantisers import Quantiser
from attn_spec.contract.terms import term
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EVERY, FORMATS

#: Relative error of a few operations in float64, with which intervals are evaluated here.
FLOAT64 = 2.0**-50


@dataclass(frozen=True)
class Codes:
    """Codes of a tensor [B, H, S, D], what is open of them, scales [B, H, S, 1] and their relative errors.

    ``inside`` says which tokens have a scale, [B, H, S, 1]; others have 1. ``of_blocks`` are the scales of all blocks
    of which something is known.
    """

    codes: np.ndarray
    radius: np.ndarray
    scales: np.ndarray
    scale_error: np.ndarray
    inside: np.ndarray
    of_blocks: np.ndarray


@np.errstate(all="ignore")
def quantised(quantiser: Quantiser, low: np.ndarray, high: np.ndarray, there: np.ndarray, first: np.ndarray) -> Codes:
    """Return the codes of numbers that lie between ``low`` and ``high``, [B, H, S, D].

    ``there`` says which tokens count, [B, 1, S, 1], and ``first`` where blocks start, [B]. A block of numbers that are
    not finite, or whose scale is no normal number, has codes of which nothing is known.
    """
    low, high = loaded(quantiser, low, high)
    most_low, most_high = (largest_of_blocks(quantiser, y, there, first) for y in sizes_between(low, high))
    s_low, s_high = (scale_of(quantiser, a, sign) for a, sign in ((most_low, -1), (most_high, 1)))
    s = scale_of(quantiser, most_high, 0)
    t_low, t_high = widened(quantiser, low, high, s_low, s_high)
    codes_low, codes_high = rounded(quantiser, t_low, -1), rounded(quantiser, t_high, 1)
    middle = rounded(quantiser, bits.nearest(between(quantiser, low, high) / s, quantiser.arithmetic), 0)
    middle = np.clip(middle, codes_low, codes_high)
    radius = np.maximum(codes_high - middle, middle - codes_low)
    empty = (most_high == 0) & (quantiser.scale is None)
    # Where the least magnitude may be 0, a scale is anything up to the largest, and codes with it.
    unclear = ~empty & (s_low < s_high / 2)
    smallest = 2 * EVERY[quantiser.scale_dtype].smallest_normal
    unknown = ~(np.isfinite(s_high) & np.isfinite(most_high)) | (~empty & (s_high < smallest))
    middle, radius = np.where(unclear, 0.0, middle), np.where(unclear, quantiser.largest_code + 1, radius)
    error = np.where(unclear, 0.0, relative_error(s_low, s, s_high))
    found = {"middle": middle, "radius": radius, "scales": s, "error": error, "of_blocks": s}
    return known_within(there & ~empty, unknown & there, **found)


def known_within(
    inside: np.ndarray,
    unknown: np.ndarray,
    *,
    middle: np.ndarray,
    radius: np.ndarray,
    scales: np.ndarray,
    error: np.ndarray,
    of_blocks: np.ndarray,
) -> Codes:
    """Return codes of what lies ``inside`` blocks with a scale, 0 elsewhere, with no bound where it is ``unknown``."""
    radius = np.where(unknown, np.inf, np.where(inside, radius, 0.0))
    known = inside & ~unknown
    by_token = np.asarray(known.any(axis=-1, keepdims=True))
    return Codes(
        np.nan_to_num(np.where(known, middle, 0.0)),
        np.where(np.isnan(radius), np.inf, radius),
        np.where(by_token, scales, 1.0),
        np.where(by_token, error, 0.0),
        by_token,
        np.broadcast_to(of_blocks, known.shape)[known],
    )


def loaded(quantiser: Quantiser, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends in the quantiser's arithmetic; one array if they are one."""
    ends = bits.nearest(low, quantiser.arithmetic)
    return (ends, ends) if low is high else (ends, bits.nearest(high, quantiser.arithmetic))


def is_exact(quantiser: Quantiser, low: np.ndarray, high: np.ndarray) -> bool:
    """Return whether numbers from ``low`` to ``high`` are known exactly, and so are their quotients."""
    return low is high and not quantiser.division_error


def between(quantiser: Quantiser, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the numbers themselves where they are exact, else the middle of their interval."""
    return low if is_exact(quantiser, low, high) else (low + high) / 2


def relative_error(low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return how far numbers from ``low`` to ``high`` may be from x, relative to x; 0 where they are one number."""
    return np.where(high > low, np.maximum(high - x, x - low) / x, 0.0)


def divided(quantiser: Quantiser, quotient: np.ndarray, sign: int) -> np.ndarray:
    """Return a positive quotient in the quantiser's arithmetic: the least (sign -1), the most (1), or its own (0)."""
    u = FORMATS[quantiser.arithmetic].unit_roundoff
    return bits.nearest(quotient * (1 + sign * quantiser.division_error * u), quantiser.arithmetic)


def widened(
    quantiser: Quantiser, low: np.ndarray, high: np.ndarray, s_low: np.ndarray, s_high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest quotient of numbers and scales that lie between these."""
    u, evaluated = FORMATS[quantiser.arithmetic].unit_roundoff, 0.0 if is_exact(quantiser, low, high) else FLOAT64
    off = term("the quotient of a number and its scale", quantiser.division_error * u + evaluated)
    below, above = low / np.where(low < 0, s_low, s_high), high / np.where(high < 0, s_high, s_low)
    ends = ((below, -1), (above, 1))
    t_low, t_high = (bits.nearest(t + sign * off * np.abs(t), quantiser.arithmetic) for t, sign in ends)
    return t_low, t_high


def sizes_between(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest magnitude of numbers between ``low`` and ``high``."""
    if low is high:
        return np.abs(low), np.abs(low)
    return np.maximum(np.maximum(low, -high), 0.0), np.maximum(np.abs(low), np.abs(high))


def largest_of_blocks(quantiser: Quantiser, size: np.ndarray, there: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of the block of each token, [B, H, S, 1]; 0 of tokens that do not count.

    With blocks of columns it is that of the block of each number, [B, H, S, D].
    """
    S, of_token = size.shape[2], largest_of_columns(quantiser.columns, np.where(there, size, 0.0))
    if quantiser.block in ("head", "tensor"):
        axes = (2,) if quantiser.block == "head" else (0, 1, 2)
        return np.broadcast_to(of_token.max(axis=axes, keepdims=True, initial=0.0), of_token.shape)
    if quantiser.block == 1:
        return of_token
    found = np.zeros(of_token.shape)
    for start in np.unique(first):
        own = np.flatnonzero(first == start)
        numbers, of_entries = blocks_of_tokens(quantiser, np.arange(S) - start), of_token[own]
        for number in np.unique(numbers):
            places = numbers == number
            of_entries[:, :, places] = of_entries[:, :, places].max(axis=2, keepdims=True)
        found[own] = of_entries
    return found


def largest_of_columns(columns: int | None, size: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each vector, [.., 1], or of each number's block of columns, [.., D]."""
    D = size.shape[-1]
    if columns is None or not D:
        return size.max(axis=-1, keepdims=True, initial=0.0)
    largest = np.maximum.reduceat(size, np.arange(0, D, columns), axis=-1)
    return np.repeat(largest, columns, axis=-1)[..., :D]


def blocks_of_tokens(quantiser: Quantiser, tokens: np.ndarray) -> np.ndarray:
    """Return a number for each token, counted from the first block: those with one number share a scale."""
    assert isinstance(quantiser.block, int)
    block, inside = np.divmod(tokens, quantiser.block)
    return block * quantiser.lanes + inside // quantiser.lane_width % quantiser.lanes


def scale_of(quantiser: Quantiser, most: np.ndarray, sign: int) -> np.ndarray:
    """Return the scale of blocks, the least (sign -1), the most (1), or where the largest magnitude has it (0)."""
    if quantiser.scale is not None:
        return np.full(most.shape, scale_as_stored(quantiser, np.array(quantiser.scale)))
    arithmetic, s = quantiser.arithmetic, divided(quantiser, most / quantiser.most, sign)
    if quantiser.epsilon:
        s = bits.nearest(s + bits.nearest(np.array(quantiser.epsilon), arithmetic), arithmetic)
    s = np.maximum(s, bits.nearest(np.array(quantiser.least_scale), arithmetic))
    return scale_as_stored(quantiser, s)


def scale_as_stored(quantiser: Quantiser, s: np.ndarray) -> np.ndarray:
    """Return positive scales in their format, rounded as the quantiser says; 0 stays."""
    form = EVERY[quantiser.scale_dtype]
    if quantiser.scale_rounding == "nearest_even":
        stored = bits.nearest(s, form.name)
    else:
        grid = bits.spacing(s, form.name)
        stored = {"up": np.ceil, "down": np.floor}[quantiser.scale_rounding](s / grid) * grid
        stored = bits.nearest(stored, form.name)
    return np.where(s == 0, 0.0, stored)


def rounded(quantiser: Quantiser, t: np.ndarray, sign: int) -> np.ndarray:
    """Return the codes of quotients; the least (sign -1) or the most (1) of a rounding that leaves some open."""
    top = quantiser.largest_code
    if quantiser.rounding == "add_half":
        return np.clip(np.trunc(bits.nearest(t + np.copysign(0.5, t), quantiser.arithmetic)), -top, top)
    t = np.clip(t, -top, top)
    grid = bits.spacing(t, quantiser.format)
    if quantiser.rounding == "toward_zero":
        return np.trunc(t / grid) * grid
    if quantiser.rounding == "either" and sign:
        return (np.floor(t / grid) if sign < 0 else np.ceil(t / grid)) * grid
    if quantiser.rounding == "nearest" and sign:
        return (np.ceil(t / grid - 0.5) if sign < 0 else np.floor(t / grid + 0.5)) * grid
    return bits.nearest(t, quantiser.format)
