"""Score functions: each is the product of two operands, which are formulas of q and of k, and of parameters.

    s_ij = scale * q'_i . k'_j        q' = f(q, p)        k' = g(k, p)

or what another formula makes of each pair of them, see :class:`Pairs`.
A row is all that the suite knows of one: truth, enclosure, bounds and gradients evaluate its formulas, each in an
arithmetic of its own (``arithmetic``). By the chain rule the gradient of q is what f makes of that of q'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.attention.operations import Arithmetic
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Operand:
    """Formula that makes an operand of the product out of q or k, and its gradient."""

    #: (arithmetic, x [rows, D], parameters by option) -> x' [rows, ..].
    value: Callable[[Arithmetic, Any, Mapping[str, Any]], Any]
    #: (arithmetic, x, parameters, gradient of x') -> gradient of x, and of parameters by option.
    pull: Callable[[Arithmetic, Any, Mapping[str, Any], Any], tuple[Any, dict[str, Any]]]
    #: (parameters as arrays) -> M, where the gradient of x is that of x' times M, whatever x is; None where it is not.
    pulls_by: Callable[[Mapping[str, np.ndarray]], np.ndarray] | None = None


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Formula of the score of each pair of operands, in place of their product, and its gradient."""

    #: (arithmetic, q', k', parameters) -> s before the scale, [rows of q', rows of k'].
    value: Callable[[Arithmetic, Any, Any, Mapping[str, Any]], Any]
    #: (arithmetic, q', k', parameters, gradient of s) -> gradients of q' and k', and of parameters by option.
    pull: Callable[[Arithmetic, Any, Any, Mapping[str, Any], Any], tuple[Any, Any, dict[str, Any]]]
    #: (arithmetic, q', k', parameters) -> the derivative of s by the entries of q', and of k', in rows of pairs.
    slopes: Callable[[Arithmetic, Any, Any, Mapping[str, Any]], Any]


AS_GIVEN = Operand(value=lambda A, x, p: x, pull=lambda A, x, p, t: (t, {}))


@dataclass(frozen=True, kw_only=True)
class Score:
    """All that is known of one score function."""

    formula: str
    #: Source of the formula.
    source: str
    queries: Operand
    keys: Operand
    #: Formula that v becomes before it is weighted.
    values: Operand = AS_GIVEN
    #: Formula of each head's output before heads are added, with ``output_projection_bias``; None: outputs stay apart.
    outputs: Operand | None = None
    #: None is the product.
    pairs: Pairs | None = None
    #: The norm of q and k below which kernels differ: libraries clamp it, each at a number of its own.
    shortest: float = 0.0
    #: True if the operands are q and k themselves.
    plain: bool = False
    #: The score as a product of other operands, where kernels multiply its factors in another order; None: they do not.
    otherwise: Score | None = None


def _norm(A: Arithmetic, x: Any) -> Any:
    return A.as_operand(A.root(A.total(x * x)))


def _unit(A: Arithmetic, x: Any) -> Any:
    return A.as_operand(A.quotient(x, _norm(A, x)))


def _pulled_from_unit(A: Arithmetic, x: Any, t: Any) -> Any:
    """Return the gradient of x from the gradient t of u = x / |x|: (t - u (u.t)) / |x|.

    A framework that differentiates the quotient divides t and u (u.t) apart.
    """
    u = _unit(A, x)

    def across(t: Any) -> Any:
        return t - A.as_operand(u * A.as_operand(A.total(A.as_operand(u * t))))

    return A.linear_quotient(across, t, _norm(A, x))


def _over_rows(A: Arithmetic, x: Any) -> Any:
    """Return the sum over the rows, as one row."""
    return A.transposed(A.total(A.transposed(x)))


def _layer(option: str) -> Operand:
    """x W^T, for the matrix W of an option."""
    return Operand(
        value=lambda A, x, p: A.product(x, A.transposed(p[option])),
        pull=lambda A, x, p, t: (A.product(t, p[option]), {option: A.product(A.transposed(t), x)}),
        pulls_by=lambda p: p[option],
    )


def _transposed_layer(option: str) -> Operand:
    """x W, for the matrix W of an option."""
    return Operand(
        value=lambda A, x, p: A.product(x, p[option]),
        pull=lambda A, x, p, t: (A.product(t, A.transposed(p[option])), {option: A.product(A.transposed(x), t)}),
        pulls_by=lambda p: p[option].swapaxes(-1, -2),
    )


def _with_bias(layer: Operand, option: str = "score_bias") -> Operand:
    """Return ``layer`` followed by the bias of an option, if the problem has one."""

    def value(A: Arithmetic, x: Any, p: Mapping[str, Any]) -> Any:
        found = layer.value(A, x, p)
        return A.shifted(A.as_operand(found), p[option], x) if option in p else found

    def pull(A: Arithmetic, x: Any, p: Mapping[str, Any], t: Any) -> tuple[Any, dict[str, Any]]:
        of_x, found = layer.pull(A, x, p, t)
        return of_x, found | ({option: _over_rows(A, t)} if option in p else {})

    return Operand(value=value, pull=pull, pulls_by=layer.pulls_by)


def _through_scaled_unit(A: Arithmetic, k: Any, p: Mapping[str, Any], t: Any) -> tuple[Any, dict[str, Any]]:
    """gamma is a factor of all entries of k / |k|."""
    gamma = p["score_gamma"]
    return _pulled_from_unit(A, k, A.as_operand(gamma * t)), {"score_gamma": _over_rows(A, A.total(t * _unit(A, k)))}


def _bent(A: Arithmetic, x: Any, y: Any, p: Mapping[str, Any]) -> Any:
    """w^T tanh(x_i + y_j)."""
    return A.grid(A.product(A.tanh(A.pairs(x, y)), A.transposed(p["score_vector"])), x, y)


def _slopes_of_bent(A: Arithmetic, x: Any, y: Any, p: Mapping[str, Any]) -> Any:
    """w (1 - tanh^2)."""
    h = A.tanh(A.pairs(x, y))
    return p["score_vector"] * A.complement(h * h)


def _through_bent(A: Arithmetic, x: Any, y: Any, p: Mapping[str, Any], t: Any) -> tuple[Any, Any, dict[str, Any]]:
    """t_ij w (1 - tanh^2), summed over j for x_i, over i for y_j; and sum_ij t_ij tanh for w."""
    h, t = A.tanh(A.pairs(x, y)), A.listed(t)
    u = t * p["score_vector"] * A.complement(h * h)
    return A.over_second(u, x, y), A.over_first(u, x, y), {"score_vector": A.product(A.transposed(t), h)}


def _turned(side: str) -> Operand:
    """x turned by its position; the gradient is turned back."""

    def value(A: Arithmetic, x: Any, p: Mapping[str, Any]) -> Any:
        cos, sin = A.tables(p[side])
        return A.as_operand(x * cos) + A.as_operand(A.swapped(x, p[side]) * sin)

    def pull(A: Arithmetic, x: Any, p: Mapping[str, Any], t: Any) -> tuple[Any, dict[str, Any]]:
        del x
        cos, sin = A.tables(p[side])
        return A.as_operand(t * cos) - A.as_operand(A.swapped(t, p[side]) * sin), {}

    return Operand(value=value, pull=pull)


#: The score of each option that chooses one; of None, the product of q and k.
SCORES: dict[str | None, Score] = {
    None: Score(
        formula="q.k",
        source="Vaswani et al. (2017), equation 1",
        queries=AS_GIVEN,
        keys=AS_GIVEN,
        plain=True,
    ),
    "score_weight": Score(
        formula="q^T W k",
        source="Luong et al., arXiv 1508.04025, section 3.1, general",
        queries=AS_GIVEN,
        keys=_layer("score_weight"),
        otherwise=Score(formula="(W^T q)^T k", source="", queries=_transposed_layer("score_weight"), keys=AS_GIVEN),
    ),
    "score_gamma": Score(
        formula="gamma q.k / (|q| |k|), and 0 where q or k is 0",
        source="Graves et al., Neural Turing machines, arXiv 1410.5401, equations 5 and 6",
        shortest=1e-6,
        queries=Operand(
            value=lambda A, q, p: _unit(A, q),
            pull=lambda A, q, p, t: (_pulled_from_unit(A, q, t), {}),
        ),
        keys=Operand(
            value=lambda A, k, p: p["score_gamma"] * _unit(A, k),
            pull=_through_scaled_unit,
        ),
    ),
    "score_vector": Score(
        formula="w^T tanh(W1 k + W2 q + b)",
        source="Bahdanau et al., arXiv 1409.0473, appendix A.1.2",
        queries=_with_bias(_layer("score_query_weight")),
        keys=_layer("score_key_weight"),
        pairs=Pairs(value=_bent, pull=_through_bent, slopes=_slopes_of_bent),
    ),
    "query_projection": Score(
        formula="(W_Q q + b_Q).(W_K k + b_K), of values W_V v + b_V, and the sum over heads of W_O o, and b_O",
        source="Vaswani et al. (2017), section 3.2.2",
        queries=_with_bias(_layer("query_projection"), "query_projection_bias"),
        keys=_with_bias(_layer("key_projection"), "key_projection_bias"),
        values=_with_bias(_layer("value_projection"), "value_projection_bias"),
        outputs=_layer("output_projection"),
    ),
    "rotary": Score(
        formula="(R_i q).(R_j k)",
        source="Su et al., RoFormer, arXiv 2104.09864, equation 16",
        queries=_turned("queries"),
        keys=_turned("keys"),
    ),
}


def _product_of_features(formula: str, source: str, phi: Operand) -> Score:
    return Score(formula=f"phi(q).phi(k), phi(x) = {formula}", source=source, queries=phi, keys=phi)


#: The scores of linear attention by its feature map. None is negative.
FEATURE_MAPS: dict[str, Score] = {
    "elu_plus_one": _product_of_features(
        "elu(x) + 1 = max(x, 0) + exp(min(x, 0))",
        "Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equation 7",
        Operand(
            value=lambda A, x, p: A.gated(x, x) + A.capped_exp(x),
            pull=lambda A, x, p, t: (t * A.capped_exp(x), {}),
        ),
    ),
    "relu": _product_of_features(
        "max(x, 0), with the slope 0 at 0",
        "Cai et al., EfficientViT, arXiv 2205.14756, section 3.1",
        Operand(value=lambda A, x, p: A.gated(x, x), pull=lambda A, x, p, t: (A.gated(t, x), {})),
    ),
    "exp": _product_of_features(
        "exp(x)",
        "Zhang et al., The hedgehog and the porcupine, arXiv 2402.04347, section 4, without the layer before it",
        Operand(value=lambda A, x, p: A.exp(x), pull=lambda A, x, p, t: (t * A.exp(x), {})),
    ),
}


def score_of(problem: Problem) -> Score:
    """Return the score function of a problem."""
    return FEATURE_MAPS[problem.feature_map] if problem.feature_map else SCORES[problem.score_option]


def parameters_of(problem: Problem) -> dict[str, np.ndarray]:
    """Return the tensors [B, Hq, .., ..] of a score's parameters, by option; the score q.k has none."""
    chosen, heads = problem.score_option, problem.score_shape[:2]
    names = [] if chosen is None else [chosen, *(row.name for row in parameters(chosen))]
    given = {name: getattr(problem, name) for name in names if OPTIONS[name].tensor is np.float64}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    return {name: np.broadcast_to(tensor, (*heads, *tensor.shape[2:])) for name, tensor in tensors.items()}
