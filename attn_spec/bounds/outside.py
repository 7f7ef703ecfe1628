"""Reasons in words for which a contract says nothing of a row: the first condition of its domain that fails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_spec.bounds.forward.domain import (
    constants_fit,
    entries_fit,
    lse_fits,
    operands_fit,
    reference_fits,
    scores_fit,
)
from attn_spec.bounds.forward.dropout_bounds import factor_fits
from attn_spec.bounds.intermediates import Intermediates, intermediates
from attn_spec.bounds.theorems import forward_bound
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.coverage import silence_of
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem

_SCORES = ("products", "score_accumulation", "inner_accumulation", "stored_scores", "softmax")
_SUMS = ("row_sum", "softmax", "output_accumulation", "output")


@np.errstate(all="ignore")
def why_outside(problem: Problem, contract: ResolvedContract) -> str:
    """Return why a definite contract says nothing of some row of a problem; empty if it says something of all."""
    return next(_reasons(problem, contract), "")


def _reasons(problem: Problem, contract: ResolvedContract) -> Iterator[str]:
    if silence := silence_of(contract, problem):
        yield silence
    if not all(np.isfinite(x).all() for x in (problem.q, problem.k, problem.v)):
        yield "q, k or v hold an infinity or NaN"
    forward = intermediates(problem)
    if problem.feature_map is not None:
        yield f"a sum of features may overflow {_narrowest(contract, *_SUMS, *_SCORES)}, or be too small to divide by"
    yield from (words for words, fits in _conditions(forward, contract) if not np.all(fits))
    bound = forward_bound(forward, contract)
    if not np.all(bound.domain_of("output") | problem.empty_output_rows):
        yield f"a row sum, a sum of p.v or the output may overflow {_narrowest(contract, *_SUMS)}, or vanish in it"
    if not np.all(lse_fits(forward, contract, bound.allowed["lse"])):
        yield f"the log-sum-exp may overflow {_narrowest(contract, 'lse', 'softmax')}"


def _conditions(forward: Intermediates, contract: ResolvedContract) -> Iterator[tuple[str, np.ndarray | bool]]:
    """Return the conditions on the numbers that a row is made of, in the order in which a kernel meets them."""
    form, far, largest = contract.score_accumulation, contract.reference_range, forward.magnitude.max(initial=0.0)
    yield (
        f"the scale, the softcap or the inverse of one is no normal number of {form}",
        constants_fit(forward, contract),
    )
    yield "1 - p of dropout, or its inverse, is no normal number", factor_fits(forward, contract)
    what = f"an entry, or what a score makes of it, may overflow {_narrowest(contract, 'multiplicands', 'operands')}"
    yield what, entries_fit(forward, contract) & operands_fit(forward, contract)
    what = f"a score, or a sum that it is made of, may overflow {_narrowest(contract, *_SCORES)}"
    yield f"{what}: the sizes of the products q_d k_d add up to {largest:.3g}", scores_fit(forward, contract)
    what = f"what is subtracted from scores may lie beyond reference_range={far:g} from their maximum"
    yield what, reference_fits(forward, contract)


def _narrowest(contract: ResolvedContract, *stages: str) -> str:
    """Return the format with the smallest range among some stages, and its largest number."""
    name = min(
        (getattr(contract, stage) for stage in stages if getattr(contract, stage)), key=lambda one: FORMATS[one].largest
    )
    return f"{name} ({FORMATS[name].largest:.5g})"
