"""Writes to caches of 8 bits: a call that appends divides a new number by its descale, and rounds it to the cache.

The inputs k and v of a problem are the numbers c that the cache stores. Their truth reads these, times the descales. So
a call must be given a new number x of which a sound kernel makes c, whatever way it divides. It makes c of all x that
are far enough from a *tie*, the middle of two neighbours in the cache.

**Theorem.** Let the format of the cache round all numbers between the ties l < h to c. Let a kernel compute x / d with
a relative error of at most e, and an error of at most t beside it. If l + t < (1 - e) x/d and (1 + e) x/d < h - t, what
it computes is between l and h, and is stored as c. A division, or a product with the rounded reciprocal of d, takes two
roundings at most: e = 2u / (1 - 2u) of Higham, section 3.1, and t is half the smallest number of the format in which
they are done. That is float32, or the dtype of the queries if this is narrower: ``k.div_(scale).to(cache.dtype)`` does
so in PyTorch. Without a descale nothing is divided: e = t = 0, and a tie goes to its even neighbour. Of integers of 8
bits, bfloat16 has not all halves, so that a division is one in float32. No tie is asked of them, nor a number below
-127.5: sound systems round halves to even or away from 0, and some have -128.

Sources: OCP OFP8 1.0, section 5 (conversions, in both modes of overflow); vLLM ``reshape_and_cache_flash``, SGLang
``set_kv_buffer`` (numbers over their descales).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.limits import NotTaken
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS, Format
from attn_spec.problem.dtypes import Dtypes, dtype_of

#: Factors of the largest number of a cache that new numbers beyond it have.
_BEYOND = (1.5, 2.0, 7.0, 60.0)
#: Places of new numbers between two ties, as shares of the distance: anywhere, near the one, near the other.
_NEAR = 0.02


def rounds(dtypes: Dtypes, name: str) -> bool:
    """Return whether a call rounds new numbers of k or v to a cache of 8 bits: those of q have more."""
    return dtype_of(dtypes, name) in EIGHT_BITS and dtype_of(dtypes, "q") not in EIGHT_BITS


def dtype_of_new(dtypes: Dtypes, name: str) -> str:
    """Return the dtype of new numbers of k or v: that of q if the call rounds them, else that of the cache."""
    return dtype_of(dtypes, "q" if rounds(dtypes, name) else name)


def of_new(name: str, arguments: Mapping[str, Any]) -> np.ndarray | None:
    """Return the descales [B, 1, Hkv, 1] of the new keys or values of a call, from those it is given; None if none."""
    x = arguments.get(f"{name}_descale")
    return None if x is None else values_of(x)[:, None, :, None]


@np.errstate(over="ignore")
def stored(x: np.ndarray, d: np.ndarray | None, cache: str) -> np.ndarray:
    """Return what a cache stores of new numbers x over their descale d: the nearest number, at most the largest."""
    largest = FORMATS[cache].largest
    quotient = x if d is None else x / d
    return bits.nearest(np.where(np.isfinite(quotient), np.clip(quotient, -largest, largest), quotient), cache)


@np.errstate(invalid="ignore", over="ignore")
def new_numbers(
    codes: np.ndarray, d: np.ndarray | None, dtypes: tuple[str, str], rng: np.random.Generator, *, saturates: bool
) -> np.ndarray:
    """Return numbers of which a sound kernel stores these codes: any between their ties, drawn for each.

    ``dtypes`` are those of the new numbers and of the cache. If the kernel ``saturates``, half of the numbers that are
    stored as the largest are beyond it. Raises :class:`NotTaken` where the dtype of new numbers has none.
    """
    own, cache = (FORMATS[name] for name in dtypes)
    size, unit = np.abs(codes), 1.0 if d is None else np.broadcast_to(d, codes.shape)
    low, high = _inside(size, cache, None if d is None else own)
    share = rng.random(codes.shape)
    kind = rng.integers(4, size=codes.shape)
    share = np.where(kind == 1, _NEAR * share, np.where(kind == 2, 1 - _NEAR * share, share))
    wanted = np.where(kind == 3, size, low + share * (high - low))
    if d is None:  # the tie below and the tie above, which go to the number with an even significand
        wanted = np.where(kind == 1, low, np.where(kind == 2, high, wanted))
    if saturates:
        is_largest, far = size == cache.largest, rng.choice(_BEYOND, codes.shape) * cache.largest
        far = np.minimum(far, (1 - 4 * own.unit_roundoff) * own.largest)  # a quotient may be kept in the dtype of q
        is_largest &= ~(cache.is_integer & (codes < 0))
        is_beyond = is_largest & (rng.random(codes.shape) < 0.5)
        wanted = np.where(is_beyond, np.minimum(far, own.largest / unit), wanted)
        high = np.where(is_largest, np.inf, high)

    def given(quotients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = bits.nearest(np.copysign(quotients * unit, codes), own.name)
        between = (np.abs(x) / unit >= low) & (np.abs(x) / unit <= high) & np.isfinite(x)
        return x, between & bits.identical(stored(x, d, cache.name), codes)

    (drawn, is_able), (middle, has_middle) = given(wanted), given(size)
    if not (known := np.isnan(codes) | is_able | has_middle).all():
        raise NotTaken(
            f"{own.name} has no new number that a cache of {cache.name} stores as {codes[~known][0]:g} by its descale"
        )
    return np.where(is_able, drawn, middle)


def _inside(size: np.ndarray, cache: Format, divides: Format | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest quotient that is stored as a number of this size, whatever way it is computed.

    ``divides`` is the format of new numbers if these are divided. The tie above the largest number is left out, since
    what lies beyond that has no neighbour.
    """
    below = np.where(size > 0, bits.spacing(np.nextafter(size, 0.0), cache.name), 0.0)
    low, high = size - below / 2, size + bits.spacing(size, cache.name) / 2
    high = np.where((size == cache.largest) | cache.is_integer, np.nextafter(high, 0.0), high)
    if divides is None:
        return np.where(cache.is_integer & (low > 0), np.nextafter(low, np.inf), low), high
    single = FORMATS["float32"]
    narrow = single if cache.is_integer else divides
    u = max(narrow.unit_roundoff, single.unit_roundoff)
    tiny = max(narrow.smallest_subnormal, single.smallest_subnormal) / 2
    error = 2 * u / (1 - 2 * u)
    return np.where(low > 0, (low + tiny) / (1 - error), 0.0), (high - tiny) / (1 + error)
