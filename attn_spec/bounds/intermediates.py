"""The float64 intermediates of attention: scores, their magnitudes, weights, output, log-sum-exp.

The bounds are functions of these. They are themselves rounded; ``bounds`` accounts for that with the same
theorems under the float64 contract, so nothing here has to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attn_spec.attention.arithmetic import FLOATS
from attn_spec.attention.dropout import weight_factors
from attn_spec.attention.latent import key_gradient
from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import Score, parameters_of, score_of
from attn_spec.attention.terms import BENDS, applied, known_to, numbers_of, slope_of_bends, used, with_scale
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.running_error import Approximation, RunningErrors, given
from attn_spec.contract.presets import FP64
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.handled import check_handled
from attn_spec.problem.problem import Problem

_FLOAT64 = FP64.at("float64")
#: Options that the formulas of attention, and of its gradients, evaluate here, see ``problem.handled``.
HANDLES = (*known_to(FLOATS), "dropout_keep", "dropout_p", "feature_epsilon", "o_scale", "sinks", "v_descale")
GRADIENTS_HANDLE = (
    *known_to(FLOATS, slopes=True),
    "dropout_keep",
    "dropout_p",
    "feature_epsilon",
    "sinks",
    "v_descale",
)


@dataclass(frozen=True, eq=False)
class Intermediates:
    """Symbols as in ``bounds``; every array starts with [B, Hq]; kv heads are repeated to Hq.

    With sinks, the last of Sk keys is the sink: a key of zeros and of value 0, whose score is given. Theorems of
    weights, row sums and outputs hold for it as for any key. Those of scores speak of the keys alone (:attr:`of_keys`).
    """

    problem: Problem
    #: The score, as a row with one order of products.
    score: Score
    #: The operands of the score, q' [.., Sq, D] and k' [.., Sk, D], and v, or v' of a layer, [.., Sk, Dv].
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    #: |q'| and |k'|, [.., Sq, D] and [.., Sk, D]; of a score that is no product of them, the sums of the sizes of their
    #: terms.
    q_size: np.ndarray
    k_size: np.ndarray
    #: bool [.., Sq, Sk]: the keys that theorems speak of, which may leave out some that are ``seen``.
    visible: np.ndarray
    #: q.k and the product of their sizes before the scale, or what else a pair becomes, [.., Sq, Sk]
    dot: np.ndarray
    magnitude: np.ndarray
    #: Scores after each term, by option (0 of a sink, which has no terms), and finished (0 where hidden), [.., Sq, Sk]
    after: Mapping[str, np.ndarray]
    s: np.ndarray
    #: M = max_j s and N = sum_j exp(s - M), or 0 and N = epsilon + sum_j s in linear attention; L = M + log N; [.., Sq,
    #: 1]; 0, 1 and -inf for empty rows
    M: np.ndarray
    N: np.ndarray
    L: np.ndarray
    #: log P = s - L, -inf where hidden, and P, [.., Sq, Sk]
    log_P: np.ndarray
    P: np.ndarray
    #: c_ij, what dropout and descales of values multiply weights by, [.., Sq, Sk]; None where all are 1.
    c: np.ndarray | None
    #: O = (c P) v, [.., Sq, Dv]
    O: np.ndarray
    #: b_O + sum_h W_O O, [B, 1, Sq, O], in a layer, else O.
    output: np.ndarray
    #: True if the last of Sk keys is the sink of each head.
    has_sink: bool = False
    #: Results of functions that bound errors of these intermediates, by function, see ``memoized``.
    results: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def of_keys(self) -> Intermediates:
        """Return the intermediates without the column of the sink; M, N, L and P are those beside it."""
        return self._of_keys if self.has_sink else self

    def numbers_of_terms(self) -> dict[str, np.ndarray]:
        """Return the numbers of terms, as many along the keys as there are columns; a sink, which has none, gets 1."""
        found = numbers_of(self.problem)
        if not self.has_sink:
            return found
        return {
            n: x if x.shape[-1] == 1 else np.pad(x, [(0, 0)] * 3 + [(0, 1)], constant_values=1)
            for n, x in found.items()
        }

    def padded(self, of_keys: np.ndarray) -> np.ndarray:
        """Return numbers of keys [.., Sk, columns] with a row of zeros for the sink, if there is one."""
        return _with_row_of_zeros(of_keys) if self.has_sink else of_keys

    # Not the property itself: intermediates that hold themselves would live until the garbage collector ran.
    @cached_property
    def _of_keys(self) -> Intermediates:
        pairs = ("visible", "dot", "magnitude", "s", "log_P", "P")
        found: dict[str, Any] = {name: getattr(self, name)[..., :-1] for name in pairs}
        found |= {name: getattr(self, name)[..., :-1, :] for name in ("k", "v", "k_size")}
        after = {name: x[..., :-1] for name, x in self.after.items()}
        c = None if self.c is None else self.c[..., :-1]
        return replace(self, **found, after=after, c=c, has_sink=False)

    @property
    def scaled(self) -> np.ndarray:
        """Scores after the scale, [.., Sq, Sk]."""
        return self.after["scale"]

    def before(self, name: str) -> np.ndarray:
        """Scores that a term is made of, [.., Sq, Sk]."""
        previous = self.previous(name)
        return self.dot if previous is None else self.after[previous]

    def previous(self, name: str) -> str | None:
        """Return the option of the term before a term; None for the first, which is the scale."""
        names = [None, *self.after]
        return names[names.index(name) - 1]

    @property
    def bent(self) -> np.ndarray:
        """Scores before what is added to them, [.., Sq, Sk]."""
        *_, last = used(self.problem, ("scale", *BENDS))
        return self.after[last]

    @property
    def seen(self) -> np.ndarray:
        """All keys that a query sees, bool [.., Sq, Sk]."""
        return self._with_sink_seen if self.has_sink else self.problem.visible

    @cached_property
    def _with_sink_seen(self) -> np.ndarray:
        return np.concatenate([self.problem.visible, self.problem.sees_sink[..., None]], axis=-1)

    @cached_property
    def keys(self) -> np.ndarray:
        """n: keys that each row sees, [.., Sq, 1]."""
        return self.seen.sum(axis=-1, keepdims=True)

    @cached_property
    def v_size(self) -> np.ndarray:
        """|v|, [.., Sk, Dv]."""
        return np.abs(self.v)

    def dropped(self, weights: np.ndarray) -> np.ndarray:
        """c_ij w_ij: weights, or their errors, as they meet values."""
        return weights if self.c is None else self.c * weights

    def raised(self, of_keys: np.ndarray) -> np.ndarray:
        """Return what may be multiplied by c_ij or not, where it is largest: times c_ij or 1, and 0 where c_ij is 0."""
        return of_keys if self.c is None else self._c_or_one * of_keys

    @cached_property
    def _c_or_one(self) -> np.ndarray:
        assert self.c is not None
        return np.where(self.c == 0, 0.0, np.maximum(self.c, 1.0))

    @cached_property
    def largest_factor(self) -> float:
        """The largest c_ij, at least 1."""
        return 1.0 if self.c is None else max(self.c.max(initial=0.0), 1.0)

    def over_group(self, per_head: np.ndarray) -> np.ndarray:
        """Sum [B, Hq, ...] over the query heads that share a kv head: [B, Hkv, ...]."""
        B, _, *rest = per_head.shape
        if self.problem.group == 1 and per_head.dtype.kind == "f":
            return per_head.copy()  # a sum of one number each, without the time of a sum
        return per_head.reshape(B, self.problem.kv_heads, self.problem.group, *rest).sum(axis=2)


@np.errstate(all="ignore")
def intermediates(problem: Problem, score: Score | None = None) -> Intermediates:
    """Evaluate attention in float64, keeping everything a bound needs; ``score`` is another row of the same score."""
    check_handled(problem, HANDLES, "float64 attention")
    score = score or score_of(problem)
    q, k, q_size, k_size = _operands(problem, score)
    v = _values(problem)
    visible = problem.visible
    dot, magnitude = _of_pairs(problem, score, q, k, q_size, k_size)
    after = applied(FLOATS, problem, dot, with_scale(FLOATS, problem))
    s, c = np.where(visible, list(after.values())[-1], 0.0), weight_factors(problem, 1.0)
    if has_sink := problem.sinks is not None:
        k, k_size, v = (_with_row_of_zeros(x) for x in (k, k_size, v))
        sees = problem.sees_sink[..., None]
        z = np.where(sees, problem.sinks_of_heads, 0.0)
        visible, s, dot, magnitude = (
            np.concatenate([x, last], axis=-1)
            for x, last in ((visible, sees), (s, z), (dot, np.zeros(z.shape)), (magnitude, np.zeros(z.shape)))
        )
        after = {name: np.concatenate([x, np.zeros(z.shape)], axis=-1) for name, x in after.items()}
        c = None if c is None else np.concatenate([c, np.ones(z.shape)], axis=-1)
    masked = np.where(visible, s, -np.inf)
    M, epsilon = masked.max(axis=-1, keepdims=True, initial=-np.inf), 0.0
    M = np.where(np.isfinite(M), M, 0.0)
    w = np.exp(masked - M)
    if problem.feature_map is not None:
        M, w, epsilon = np.zeros(M.shape), s, problem.feature_epsilon or 0.0
        masked = np.where(visible, np.log(s), -np.inf)
    N = w.sum(axis=-1, keepdims=True) + epsilon * visible.any(axis=-1, keepdims=True)
    L = M + np.log(N)
    N = np.where(N > 0, N, 1.0)
    # Not s - L: the rounding of L would not cancel between the weights and their sum.
    log_P = masked - M - np.log(N)
    P = w / N
    O = ((w if c is None else c * w) @ v) / N
    output = _joined(problem, O) if problem.projects else O
    return Intermediates(
        problem, score, q, k, v, q_size, k_size, visible, dot, magnitude, after, s, M, N, L, log_P, P, c, O,
        output, has_sink,
    )  # fmt: skip


def _with_row_of_zeros(x: np.ndarray) -> np.ndarray:
    """Return x [.., Sk, D] with one row more."""
    return np.concatenate([x, np.zeros((*x.shape[:-2], 1, x.shape[-1]))], axis=-2)


@memoized
def in_all_orders(forward: Intermediates) -> tuple[Intermediates, ...]:
    """Return the intermediates of the problem for each further order in which kernels evaluate its score."""
    return () if forward.score.otherwise is None else (intermediates(forward.problem, forward.score.otherwise),)


def _operands(problem: Problem, score: Score) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """q' and k' [B, Hq, S, D], and their sizes."""
    q, k = problem.q, repeated_keys(problem)
    if score.plain:
        return q, k, np.abs(q), np.abs(k)
    # Values need no errors. FLOATS differ in one: the exponential of a feature map, of an infinity in a hidden key.
    if score.pairs is None and problem.feature_map is None:
        p = parameters_of(problem) | rotations_of(problem)
        q, k = score.queries.value(FLOATS, q, p), score.keys.value(FLOATS, k, p)
        return q, k, np.abs(q), np.abs(k)
    A, p = RunningErrors(_FLOAT64), _parameters(problem)
    q_, k_ = (given(_FLOAT64, x, FORMATS["float64"]) for x in (q, k))
    q_, k_ = score.queries.value(A, q_, p), score.keys.value(A, k_, p)
    if score.pairs is None:
        return q_.value, k_.value, np.abs(q_.value), np.abs(k_.value)
    return q_.value, k_.value, q_.size, k_.size


def _values(problem: Problem) -> np.ndarray:
    """v' [B, Hq, Sk, Dv]."""
    v = problem.per_query_head(problem.v)
    return score_of(problem).values.value(FLOATS, v, parameters_of(problem)) if problem.projects else v


def _joined(problem: Problem, O: np.ndarray) -> np.ndarray:
    """Return the output of a layer from the outputs of its heads."""
    outputs, bias = score_of(problem).outputs, problem.output_projection_bias
    assert outputs is not None
    total = outputs.value(FLOATS, O, parameters_of(problem)).sum(axis=1, keepdims=True)
    return total if bias is None else total + bias


def _of_pairs(problem: Problem, score: Score, *operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each pair of ``operands`` q', k', |q'| and |k'|, and the sizes of its terms."""
    pairs, form, (q, k, q_size, k_size) = score.pairs, FORMATS["float64"], operands
    if pairs is None:
        return q @ k.swapaxes(-1, -2), q_size @ k_size.swapaxes(-1, -2)
    x, y = (Approximation(a, size, np.zeros(a.shape), form, _FLOAT64) for a, size in ((q, q_size), (k, k_size)))
    found = pairs.value(RunningErrors(_FLOAT64), x, y, _parameters(problem))
    return found.value, found.size


def _parameters(problem: Problem) -> dict[str, Any]:
    found = {name: given(_FLOAT64, x, FORMATS["float64"]) for name, x in parameters_of(problem).items()}
    return found | rotations_of(problem)


def finite(x: np.ndarray) -> np.ndarray:
    """Return x with 0 in place of NaN and infinities; where a query sees one, the score's gradient is undefined too."""
    return np.where(np.isfinite(x), x, 0.0)


def repeated_keys(problem: Problem) -> np.ndarray:
    """Return the key that each query head reads, [B, Hq, Sk, D]."""
    return problem.per_query_head(problem.k)


@dataclass(frozen=True, eq=False)
class GradientIntermediates:
    """The float64 gradients of attention and what they were made of; symbols as in ``gradient_bounds``."""

    #: The cotangent of the output, and what of it arrives at each head, dO [B, Hq, Sq, Dv]: the same but in a layer.
    of_output: np.ndarray
    cotangent: np.ndarray
    #: dL [B, Hq, Sq], the cotangent of the LSE.
    lse_cotangent: np.ndarray | None
    #: dP = c dO v^T, [B, Hq, Sq, Sk], 0 where hidden; D = rowsum(P dP), [B, Hq, Sq, 1]; X = dP - D + dL. As in
    #: ``Intermediates`` the last of Sk keys may be a sink, also of dA and dS.
    dP: np.ndarray
    D: np.ndarray
    X: np.ndarray
    #: Gradients of the finished score and of the scaled one, before what bends it, [B, Hq, Sq, Sk].
    dA: np.ndarray
    dS: np.ndarray
    #: Gradients of the operands q' and k', per query head, before the scale; without a sink.
    of_q: np.ndarray
    of_k: np.ndarray
    #: Gradient of v' of each query head.
    of_v: np.ndarray
    #: The gradients of q, k, v and bias, if there is one, by name ("dq"), each of its input's shape.
    gradients: dict[str, np.ndarray]
    #: Errors of ``cotangent`` under the contract of a bound, see :func:`operand_bounds.arriving`; None: it is given.
    cotangent_error: np.ndarray | None = None


@np.errstate(all="ignore")
def gradient_intermediates(
    forward: Intermediates, of_output: np.ndarray, lse_cotangent: np.ndarray | None = None
) -> GradientIntermediates:
    """Evaluate the gradients in float64, keeping everything a bound needs."""
    problem = forward.problem
    check_handled(problem, GRADIENTS_HANDLE, "float64 gradients")
    outputs, cotangent, by_outputs = forward.score.outputs, of_output, {}
    if outputs is not None:
        cotangent, by_outputs = outputs.pull(FLOATS, forward.O, parameters_of(problem), of_output)
    dP = np.where(forward.visible, forward.dropped(cotangent @ forward.v.swapaxes(-1, -2)), 0.0)
    D = (forward.P * dP).sum(axis=-1, keepdims=True)
    X = dP - D if lse_cotangent is None else dP - D + lse_cotangent[..., None]
    X = np.where(forward.visible, X, 0.0)
    dA = forward.P * X if problem.feature_map is None else X / forward.N
    slope = slope_of_bends(FLOATS, problem, forward.after, forward.numbers_of_terms())
    dS = np.where(forward.visible, dA if slope is None else dA * slope, 0.0)
    score, p, scale = forward.score, parameters_of(problem) | rotations_of(problem), problem.scale_value
    of_p: dict[str, np.ndarray] = {}
    keys, of_pairs = forward.of_keys, dS[..., : problem.key_length]
    if score.pairs is None:
        of_q, of_k = of_pairs @ keys.k, of_pairs.swapaxes(-1, -2) @ forward.q
    else:
        of_q, of_k, of_p = score.pairs.pull(FLOATS, finite(forward.q), finite(keys.k), p, of_pairs)
    dq, by_queries = score.queries.pull(FLOATS, finite(problem.q), p, scale * of_q)
    if score.plain:
        dk, by_keys = scale * forward.over_group(of_k), {}
    else:
        dk, by_keys = pulled_from_keys(forward, scale * of_k)
        dk = forward.over_group(dk)
    of_v = keys.dropped(keys.P).swapaxes(-1, -2) @ cotangent
    if outputs is None:
        dv, by_values = of_v, {}
    else:
        dq = dq.sum(axis=1, keepdims=True)
        v = finite(problem.per_query_head(problem.v))
        dv, by_values = score.values.pull(FLOATS, v, p, of_v)
        by_values |= by_outputs
        if problem.output_projection_bias is not None:  # of all heads together
            heads = np.arange(forward.O.shape[1])[:, None, None] == 0
            by_values["output_projection_bias"] = np.where(heads, of_output.sum(axis=2, keepdims=True), 0.0)
    found = {"dq": dq, "dk": dk, "dv": forward.over_group(dv)}
    if problem.latent:
        found["dkv"] = key_gradient(dk, found["dv"])
    if problem.bias is not None:
        of_keys = dA[..., : problem.key_length]
        found["dbias"] = of_keys.sum(axis=problem.broadcast_axes("bias"), keepdims=True)
    if problem.sinks is not None:
        found["dsinks"] = dA[..., -1:].sum(axis=problem.broadcast_axes("sinks"), keepdims=True)
    for name, per_head in (by_queries | by_keys | by_values | {name: scale * of for name, of in of_p.items()}).items():
        found[f"d{name}"] = per_head.sum(axis=problem.broadcast_axes(name)[:2], keepdims=True)
    return GradientIntermediates(of_output, cotangent, lse_cotangent, dP, D, X, dA, dS, of_q, of_k, of_v, found)


def pulled_from_keys(forward: Intermediates, of_operand: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the gradient of k per query head, and of parameters by option, from that of the operand k'."""
    problem = forward.problem
    p = parameters_of(problem) | rotations_of(problem)
    return forward.score.keys.pull(FLOATS, finite(repeated_keys(problem)), p, of_operand)
