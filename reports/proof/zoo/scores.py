"""Mutants of scores that are no product of q and k, and of the gradients of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.attention.scores import AS_GIVEN, Score
from attn_spec.emulation.operands import Number, Operands

from .mutants import score_mutant

OUTPUT = "accuracy.output_is_within_its_bound"
QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
PARAMETERS = "gradients.gradients_of_a_scores_parameters_are_within_their_bounds"
PRODUCT = "scores.a_bilinear_score_is_the_product_with_keys_that_the_weight_has_changed"
LENGTHS = "scores.a_cosine_does_not_see_the_lengths_of_q_and_k"
ODD = "scores.an_additive_score_without_a_bias_is_odd"
LUONG, GRAVES, BAHDANAU = "arXiv 1508.04025", "arXiv 1410.5401", "arXiv 1409.0473"


def with_formulas(score: Score, *sides: str, **formulas: Callable[..., Any]) -> Score:
    """Return the score with other formulas, ``value`` or ``pull``, of the operands of some sides."""
    return replace(score, **{side: replace(getattr(score, side), **formulas) for side in sides})


@score_mutant("score_weight", "score_vector", source="made up: heads that write over one another", named_by=PARAMETERS)
class ParameterGradientOfOneHead(Operands):
    """The gradient of a parameter that heads share takes the last of these heads only."""

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

        self.score = with_formulas(self.score, "queries", pull=pull)
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


@score_mutant("score_weight", source="made up: one projection for both sides", named_by=PRODUCT)
class WeightOnBothSides(Operands):
    """W multiplies the queries too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = with_formulas(self.score, "queries", value=self.score.keys.value)


@score_mutant("score_weight", source=f"{LUONG}: a score of raw products", named_by=PRODUCT)
class BilinearScoreUnscaled(Operands):
    """The score is not divided by sqrt(D)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.options.get("scale") is None:
            self.options["scale"] = 1.0


class _Divided(Operands):
    """Queries that are divided by another number than their norm."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = with_formulas(self.score, "queries", value=lambda A, q, p: A.quotient(q, self.divisor(A, q)))

    def divisor(self, A: Any, q: Number) -> Number:
        """Return the divisor of the queries [.., S, D], [.., S, 1]."""
        return A.root(A.total(q * q))


@score_mutant("score_gamma", source="made up: x / (|x| + 1e-3)", named_by=LENGTHS)
class EpsilonAddedToNorm(_Divided):
    """A thousandth is added to the norm of a query, against a division by 0."""

    def divisor(self, A: Any, q: Number) -> Number:
        norm = super().divisor(A, q)
        return replace(norm, values=norm.values + 1e-3)


@score_mutant("score_gamma", source="made up: a square root left out", named_by=LENGTHS)
class DividedBySquaredNorm(_Divided):
    """A query is divided by the sum of its squares."""

    def divisor(self, A: Any, q: Number) -> Number:
        return A.total(q * q)


@score_mutant("score_gamma", source="made up: normalized in the batch", named_by=LENGTHS)
class NormOfAllQueries(_Divided):
    """The queries of a head share the largest of their norms."""

    def divisor(self, A: Any, q: Number) -> Number:
        norm = super().divisor(A, q)
        largest = norm.values.max(axis=-2, keepdims=True, initial=0.0)
        return replace(norm, values=np.broadcast_to(largest, norm.values.shape))


def _bent_by(score: Score, bend: Callable[[Any, Number], Number]) -> Score:
    """Return the additive score with another function in place of tanh."""
    assert score.pairs is not None

    def value(A: Any, x: Number, y: Number, p: Any) -> Number:
        return A.grid(A.product(bend(A, A.pairs(x, y)), A.transposed(p["score_vector"])), x, y)

    return replace(score, pairs=replace(score.pairs, value=value))


@score_mutant("score_vector", source="made up: (1 - e) / (1 + e) for e = exp(-2|x|)", named_by=ODD)
class SignOfTanhLost(Operands):
    """tanh(|x|), which never underflows, without the sign of x."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = _bent_by(self.score, lambda A, x: A.tanh(replace(x, values=np.abs(x.values))))


@score_mutant("score_vector", source="made up: a fast tanh that is cut at 4", named_by=ODD)
class TanhCutOnOneSide(Operands):
    """Arguments above 4 become 4; arguments below -4 stay."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.score = _bent_by(self.score, lambda A, x: A.tanh(replace(x, values=np.minimum(x.values, 4.0))))


@score_mutant("score_vector", source=f"{BAHDANAU}: divided by the root of its width", named_by=OUTPUT)
class AdditiveScoreScaled(Operands):
    """The score is divided by sqrt(D), as a product is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.options["scale"] = self.options["scale"] / np.sqrt(self.q.values.shape[-1])
