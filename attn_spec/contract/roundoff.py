"""Several roundings in a row, and errors of elementary functions.

``gamma`` replaces gamma_n = nu/(1 - nu) (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1) by the
exact product, so that no n u < 1 is needed.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard, term
from attn_spec.numbers.formats import FORMATS


def gamma(*factors: tuple[float, float | np.ndarray]) -> np.ndarray:
    """prod (1 + u)^n - 1 over pairs (u, n): n successive roundings of relative size u."""
    return np.expm1(sum((n * math.log1p(u) for u, n in factors if u), np.float64(0.0)))


def elementary_error(contract: ResolvedContract, name: str) -> float:
    """Error of an elementary function, ``exp_error`` or another field of its kind, as a real number."""
    double = contract.stages.score_accumulation.format.precision == FORMATS["float64"].precision
    work = "float64" if guard("elementary functions of float32", double, True) else "float32"
    return getattr(contract, name) * FORMATS[work].unit_roundoff


def row_sum_store(contract: ResolvedContract) -> float:
    """Relative error of keeping the finished row sum in the softmax's format.

    A sum of probabilities that a scale has multiplied may be divided by it, through a rounded reciprocal.
    """
    kept, softmax = contract.stages.softmax.of(contract.stages.row_sum.format).u, contract.stages.softmax.u
    unscaled = contract.rounds_scale and contract.row_sum_of == "cast"
    return term("the store of the row sum", (1 + kept) * (1 + softmax) ** (2 * unscaled) - 1 if unscaled else kept)


def is_power_of(base: int, x: float) -> bool:
    """Return whether x is an integer power of ``base``, which is 2 or 4."""
    significand, exponent = math.frexp(x)
    return significand == 0.5 and (exponent - 1) % {2: 1, 4: 2}[base] == 0
