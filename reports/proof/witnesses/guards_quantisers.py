"""Terms of quantisers, and for each an answer of an arithmetic within the contract that is refuted without it.

The adversary chooses roundings of an emulated kernel, whose codes are none. So these answers are written by hand: codes
on the other side of a tie, scales and means that are off by what their roundings allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FP32
from attn_spec.contract.quantisers import Quantiser
from attn_spec.judgement import measure
from attn_spec.numbers.bits import nearest
from attn_spec.problem.problem import Problem

#: Half a unit in the last place of float32.
_U = 2.0**-24
#: A scale of scores so small that exponentials are all of the same size.
_SMALL = 2.0**-14
#: Roundings of a scale, and of a quotient, of a coarse division.
_COARSE = 1000.0
_QUERIES, _KEYS = Quantiser.of_both(division_error=2.0)
_VALUES = Quantiser(of="v", division_error=2.0)


def _held(
    quantisers: tuple[Quantiser, ...], q: Any, k: Any, v: Any = None, *, scale: float = _SMALL, **answer: Any
) -> bool:
    """Return whether an answer of one query [D] to keys [n, D] and values [n] is held.

    ``answer`` has its numbers, and the format ``stored`` of its log-sum-exp.
    """
    queries, keys = np.array(q, dtype=np.float64)[None, None, None], np.array(k, dtype=np.float64)[None, None]
    values = np.zeros((1, 1, keys.shape[2], 1)) if v is None else np.array(v, dtype=np.float64)[None, None, :, None]
    contract = replace(FP32, quantisers=quantisers, lse=answer.pop("stored", "float32")).at("float32")
    problem = Problem(q=queries, k=keys, v=values, scale=scale)
    shapes = {"output": (1, 1, 1, 1), "lse": (1, 1, 1)}
    found: dict[str, Any] = {name: np.full(shapes[name], value) for name, value in answer.items()}
    return not measure.judge(problem, contract, **found).refuted


def _lse(scores: Any) -> float:
    return float(np.log(np.exp(np.asarray(scores, dtype=np.float64)).sum()))


def _other_key() -> bool:
    """Judge a code of 1 for 0.5, which nothing rounds to even if a product with the reciprocal is off."""
    return _held((_QUERIES, _KEYS), [127.0], [[127.0], [0.5]], lse=_lse([127 * 127 * _SMALL, 127 * 1 * _SMALL]))


def _other_query() -> bool:
    return _held((_QUERIES, _KEYS), [127.0, 0.5], [[0.0, 127.0], [0.0, 0.0]], lse=_lse([127 * 1 * _SMALL, 0.0]))


def _other_value() -> bool:
    return _held((_VALUES,), [0.0], [[0.0], [0.0]], [127.0, 0.5], output=(127.0 + 1.0) / 2)


def _coarse_scale() -> bool:
    """Judge the score of one key whose scale is off by what the division of its largest magnitude allows."""
    coarse = replace(_KEYS, division_error=_COARSE)
    return _held((coarse,), [1.0], [[1.0]], scale=1.0, lse=1 + 0.9 * _COARSE * _U)


def _coarse_value() -> bool:
    coarse = replace(_VALUES, division_error=_COARSE)
    return _held((coarse,), [0.0], [[0.0]], [127.0], output=127 * (1 + 0.9 * _COARSE * _U))


def _coarse_quotient() -> bool:
    """Judge a code of 0 for a number above 0.5, whose scale is too large and whose quotient is too small."""
    coarse, above = replace(_KEYS, division_error=_COARSE), float(nearest(np.array(0.5 * (1 + 1500 * _U)), "float32"))
    return _held((_QUERIES, coarse), [127.0], [[127.0], [above]], lse=_lse([127 * 127 * _SMALL, 0.0]))


def _moved_mean() -> bool:
    """Judge a code of 1 for 0.5 plus what the sum of four keys may be off by."""
    smooth = replace(_KEYS, division_error=0.0, subtracts="mean_of_keys")
    keys = [[1127.0], [873.0], [1000.5], [999.5]]
    scores = 127 * _SMALL * np.array([127.0, -127.0, 1.0, 0.0])
    return _held((_QUERIES, smooth), [127.0], keys, lse=_lse(scores) + 127 * _SMALL * 1000)


def _mean_in_the_lse() -> bool:
    """Judge a mean of 64 keys that is off by what their sum may be, in the log-sum-exp; a fixed scale stays."""
    fixed = Quantiser(of="k", scale=1.0, division_error=0.0, subtracts="mean_of_keys")
    keys = [[1000.0 + (-1) ** j * 100.0] for j in range(64)]
    lse = 100 + _lse([(-1) ** j * 100.0 - 100 for j in range(64)])
    return _held((fixed,), [1.0], keys, scale=1.0, lse=lse + 1000 * (1 + 60 * _U))


def _product_with_the_mean() -> bool:
    """Judge a product of 64 numbers with the mean, each sum of which is rounded."""
    smooth = replace(_KEYS, division_error=0.0, subtracts="mean_of_keys")
    return _held((smooth,), [1.0] * 64, [[1.0] * 64], scale=1.0, lse=64.0 * (1 + 60 * _U))


def _sum_with_the_mean() -> bool:
    """Judge a log-sum-exp in half, which is stored before the product with the mean is added, and after."""
    fixed = Quantiser(of="k", scale=0.25, division_error=0.0, subtracts="mean_of_keys")
    return _held((fixed,), [1.0], [[16.0], [-15.0]], scale=1.0, stored="float16", lse=16.0 * (1 + 1.9 * 2.0**-11))


def _mean_that_overflows() -> bool:
    """Judge a log-sum-exp of infinity, which a product with the mean stored in half is above its largest number."""
    smooth = replace(_KEYS, division_error=0.0, subtracts="mean_of_keys", mean_dtype="float16")
    return _held((smooth,), [512.0], [[512.0]], scale=1.0, lse=np.inf)


def _rotated(x: float, other: float, *, scale: float = 1.0, of_queries: float = 1.0, sigma: float = _SMALL) -> bool:
    """Judge the score of one key of two numbers whose first rotated one has a code of 0, over a fixed scale.

    The query is rotated to a code of 100 and one of 0. Its product with the key is then 100 times the key's first code.
    """
    fixed = [Quantiser(of=name, scale=s, rotates="hadamard") for name, s in (("q", of_queries), ("k", scale))]
    half = float(nearest(np.array(100 * of_queries / np.sqrt(2.0)), "float32"))
    return _held(tuple(fixed), [half, half], [[x, other]], scale=sigma, lse=0.0)


def _rounded_rotation() -> bool:
    """Judge a code of 0 for the sum of two numbers near 1000, which is 1/2 plus what their products may be off by."""
    return _rotated(1000.0, -1000.0 + 11586 * 2.0**-14)


def _flushed_rotation() -> bool:
    """Judge a code of 0 for the sum of two products, each of which is below the smallest normal number."""
    x = float(nearest(np.array(0.95 * 2.0**-126 * np.sqrt(2.0)), "float32"))
    return _rotated(x, x, scale=1.8 * 2.0**-125, of_queries=2.0**60, sigma=2.0**54)


def _block_of_infinity() -> bool:
    """Judge NaN of a row that sees no key, beside a value whose scale is infinite."""
    problem = Problem(
        q=np.zeros((1, 1, 1, 1)),
        k=np.zeros((1, 1, 1, 1)),
        v=np.full((1, 1, 1, 1), np.inf),
        mask=np.zeros((1, 1, 1, 1), dtype=bool),
    )
    contract = replace(FP32, quantisers=(_VALUES,)).at("float32")
    return not measure.judge(problem, contract, output=np.full((1, 1, 1, 1), np.nan)).refuted


#: Terms with such answers, by name.
QUANTISERS: dict[str, Callable[[], bool]] = {
    "products with the mean of keys that overflow": _mean_that_overflows,
    "blocks of which nothing is known": _block_of_infinity,
    "codes of keys at a tie": _other_key,
    "codes of queries at a tie": _other_query,
    "codes of values at a tie": _other_value,
    "the scale of a block": _coarse_scale,
    "the scale of a block of values": _coarse_value,
    "the quotient of a number and its scale": _coarse_quotient,
    "roundings of a rotation": _rounded_rotation,
    "underflow of a rotation": _flushed_rotation,
    "sums of the mean of keys": _moved_mean,
    "the mean of keys in the log-sum-exp": _mean_in_the_lse,
    "roundings of a query's product with the mean": _product_with_the_mean,
    "the sum of a log-sum-exp and a product with the mean": _sum_with_the_mean,
}
