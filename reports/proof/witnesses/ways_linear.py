"""Ways of computing linear attention in which one rounding decides."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.linear import LinearAttention, LinearGradients, StateAttention
from attn_spec.problem.problem import Problem

from ..adversary.cases import WHOLE, Way
from .steps import given


class OnesColumn(StateAttention):
    """The sum of weights is one more column of the values."""

    def accumulate_row_sum(self, l: Any, p: Any) -> Any:
        ones = self.xp.ones_like(self.load_v()[..., :1])
        of_state = self.of_state(l, ones, "output_accumulation")
        of_scores = self.weighted_sum(self.cast_once(p), ones, "output_accumulation", l)
        return self.xp.where(self.whole(), of_state, of_scores)


_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}
_FLUSHED: dict[str, Any] = {"float16_subnormals": "flushed"}
_BEFORE: dict[str, Any] = {"normalize": "before_product"}
_LOG: dict[str, Any] = {"log_error": 2.0**41}
_PIECES: dict[str, Any] = {"multiplicands": "bfloat16", "multiplicand_pieces": 2}
#: Numbers that no narrow format holds, subnormal ones of float16.
_TINY, _LESS = 2.0**-18 * 1.2345, 2.0**-18 * 1.6


def _relu(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    """Make linear attention of positive q and k, which are their own features."""
    return given(q, k, v, feature_map="relu", **options)


#: Problems by the names of ways, before a comma.
_PROBLEMS: dict[str, Problem] = {
    "linear": _relu([[1.37]], [[1.11]], [[1.3]]),
    "linear exponentials": given([[0.37]], [[0.11]], [[1.3]], feature_map="exp"),
    "linear keys": _relu([[1.37]], [[1.11]] * 8, [[1.3]] * 8),
    "linear loud key": _relu([[1.37] * 8], [[1.11] * 8, *[[2.0**-12] * 8] * 7], [[1.3]] * 8),
    "linear tiny LSE": _relu([[1.0]], [[1 + 1.3 * 2.0**-20]], [[1]]),
    "linear LSE of some size": _relu([[1.0]], [[1 + 1.3 * 2.0**-9]], [[1]]),
    "linear tiny epsilon": _relu([[1.0]], [[2.0**-11 * 1.1]], [[1]], feature_epsilon=_LESS),
    "linear tiny queries": _relu([[_TINY, _LESS]], [[1, 1], [1.5, 0.5]], [[1], [0.7]]),
    "linear tiny keys": _relu([[1, 1]], [[_TINY, _LESS], [_LESS, _TINY]], [[1], [0.7]]),
    "linear tiny values": _relu([[1, 1]], [[1, 0.5], [0.5, 0.5]], [[_TINY], [_LESS]]),
    "linear tiny states": _relu([[1, 1]], [[2.0**-7 * 1.1, 2.0**-7]] * 2, [[2.0**-10 * 1.3], [2.0**-10 * 1.1]]),
    "linear large queries": _relu([[64, 64]], [[2.0**-14 * 1.1, 2.0**-14]] * 2, [[2.0**-4 * 1.1], [2.0**-4 * 1.3]]),
    "linear light key": _relu([[1.0]], [[512], [2.0**-16 * 1.1]], [[0], [1024]]),
    "linear large sum": _relu([[16, 8]], [[16, 31], [8, 17]], [[2.0**-16 * 1.1], [2.0**-16 * 1.3]]),
    "linear large values": _relu(
        [[2.0**-9, 2.0**-9 * 1.1, 2.0**-9 * 0.9, 2.0**-9]],
        [[2.0**-9 * 1.1] * 4, [2.0**-9 * 1.3] * 4, [8, 1, 1, 1]],
        [[900], [1000], [0]],
    ),
    "linear small products": _relu([[2.0**-9]], [[4.4]], [[2.0**-14 * 1.3]]),
}


def _way(
    name: str, contract: dict[str, Any] = _KEPT, steps: type[TiledAttention] = LinearAttention, **fields: Any
) -> Way:
    own = {"contract": {"kv_tile": None, **contract}, "order": WHOLE, **fields}
    return Way(name=name, steps=steps, gradients=LinearGradients, **own)


_BY_KEY: dict[str, Any] = {"order": {"kv_tile": 1}}
LINEAR_WAYS = (
    _way("linear"),
    _way("linear, states, pieces", _PIECES, StateAttention),
    _way("linear exponentials"),
    _way("linear exponentials, log", _LOG),
    _way("linear exponentials, base 2", {"exponent": "base2"}),
    _way("linear, base 2", {"exponent": "base2"}),
    _way("linear keys", _KEPT, StateAttention),
    _way("linear loud key, by key", {"kv_tile": 1}, StateAttention, **_BY_KEY),
    _way("linear loud key, N a column", _KEPT, OnesColumn),
    _way("linear tiny LSE"),
    _way("linear tiny LSE, flushed", _FLUSHED),
    _way("linear tiny LSE, base 2", {"exponent": "base2"}),
    _way("linear LSE of some size, log", _LOG),
    _way("linear tiny epsilon"),
    _way("linear tiny queries"),
    _way("linear tiny keys", _KEPT, StateAttention),
    _way("linear tiny values", _KEPT, StateAttention),
    _way("linear tiny states, flushed", _FLUSHED, StateAttention),
    _way("linear large queries", _KEPT, StateAttention),
    _way("linear light key, flushed", _FLUSHED),
    _way("linear light key, normalized first", {**_KEPT, **_BEFORE}),
    _way("linear large sum, flushed", _FLUSHED),
    _way("linear large values"),
    _way("linear small products"),
)

#: Fields of an attack beside its way.
LINEAR_ATTACKS: dict[str, dict[str, Any]] = {
    way.name: {"problem": _PROBLEMS[way.name.split(",")[0]], "cotangent": None} for way in LINEAR_WAYS
}
