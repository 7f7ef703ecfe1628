"""A part of every bound that one product of weights and values tells: what a contract allows whatever scores are.

With A = sum P |v|, the error of an output is allowed to be at least

    B A + K max(A - |o|, 0) + u |o| + eta        B, K: growth of the roundings of a weight, a value and their sum

where (u, eta) is the last rounding. Of ``output_bounds.output_error`` these are summands, all others being 0 or more:
the roundings in the numerator cost sum P (1 + A) B |v| >= B A; those of weights that both sums share cost
sum P A |v - o| >= K sum P (|v| - |o|); a division by kappa <= 1 adds to both. Where the largest mean is taken instead,
P is among the weights that it is taken over, and B A among the means. That of the log-sum-exp has the roundings of the
row sum, of its logarithm and of the last additions.

What keeps within this part needs no look at the whole: it is refuted under no contract that has it.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.forward.output_terms import output_cast
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import casts_row_sum, output_sums, probability_cast, rounding_on_entry
from attn_spec.contract.roundoff import elementary_error, gamma
from attn_spec.numbers.formats import FORMATS

#: Covers the float64 evaluation of the part: it is rounded down by more.
DEFLATION = 1.0 - 2.0**-30


@np.errstate(all="ignore")
def least_output_error(
    contract: ResolvedContract, dtype: str, *, keys: np.ndarray, key_length: int, o: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """At most what :func:`output_bounds.output_error` allows, [.., Sq, Dv].

    ``keys`` [.., Sq, 1] counts the visible keys of each row, of ``key_length``; |true output| is at least ``o``, and
    sum P |v| at least ``size`` [.., Sq, Dv]. ``dtype`` is that of v.
    """
    shared = casts_row_sum(contract)
    cast, enters, out = (
        probability_cast(contract).u,
        rounding_on_entry(contract, FORMATS[dtype]).u,
        output_cast(contract),
    )
    divisions = {"before_product": 2, "every_tile": 3 * contract.tiles(key_length)}.get(contract.normalize, 0)
    divided = contract.stages.softmax.u, divisions
    B = gamma((0.0 if shared else cast, 1), (enters, 1), divided, *output_sums(contract, keys, key_length))
    in_both = cast if shared else 0.0
    return (B * size + in_both * np.maximum(size - o, 0.0) + out.u * o + out.eta) * DEFLATION


@np.errstate(all="ignore")
def least_lse_error(contract: ResolvedContract, *, keys: np.ndarray, lse: np.ndarray) -> np.ndarray:
    """At most what :func:`row_sum_bounds.lse_error` allows, for ``keys`` of each row and |true LSE| >= ``lse``."""
    softmax, final = contract.stages.softmax, contract.stages.lse.of(contract.stages.softmax.format)
    added = np.minimum(np.maximum(keys - 1, 0), contract.summation_depth or np.inf)
    E_L = added * math.log1p(contract.stages.row_sum.u)
    E_L = E_L + elementary_error(contract, "log_error")
    return (E_L + gamma((softmax.u, 2), (final.u, 1)) * lse + 3 * softmax.eta + final.eta) * DEFLATION
