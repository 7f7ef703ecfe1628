"""Bounds on the cast of probabilities to their format: the largest number that is cast, and what saturation costs.

A probability p is multiplied by a scale c and cast to a format whose largest number is X. A number x = c p up to half a
step of the grid above X rounds to X, as any other number rounds. A larger x leaves the format; or it saturates at X,
which is smaller by the factor X / x = 1 - (1 - X / x).
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.forward.score_bounds import score_error
from attn_spec.bounds.forward.weight_bounds import exponential_error, reference_rounding
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, term, times


def reference_off(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound how far roundings move the largest exponent of a row from the reference's own distance, [.., Sq]."""
    off = reference_rounding(forward, contract)[..., 0]
    # A maximum is one of the scores as they are computed.
    if guard("weights of scores that are off, of no maximum", contract.reference != "maximum", False):
        off = off + score_error(forward, contract).max(axis=-1, initial=0.0)
    return off


def raised_before_cast(forward: Intermediates, contract: ResolvedContract) -> float:
    """Return the largest factor that may multiply a weight before its cast, at least 1.

    Dropout's factor may, and a descale of values, unless it multiplies these, or the output by one number of a head.
    """
    problem, d = forward.problem, forward.problem.v_descale
    on_output = contract.value_descale_on == "output" and (d is None or d.shape[2] == 1)
    descaled = d is not None and not on_output and contract.value_descale_on != "operands"
    kept = 1.0 if problem.dropout_keep is None else 1 / (1 - (problem.dropout_p or 0.0))
    return times("a weight that dropout raises", forward.largest_factor if descaled else kept)


def largest_cast_weight(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest number that the cast of a weight rounds, [.., Sq], where the row sum divides after it.

    The error of the exponential precedes the cast, and two roundings: of what dropout raises, and of what the scale
    multiplies.
    """
    raised = raised_before_cast(forward, contract)
    off = reference_off(forward, contract) + exponential_error(contract)
    top = np.exp(contract.reference_distance + off)
    return contract.probability_scale * top * raised * (1 + gamma((contract.stages.softmax.u, 2)))


def saturation(contract: ResolvedContract, largest: np.ndarray | float) -> np.ndarray | float:
    """Return the most that saturation takes from a number of at most ``largest``, relative to it; 0 without it."""
    if contract.overflow != "saturates":
        return 0.0
    most = contract.stages.probabilities.format.largest
    return term("saturation of probabilities", np.maximum(1 - most / np.maximum(largest, most), 0.0))


def largest_that_is_cast(contract: ResolvedContract) -> float:
    """Return the end of the numbers that the cast of probabilities takes to a finite one: all, if it saturates."""
    return np.inf if contract.overflow == "saturates" else contract.stages.probabilities.format.rounds_to_largest
