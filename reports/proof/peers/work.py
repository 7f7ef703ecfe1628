"""Work given to a kernel: the budget of each contestant that judges the same mutant.

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
    """Return the multiply-adds of one forward pass over a problem."""
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
        """Return the kernel with its calls counted; a call after the budget is spent raises :class:`OutOfBudget`."""
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
