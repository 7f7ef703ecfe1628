"""Roundings of the sums that gradients are: of their accumulators, and of partial sums that wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import Factors, sum_underflow, sums
from attn_spec.contract.roundoff import growth
from attn_spec.contract.stages import Rounding
from attn_spec.contract.terms import count, term, times


def accumulated(c: ResolvedContract, n: np.ndarray | np.float64) -> Factors:
    """Factors of a sum of n products in the accumulator, and of its stores in between."""
    stores, partial = stored_sums(c, n)
    return (
        *term("sums in the accumulator of gradients", sums(c, "gradient_accumulation", n), ()),
        (partial.u, term("stores between partial sums of gradients", stores)),
    )


def stored_sums(c: ResolvedContract, n: np.ndarray | np.float64) -> tuple[np.ndarray, Rounding]:
    """Return how often a partial sum of n terms is stored, and the rounding: adding 0 to a stored sum is exact."""
    return np.minimum(c.gradient_stores - 1 + count("one store of a gradient", 1), n), stored_sum(c)


def stored_sum(c: ResolvedContract) -> Rounding:
    """Rounding of a partial sum to the format it waits in: none, but underflow, where that is the accumulator's."""
    waits = c.stages.partial_gradients
    return Rounding(waits.of(c.stages.gradient_accumulation.format).u, waits.eta)


def sum_eta(c: ResolvedContract) -> float:
    """Underflow of one sum."""
    return sum_underflow(c, "gradient_accumulation")


def summed_over_group(x: Intermediates, c: ResolvedContract, dk: Approximation, width: int = 1) -> np.ndarray:
    """Error of dK [B, Hkv, Sk, D]: heads that share a key are summed, at any place among the roundings of each.

    Sums of ``width`` terms in each head may be one with those of the others, in any order.
    """
    return added_up(
        dk.changed(x.over_group),
        c,
        times("heads in sums over heads", x.problem.group) * times("widths in sums over heads", width),
    ).error


def added_up(x: Approximation, c: ResolvedContract, terms: int) -> Approximation:
    """Sums of so many terms, as accumulators of gradients and stores between them round; ``x`` has them without.

    Each term enters the accumulator, or is a product that is rounded to it; then it is added, and the sum is stored.
    Each of these may underflow.
    """
    G = growth(*accumulated(c, np.float64(terms)))
    error = (
        x.error
        + term("sums over heads, in any order", G * (x.size + term("errors in sums of gradients", x.error)))
        + term(
            "underflow of sums of gradients",
            times("roundings make underflow of sums of gradients grow", 1 + G)
            * times("underflow of every term of sums of gradients", terms)
            * (
                term(
                    "underflow of accumulators of gradients",
                    count("underflow of a product and of its addition", 2) * sum_eta(c),
                )
                + term("underflow of stores of sums of gradients", stored_sum(c).eta)
            ),
        )
    )
    return replace(x, error=where_sums_fit(c, x.size, error), form=c.stages.gradient_accumulation.format)


def where_sums_fit(c: ResolvedContract, size: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The error of sums, infinite where one could overflow: ``size`` is the sum of the sizes of their terms."""
    largest = c.largest("gradient_accumulation", "inner_accumulation", "partial_gradients")
    return np.where(
        size + error <= largest, error, term("sums of gradients that overflow have no bound", np.inf, error)
    )


def last_cast(c: ResolvedContract, dtype: str) -> Rounding:
    """Rounding of a finished gradient to ``dtype``, from the wider of the formats it was summed and scaled in."""
    widest = max(
        (c.stages.gradient_accumulation.format, c.stages.score_accumulation.format),
        key=lambda form: term("a gradient cast from the wider format", form.precision, -form.precision),
    )
    return c.stage(dtype).of(widest)
