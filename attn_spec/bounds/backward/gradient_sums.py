"""Roundings of the sums that gradients are: of their accumulators, and of partial sums that wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import Factors, roundings_of_sum, sum_underflow
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.stages import Rounding
from attn_spec.contract.terms import count, term, times


def accumulated(contract: ResolvedContract, n: np.ndarray | np.float64) -> Factors:
    """Factors of a sum of n products in the accumulator, and of its stores in between."""
    stores, partial = stored_sums(contract, n)
    return (
        *term("sums in the accumulator of gradients", roundings_of_sum(contract, "gradient_accumulation", n), ()),
        (partial.u, term("stores between partial sums of gradients", stores)),
    )


def stored_sums(contract: ResolvedContract, n: np.ndarray | np.float64) -> tuple[np.ndarray, Rounding]:
    """Return how often a partial sum of n terms is stored, and the rounding: adding 0 to a stored sum is exact."""
    return np.minimum(contract.gradient_stores - 1 + count("one store of a gradient", 1), n), stored_sum(contract)


def stored_sum(contract: ResolvedContract) -> Rounding:
    """Return the rounding of a partial sum to the format of its store; only underflow if that is the accumulator's."""
    waits = contract.stages.partial_gradients
    return Rounding(waits.of(contract.stages.gradient_accumulation.format).u, waits.eta)


def sum_eta(contract: ResolvedContract) -> float:
    """Underflow of one sum."""
    return sum_underflow(contract, "gradient_accumulation")


def summed_over_group(
    forward: Intermediates, contract: ResolvedContract, dk: Approximation, width: int = 1
) -> np.ndarray:
    """Error of dK [B, Hkv, Sk, D]: heads that share a key are summed, at any place among the roundings of each.

    Sums of ``width`` terms in each head may be one with those of the others, in any order.
    """
    return summed_over_heads(contract, dk.changed(forward.over_group), forward.problem.group, width)


def summed_over_heads(contract: ResolvedContract, dk: Approximation, heads: int, width: int = 1) -> np.ndarray:
    """Error of dK, given as sums over some heads without a rounding."""
    terms = times("heads in sums over heads", heads) * times("widths in sums over heads", width)
    return added_up(dk, contract, terms).error


def added_up(x: Approximation, contract: ResolvedContract, terms: int | np.ndarray) -> Approximation:
    """Return x, sums of ``terms`` terms, with the roundings of gradient accumulators and of the stores between them.

    Each term enters the accumulator, or is a product that is rounded to it; then it is added, and the sum is stored.
    Each of these may underflow.
    """
    G = gamma(*accumulated(contract, np.float64(terms)))
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
                    count("underflow of a product and of its addition", 2) * sum_eta(contract),
                )
                + term("underflow of stores of sums of gradients", stored_sum(contract).eta)
            ),
        )
    )
    return replace(x, error=where_sums_fit(contract, x.size, error), form=contract.stages.gradient_accumulation.format)


def where_sums_fit(contract: ResolvedContract, size: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the error of sums, infinite where one could overflow; ``size`` is the sum of the sizes of their terms."""
    largest = contract.largest("products", "gradient_accumulation", "inner_accumulation", "partial_gradients")
    return np.where(
        size + error <= largest, error, term("sums of gradients that overflow have no bound", np.inf, error)
    )


def last_cast(contract: ResolvedContract, dtype: str) -> Rounding:
    """Return the rounding of a finished gradient to ``dtype``, from the wider format of its sum and its scale."""
    widest = max(
        (contract.stages.gradient_accumulation.format, contract.stages.score_accumulation.format),
        key=lambda form: term("a gradient cast from the wider format", form.precision, -form.precision),
    )
    return contract.stage(dtype).of(widest)
