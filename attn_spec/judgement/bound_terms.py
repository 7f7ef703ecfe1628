"""Make-up of an allowed error: the named terms of its bound that weigh most.

Terms are struck one after the other in the order in which the bound meets them; the parts of a term precede the term.
The share of a term is the part of the allowed error that is lost when the term is struck. All shares add up to 1, less
the share of parts without a name.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attn_spec.bounds.intermediates import gradient_intermediates
from attn_spec.bounds.replay import replayed
from attn_spec.bounds.theorems import forward_bound, gradient_bound, gradient_evaluation_error
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import met, struck
from attn_spec.judgement.analysis import Analysis
from attn_spec.problem.problem import Problem

#: Largest number of terms that are named, and the least share of a term that is named.
MOST, LEAST = 3, 0.01


class BoundTerm(NamedTuple):
    """A named term of a bound, and its share of the allowed error."""

    name: str
    share: float

    def __str__(self) -> str:
        """Return share and name, as "62 % the cast of the probabilities"."""
        return f"{100 * self.share:.0f} % {self.name}"


def largest_terms(allowed: Callable[[], float]) -> tuple[BoundTerm, ...]:
    """Return the terms with the largest shares of the number that ``allowed`` evaluates, the largest first.

    The result is empty for an allowed error of 0 or infinity. A bound falls with each term that is struck, so a run of
    terms has at least the share of each term in it. Runs are halved, the one with the largest share first, until single
    terms are left.
    """
    with met() as names:
        whole = allowed()
    order = tuple(names)
    if not (order and 0 < whole < math.inf):
        return ()

    def left(count: int) -> float:
        with struck(*order[:count]):
            return allowed() / whole

    found, open_ = [], [(left(len(order)) - 1, 0, len(order), 1.0, left(len(order)))]
    while open_ and len(found) < MOST:
        negative, start, end, before, after = heapq.heappop(open_)
        if not -negative >= LEAST:
            break
        if end - start == 1:
            found.append(BoundTerm(order[start], -negative))
            continue
        middle = (start + end) // 2
        between = left(middle)
        heapq.heappush(open_, (between - before, start, middle, before, between))
        heapq.heappush(open_, (after - between, middle, end, between, after))
    return tuple(found)


@np.errstate(all="ignore")
def of_row(problem: Problem, reading: ResolvedContract, quantity: str, at: tuple[int, ...]) -> tuple[BoundTerm, ...]:
    """Return the largest terms of the bound of one element of "output" or "lse"; none if its query sees no key."""
    b, h, i, *column = at
    entry = replayed(problem, reading).take("B", [b])
    layer = entry.projects
    one = (entry if layer else entry.head(h)).rows(np.array([i]))
    if one.empty_rows.any():
        return ()
    known, place = Analysis(one), (0, h if layer else 0, 0, *column)
    output = known.oracle.first["output"]
    slack = np.where(np.isfinite(output.radius), output.radius, 0.0)
    return largest_terms(
        lambda: float(forward_bound(known.intermediates, reading, output.value, slack).allowed[quantity][place])
    )


@np.errstate(all="ignore")
def of_gradient(
    problem: Problem,
    reading: ResolvedContract,
    cotangents: tuple[np.ndarray, np.ndarray | None],
    name: str,
    at: tuple[int, ...],
) -> tuple[BoundTerm, ...]:
    """Return the largest terms of the bound of one element of a gradient, for the cotangents dO and dL."""
    forward = Analysis(problem).intermediates
    grad = gradient_intermediates(forward, *cotangents)
    slack = gradient_evaluation_error(forward, grad)
    return largest_terms(lambda: float(gradient_bound(forward, grad, reading, slack).allowed[name][at]))
