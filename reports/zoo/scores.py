"""Mutants of scores that are no product of q and k, and of the gradients of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.attention.scores import AS_GIVEN
from attn_spec.emulation.operands import Number, Operands

from .mutants import score_mutant

OUTPUT = "accuracy.output_is_within_its_bound"
QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
PARAMETERS = "gradients.gradients_of_a_scores_parameters_are_within_their_bounds"
LUONG, GRAVES, BAHDANAU = "arXiv 1508.04025", "arXiv 1410.5401", "arXiv 1409.0473"


@score_mutant("score_weight", "score_vector", source="made up: heads that write over one another", named_by=PARAMETERS)
class ParameterGradientOfOneHead(Operands):
    """The gradient of a parameter that heads share is that of the last of them."""

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        shared = [axis for axis, length in enumerate(self.p[name].values.shape[:2]) if length == 1]
        for axis in shared:
            x = np.take(x, [-1], axis)
        return x


@score_mutant("score_weight", source=f"{LUONG}: q^T W k read as k^T W q", named_by=OUTPUT)
class WeightTransposed(Operands):
    """W^T between q and k."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.p = {name: replace(p, values=p.values.swapaxes(-1, -2)) for name, p in self.p.items()}


@score_mutant("score_gamma", source=f"{GRAVES}: one of two norms", named_by=OUTPUT)
class QueriesNotNormalized(Operands):
    """The keys alone have length 1."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = replace(self.score, queries=AS_GIVEN)


@score_mutant("score_gamma", source="made up: a norm under torch.no_grad", named_by=QUERY_AND_KEY)
class NormIsConstant(Operands):
    """The norm of a query has no gradient."""

    def backward(self, run: Callable[..., Any], v: Any, *outputs: Any) -> dict[str, np.ndarray]:
        def pull(A: Any, q: Number, p: Any, t: Number) -> tuple[Number, dict[str, Number]]:
            del p
            return A.quotient(t, A.root(A.total(q * q))), {}

        self.score = replace(self.score, queries=replace(self.score.queries, pull=pull))
        return super().backward(run, v, *outputs)


@score_mutant("score_vector", source=f"{BAHDANAU}: b left out", named_by=OUTPUT)
class ScoreBiasForgotten(Operands):
    """w^T tanh(W1 k + W2 q), without b."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.p.pop("score_bias", None)


@score_mutant("score_vector", source=f"{BAHDANAU}: W and U in the other order", named_by=OUTPUT)
class LayersSwapped(Operands):
    """W1 meets q and W2 k."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        one, other = "score_key_weight", "score_query_weight"
        if one in self.p:
            self.p |= {one: self.p[other], other: self.p[one]}


@score_mutant("score_vector", source="made up: the slope of tanh at h for that at u", named_by=QUERY_AND_KEY)
class SlopeOfTanhForgotten(Operands):
    """The gradient passes tanh as if its slope were 1."""

    def backward(self, run: Callable[..., Any], v: Any, *outputs: Any) -> dict[str, np.ndarray]:
        pairs = self.score.pairs
        assert pairs is not None

        def pull(A: Any, x: Number, y: Number, p: Any, t: Number) -> tuple[Any, Any, dict[str, Any]]:
            _, _, of_p = pairs.pull(A, x, y, p, t)
            u = A.listed(t) * p["score_vector"]
            return A.over_second(u, x, y), A.over_first(u, x, y), of_p

        self.score = replace(self.score, pairs=replace(pairs, pull=pull))
        return super().backward(run, v, *outputs)
