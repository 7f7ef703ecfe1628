"""How much work a kernel was given: the budget that everyone who judges the same mutant is held to.

Work is counted in multiply-adds of the two products of a forward pass, B * Hq * Sq * Sk * (D + Dv), and not in
seconds, so that a comparison is the same on every machine. A backward pass is counted by its forward call.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from attn_spec.kernels.kernel import Kernel
from attn_spec.problem.problem import Problem
from attn_spec.search.search import OutOfBudget

#: One head of 512 queries and keys with 128 dimensions each.
BUDGET = 2**26


def work_of(problem: Problem) -> int:
    """Multiply-adds of one forward pass over a problem."""
    B, Hq, Sq, Sk = problem.score_shape
    return B * Hq * Sq * Sk * (problem.head_dim + problem.value_dim)


@dataclass
class Meter:
    """Work done so far by the kernels it was put on."""

    budget: int
    work: int = 0
    calls: int = 0

    @property
    def is_spent(self) -> bool:
        return self.work >= self.budget

    def on(self, kernel: Kernel) -> Kernel:
        """The same kernel, whose calls are counted; one more when the budget is spent ends the search."""
        function = kernel.function

        @functools.wraps(function)
        def counted(q: Any, k: Any, v: Any, **options: Any) -> Any:
            if self.is_spent:
                raise OutOfBudget
            B, Hq, Sq, D = q.shape
            self.work += B * Hq * Sq * k.shape[2] * (D + v.shape[3])
            self.calls += 1
            return function(q, k, v, **options)

        return replace(kernel, function=counted)
