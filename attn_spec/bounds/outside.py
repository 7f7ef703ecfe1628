"""Why a contract says nothing of a row, in words: the first condition of its domain that the row is outside of."""

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

_SCORES = ("score_accumulation", "inner_accumulation", "stored_scores", "softmax")
_SUMS = ("row_sum", "softmax", "output_accumulation", "output")


@np.errstate(all="ignore")
def why_outside(problem: Problem, c: ResolvedContract) -> str:
    """Why a definite contract says nothing of some row of a problem; empty if it says something of all."""
    return next(_reasons(problem, c), "")


def _reasons(problem: Problem, c: ResolvedContract) -> Iterator[str]:
    if silence := silence_of(c, problem):
        yield silence
    if not all(np.isfinite(x).all() for x in (problem.q, problem.k, problem.v)):
        yield "q, k or v hold an infinity or NaN"
    x = intermediates(problem)
    if problem.feature_map is not None:
        yield f"a sum of features may overflow {_narrowest(c, *_SUMS, *_SCORES)}, or be too small to divide by"
    yield from (words for words, fits in _conditions(x, c) if not np.all(fits))
    bound = forward_bound(x, c)
    if not np.all(bound.domain_of("output") | problem.empty_output_rows):
        yield f"a row sum, a sum of p.v or the output may overflow {_narrowest(c, *_SUMS)}, or vanish in it"
    if not np.all(lse_fits(x, c, bound.allowed["lse"])):
        yield f"the log-sum-exp may overflow {_narrowest(c, 'lse', 'softmax')}"


def _conditions(x: Intermediates, c: ResolvedContract) -> Iterator[tuple[str, np.ndarray | bool]]:
    """Return the conditions on the numbers that a row is made of, in the order in which a kernel meets them."""
    form, far, largest = c.score_accumulation, c.reference_range, x.magnitude.max(initial=0.0)
    yield f"the scale, the softcap or the inverse of one is no normal number of {form}", constants_fit(x, c)
    yield "1 - p of dropout, or its inverse, is no normal number", factor_fits(x, c)
    what = f"an entry, or what a score makes of it, may overflow {_narrowest(c, 'multiplicands', 'operands')}"
    yield what, entries_fit(x, c) & operands_fit(x, c)
    what = f"a score, or a sum that it is made of, may overflow {_narrowest(c, *_SCORES)}"
    yield f"{what}: the sizes of the products q_d k_d add up to {largest:.3g}", scores_fit(x, c)
    what = f"what is subtracted from scores may lie beyond reference_range={far:g} from their maximum"
    yield what, reference_fits(x, c)


def _narrowest(c: ResolvedContract, *stages: str) -> str:
    """The format of the smallest range among those of some stages, and how far it reaches."""
    name = min((getattr(c, stage) for stage in stages if getattr(c, stage)), key=lambda one: FORMATS[one].largest)
    return f"{name} ({FORMATS[name].largest:.5g})"
