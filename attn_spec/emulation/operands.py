"""Operands of a score under any arithmetic: the formulas of ``attention.scores``, with every operation rounded.

A kernel changes q and k first and then attends as for a product of the two. Its gradients go back through the same
formulas, head by head, before heads that share a key are summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.scores import SCORES, Score
from attn_spec.error.contract import ResolvedContract
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.options import OPTIONS, SCORE

from .arithmetic import Order
from .matrix_products import MatrixProducts

#: The options that choose a score.
CHOICES = tuple(name for name, row in OPTIONS.items() if row.kind == SCORE)


@dataclass(frozen=True, eq=False)
class Number:
    """Numbers [.., rows, columns] and the stage or format that holds them."""

    values: np.ndarray
    source: str
    steps: MatrixProducts

    def __mul__(self, other: Number) -> Number:
        return Execution(self.steps).finished(self.values * other.values)

    def __sub__(self, other: Number) -> Number:
        return Execution(self.steps).finished(self.values - other.values)


class Execution:
    """The operations of ``attention.arithmetic`` under a contract: rounded as sums of scores are, stored as scores."""

    def __init__(self, steps: MatrixProducts) -> None:
        self.steps = steps

    def finished(self, x: Any) -> Number:
        """The result of one operation."""
        rounded = self.steps.round(x, "score_accumulation")
        return Number(self.steps.convert(rounded, "stored_scores", "score_accumulation"), "stored_scores", self.steps)

    def product(self, x: Number, y: Number) -> Number:
        a, b = self.steps.enter(x.values, x.source), self.steps.enter(y.values, y.source)
        count = a.shape[-1]
        total = self.steps.add_products(lambda t: (a[..., t, None], b[..., None, t, :]), count, "score_accumulation")
        return self.finished(total)

    def transposed(self, x: Number) -> Number:
        return replace(x, values=x.values.swapaxes(-1, -2))

    def total(self, x: Number) -> Number:
        term, count = x.values, x.values.shape[-1]
        return self.finished(self.steps.accumulate(lambda t: term[..., t, None], count, "score_accumulation"))

    def root(self, x: Number) -> Number:
        return self.finished(np.sqrt(x.values))

    def quotient(self, x: Number, y: Number) -> Number:
        divides = self.steps.order.divides
        found = x.values / y.values if divides else x.values * self.finished(1 / y.values).values
        return self.finished(np.where((x.values == 0) & (y.values == 0), 0.0, found))


class Operands:
    """q and k of one call, of a score other than their product, and what they become."""

    def __init__(self, c: ResolvedContract, order: Order, q: Any, k: Any, options: Mapping[str, Any]) -> None:
        score = next(name for name in CHOICES if options.get(name) is not None)
        self.score: Score = SCORES[score]
        self.steps, self.group = MatrixProducts(c, order), q.shape[1] // k.shape[1]
        #: The options of a call with the operands in place of q and k.
        self.options = {name: value for name, value in options.items() if name != score}
        if self.options.get("scale") is None and not OPTIONS[score].divides:
            self.options["scale"] = 1.0
        of_keys = np.repeat(values_of(k), self.group, axis=1)
        tensors = values_of(q), of_keys, np.asarray(values_of(options[score]))
        self.q, self.k, self.p = (Number(np.asarray(x, np.float64), "input", self.steps) for x in tensors)

    @np.errstate(all="ignore")
    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """q' [B, Hq, Sq, D] and k' [B, Hq, Sk, D] as they are stored."""
        A = Execution(self.steps)
        found = self.score.queries.value(A, self.q, self.p), self.score.keys.value(A, self.k, self.p)
        return self.stored(found[0]), self.stored(found[1])

    def repeated(self, x: Any) -> np.ndarray:
        """The values of a tensor of kv heads for each query head."""
        return np.repeat(values_of(x), self.group, axis=1)

    @np.errstate(all="ignore")
    def gradients(self, dq: np.ndarray, dk: np.ndarray, dv: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dq, dk and dv from the gradients of q', k' and v of each query head, unrounded."""
        A = Execution(self.steps)
        of_q, of_k = (Number(self.stored_gradient(x), "operands", self.steps) for x in (dq, dk))
        of_q = self.score.queries.pull(A, self.q, self.p, of_q).values
        of_k = self.score.keys.pull(A, self.k, self.p, of_k).values
        return of_q, self.sum_over_group(of_k), self.sum_over_group(dv)

    def stored(self, x: Number) -> np.ndarray:
        """A finished operand."""
        return self.steps.convert(x.values, "operands", x.source)

    def stored_gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of an operand."""
        return self.steps.convert(x, "operands", "gradient_accumulation")

    def sum_over_group(self, x: np.ndarray) -> np.ndarray:
        """The sum over the query heads that share a kv head."""
        heads = x.reshape(len(x), -1, self.group, *x.shape[2:])
        return self.steps.accumulate(lambda h: heads[:, :, h], self.group, "gradient_accumulation")


def chooses_score(options: Mapping[str, Any]) -> bool:
    """Whether a call has another score than the product of q and k."""
    return any(options.get(name) is not None for name in CHOICES)


def unrounded(c: ResolvedContract) -> ResolvedContract:
    """The contract whose gradients are those of operands, which are not finished yet."""
    return replace(c, gradients="float64")
