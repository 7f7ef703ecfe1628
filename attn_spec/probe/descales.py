"""Experiments on what descales multiply; their exact answers are 1/2 and 0, whatever the descale is.

A rounding between a stored number and the product that it enters moves these answers. Queries are so large that one
rounding of a key to the dtype of q moves a score by about 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS, Format
from attn_spec.problem.dtypes import dtype_of, input_dtypes
from attn_spec.problem.problem import Problem

from .instrument import WIDTH, Finding

#: Descales that are tried, from 1/2 to 1: multiples of the golden ratio, whose last bits have no pattern.
NUMBERS = tuple(0.5 + number * (5**0.5 - 1) / 2 % 1 / 2 for number in range(1, 17))
#: Distance from the exact answer above which a rounding was seen, and below which none was, in the first experiment.
SEEN, UNSEEN = 2.0**-6, 2.0**-8
#: Numbers of one stored value, products with which are rounded differently before and after another rounding.
VALUES = (1.0, 1.125, 1.25, 1.375, 1.5, 1.75)


def key_descale(subject: Subject) -> Finding | None:
    """Return what ``k_descale`` multiplies: the scores, or operands; None if the kernel does not take it.

    Two keys have one number each, 1.25 and 1.5, and meet a query of 1.5 Q and 1.25 Q there. Their scores are equal. A
    descale that multiplies scores keeps them equal. A key that is multiplied first, and rounded, has another score.
    """
    if not subject.supports("k_descale"):
        return None
    Q = 2 / _dtype(subject).unit_roundoff
    numbers = _numbers(subject, "k_descale", NUMBERS)
    plain, found = (np.abs(np.array([_share(subject, Q, d) for d in tried]) - 0.5) for tried in ([1.0], numbers))
    moved = int((found > SEEN).sum())
    evidence = f"two equal scores came apart for {moved} of {len(found)} descales"
    if not (plain <= UNSEEN).all():
        return Finding("descale of keys", None, f"two equal scores come apart without a descale: {plain.max():.3g}")
    if moved >= len(found) // 4:
        return Finding("descale of keys", "operands", evidence)
    return Finding("descale of keys", "scores" if (found <= UNSEEN).all() else None, evidence)


def _share(subject: Subject, Q: float, d: float) -> float:
    """Return the share of the first of two keys of equal scores, whose descale is ``d``."""
    q, k, v = np.zeros((1, 1, 2, WIDTH)), np.zeros((1, 1, 2, WIDTH)), np.zeros((1, 1, 2, WIDTH))
    q[0, 0, 0, :2], k[0, 0, 0, 0], k[0, 0, 1, 1] = (1.5 * Q, 1.25 * Q), 1.25, 1.5
    v[0, 0, 0] = 1.0
    return _answer(subject, q, k, v, k_descale=d)


def value_descale(subject: Subject) -> Finding | None:
    """Return what ``v_descale`` multiplies: output, probabilities or operands; None if the kernel does not take it.

    Five values of 1.5 and six of -1.25 have equal weights, and the mean 0. Values that are multiplied and rounded have
    another. One key has the weight 1: rounded times its descale, it makes another output than the descale itself.
    """
    if not subject.supports("v_descale"):
        return None
    form = _dtype(subject)
    if form.precision >= FORMATS["float32"].precision:
        return Finding("descale of values", None, f"{form.name} has as many bits as the sums of products")
    means = np.abs(np.array([_mean(subject, d) for d in _numbers(subject, "v_descale", NUMBERS)]))
    moved = int((means > form.unit_roundoff / 16).sum())
    evidence = f"values whose mean is 0 have another for {moved} of {len(means)} descales"
    if moved >= len(means) // 4:
        return Finding("descale of values", "operands", evidence)
    if moved:
        return Finding("descale of values", None, evidence)
    if not (pairs := _telling(subject)):
        return Finding("descale of values", None, f"a descale is a number of {form.name}, to which weights are rounded")
    found = [_one(subject, d, value) for d, value in pairs]
    late, early = (
        sum(x == way(subject, d, value) for x, (d, value) in zip(found, pairs, strict=True)) for way in (_late, _early)
    )
    evidence = f"of {len(pairs)} outputs {late} are as if the output was multiplied, {early} as if a rounded weight was"
    decided = {late: "output", early: "probabilities"} if late != early else {}
    return Finding("descale of values", decided.get(len(pairs)), evidence)


def _mean(subject: Subject, d: float) -> float:
    """Return the mean of five values 1.5 and six -1.25 with the descale ``d``."""
    q, k = np.zeros((1, 1, 11, WIDTH)), np.zeros((1, 1, 11, WIDTH))
    v = np.full((1, 1, 11, WIDTH), -1.25)
    v[0, 0, :5] = 1.5
    return _answer(subject, q, k, v, v_descale=d)


def _one(subject: Subject, d: float, value: float) -> float:
    """Return the output of one key with a value and its descale."""
    zeros = np.zeros((1, 1, 1, WIDTH))
    return _answer(subject, zeros, zeros, np.full((1, 1, 1, WIDTH), value), v_descale=d)


def _telling(subject: Subject) -> list[tuple[float, float]]:
    """Return descales with values whose products tell a rounded weight from one that is not."""
    numbers = tuple(0.5 + number * (5**0.5 - 1) / 2 % 1 / 2 for number in range(1, 257))
    pairs = ((d, value) for d in _numbers(subject, "v_descale", numbers) for value in VALUES)
    return [pair for pair in pairs if _late(subject, *pair) != _early(subject, *pair)][:16]


def _late(subject: Subject, d: float, value: float) -> float:
    """Return the output of one key if the descale multiplies it."""
    return float(bits.nearest(np.array(d * value), subject.contract.output))


def _early(subject: Subject, d: float, value: float) -> float:
    """Return the output of one key if its weight is multiplied by the descale and rounded to the dtype of q."""
    return float(bits.nearest(bits.nearest(np.array(d), _dtype(subject).name) * value, subject.contract.output))


def _dtype(subject: Subject) -> Format:
    return FORMATS[input_dtypes(subject.dtype)[0]]


def _numbers(subject: Subject, option: str, numbers: tuple[float, ...]) -> list[float]:
    """Return descales as numbers of the dtype, at most float32, in which the kernel takes them."""
    single = bits.nearest(np.array(numbers), "float32")
    return bits.nearest(single, dtype_of(subject.dtypes, option)).tolist()


def _answer(subject: Subject, q: np.ndarray, k: np.ndarray, v: np.ndarray, **descales: float) -> float:
    """Return the first number of the output for scores q.k, with descales of one number."""
    given: dict[str, Any] = {name: np.full((1, 1, 1, 1), d) for name, d in descales.items()}
    problem = Problem(q=q * WIDTH**0.5, k=k, v=v, dtypes=subject.dtypes, **given)
    return float(subject(problem)["output"][0, 0, 0, 0])
