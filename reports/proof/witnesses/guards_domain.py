"""Guards of the domain: conditions without which an overflow is judged, and an answer of NaN refuted.

Each has a problem in which what a number of its kind may be is beyond its format, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FP32
from attn_spec.judgement import measure
from attn_spec.problem.problem import Problem

_FLOAT32 = replace(FP32.at("float32"), delta="output", backward_weights="recomputed", weight_gradients="float32")
#: Predicate: True if an answer is judged as it must be.
Row = Callable[[], bool]


def _given(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    tensors = {name: np.array(x, dtype=np.float64)[None, None] for name, x in (("q", q), ("k", k), ("v", v))}
    return Problem(**tensors, **{"dtypes": "float32", "scale": 1.0} | options)


def _silent(problem: Problem, *, quantity: str = "output", **contract: Any) -> bool:
    """Return whether an answer of NaN is not refuted under the contract float32 with some fields changed."""
    got: dict[str, Any] = {quantity: np.full(problem.output_shape[: 4 if quantity == "output" else 3], np.nan)}
    return not measure.judge(problem, replace(_FLOAT32, **contract), **got).refuted


def _silent_of(name: str, problem: Problem, dO: float = 1.0, dL: float = 0.0, **contract: Any) -> bool:
    """Return whether a gradient of NaN is not refuted, for cotangents that are all ``dO``, and ``dL``."""
    cotangent, of_lse = np.full(problem.output_shape, dO), np.full(problem.score_shape[:3], dL)
    found = {name: np.full(np.shape(getattr(problem, name[1:])), np.nan)}
    changed = replace(_FLOAT32, **contract)
    return not measure.judge_gradients(problem, changed, cotangent, found, of_lse if dL else None).refuted


#: Two keys of scores 0, and values of some size.
def _values(*v: float, **options: Any) -> Problem:
    return _given([[0]], [[1]] * len(v), [[each] for each in v], **options)


def _scale(d: float) -> np.ndarray:
    return np.full((1, 1, 1, 1), float(np.float32(d)))


def _scored(*scores: float, **options: Any) -> Problem:
    return _given([[1]], [[each] for each in scores], [[1], *[[3]] * (len(scores) - 1)], **options)


def _sunk(z: float) -> Problem:
    return _scored(1, 1, sinks=np.full((1, 1, 1, 1), float(z)))


def _outside(name: str, **options: Any) -> bool:
    """Return whether a gradient of NaN is not refuted where the sums of the forward pass may overflow."""
    return _silent_of(name, _values(4e4, 3e4, **options), 2.0**-8, output_accumulation="float16")


def _linear(q: float, k: float, v: float = 1.0, rows: int = 1) -> Problem:
    """Make linear attention of two equal keys; positive numbers are their own features."""
    return _given([[q]] * rows, [[k]] * 2, [[v]] * 2, feature_map="relu", scale=None)


def _turned(key: int, **options: Any) -> Problem:
    """Make two keys of which the second stands at ``key``, and is turned by its position."""
    return _given(
        [[1, 0]],
        [[1, 0]] * 2,
        [[1], [3]],
        rotary="half",
        rotary_key_positions=np.array([[[[0, key]]]]),
        **options,
    )


_NARROW: dict[str, Any] = {"score_accumulation": "float16"}
_ZERO: dict[str, Any] = {"reference": "zero"}

DOMAIN: dict[str, Row] = {
    "constants that fit": lambda: _silent(_values(1, 3, scale=2.0**-16), **_NARROW),
    "queries and keys that enter products": lambda: _silent(
        _given([[2.0**17]], [[2.0**-17]] * 2, [[1], [3]]), multiplicands="float16"
    ),
    "values that enter products": lambda: _silent(_values(1e5, 1e5), multiplicands="float16"),
    "sums of products of q and k": lambda: _silent(_given([[512, 512]], [[256, -256]] * 2, [[1], [3]]), **_NARROW),
    "scaled scores before a softcap": lambda: _silent(_scored(3e4, 3e4, scale=4.0, softcap=2.0), **_NARROW),
    "scores that are stored": lambda: _silent(
        _values(1, 3, bias=np.full((1, 1, 1, 2), 7e4)), stored_scores="float16", exponent="natural"
    ),
    "scores times log2(e)": lambda: _silent(_scored(5e4, 5e4), exponent="base2", **_NARROW),
    "scores times log2(e) that are stored": lambda: _silent(
        _scored(5e4, 5e4), exponent="base2", stored_scores="float16"
    ),
    "sums that are stored before the last addition": lambda: _silent(
        _scored(0, 4e4, bias=np.array([[[[0, 2.8e4]]]]), alibi_slopes=np.full((1, 1, 1, 1), 1e4)),
        stored_scores="float16",
        exponent="natural",
        alibi="distance",
    ),
    "terms of ALiBi": lambda: _silent(_values(1, 3, alibi_slopes=np.full((1, 1, 1, 1), 1e5)), alibi_terms="float16"),
    "a bias that overflows where the scale divides it": lambda: _silent(
        _values(1, 3, scale=2.0**-10, bias=np.full((1, 1, 1, 2), 100.0)), **_NARROW
    ),
    "operands that are scaled before their products": lambda: _silent(
        _given([[2.0**17]], [[2.0**-17]] * 2, [[1], [3]]), scale_on="operands", stored_scores="float16"
    ),
    "operands that descales multiply": lambda: _silent(
        _given([[2.0**10]], [[2.0**-10]] * 2, [[1], [3]], q_descale=np.full((1, 1, 1, 1), 256.0)),
        descale_on="operands",
        operands="float16",
    ),
    "hidden scores of rows that see no key": lambda: _silent(
        _scored(7e4, 7e4, mask=np.zeros((1, 1, 1, 2), dtype=bool)), **_NARROW
    ),
    "outputs divided by their scale that overflow": lambda: _silent(
        _values(2.0**100, 2.0**100, o_scale=_scale(2.0**-70)), output_overflow="saturates"
    ),
    "a scale of the output, or its inverse, that is no normal number": lambda: _silent(
        _values(2.0**-100, 2.0**-100, o_scale=_scale(2.0**-130)), output_overflow="saturates"
    ),
    "weights, row sums and outputs that fit": lambda: _silent(_values(4e4, 4e4), output_accumulation="float16"),
    "a factor of dropout that fits": lambda: _silent(
        _values(1, 3, dropout_p=1 - 2.0**-15 * 1.1, dropout_keep=np.ones((1, 1, 1, 2), dtype=bool)), **_NARROW
    ),
    "sums of weights and values": lambda: _silent(_values(4e4, 4e4), output_accumulation="float16"),
    "the largest row sum": lambda: _silent(_values(*[1.0] * 70_000), row_sum="float16", summation_depth=20),
    "the least row sum": lambda: _silent(_values(1, 3), row_sum="float16", reference_range=9.8, **_ZERO),
    "the largest weight": lambda: _silent(_values(1, 3), probabilities="float16", reference_slack=12.0),
    "a weight that dropout raises": lambda: _silent(
        _scored(7.75, dropout_p=0.97, dropout_keep=np.ones((1, 1, 1, 1), dtype=bool)),
        probabilities="float16",
        reference_range=8.0,
        **_ZERO,
    ),
    "weights of scores that are off, of no maximum": lambda: _silent(
        _given([[1, 1, 1]], [[4096, 2.0**-12, -4096]], [[1]]),
        probabilities="float16",
        reference_range=1.0,
        **_NARROW,
        **_ZERO,
    ),
    "the reciprocal of a row sum above 1 of normalized weights": lambda: _silent(
        _scored(*[8.0] * 21), softmax="float16", normalize="before_product", reference_range=8.0, **_ZERO
    ),
    "the sum that is divided by the row sum": lambda: _silent(_values(4e4, 4e4), softmax="float16"),
    "outputs of parts": lambda: _silent(_values(7e4, -7e4), lse_merges=1, partial_outputs="float16"),
    "differences of outputs of parts": lambda: _silent(
        _values(4e4, -4e4), lse_merges=1, merging="difference", partial_outputs="float16"
    ),
    "row sums of parts that are far below the reference": lambda: _silent(
        _scored(5, -5), lse_merges=1, softmax="float16", reference_range=8.0, **_ZERO
    ),
    "a reference that is near enough": lambda: _silent(_scored(10, 10), reference_range=8.0, **_ZERO),
    "sinks that fit": lambda: _silent(_sunk(7e4), stored_scores="float16", sink_reference="maximum"),
    "a row sum with a sink above its reference": lambda: _silent(_sunk(100)),
    "log-sum-exps that fit": lambda: _silent(_scored(7e4, 7e4), quantity="lse", lse="float16"),
    "score gradients of rows outside the forward domain": lambda: _outside("dq"),
    "log-sum-exps that the backward pass reads": lambda: _silent_of("dq", _scored(7e4, 7e4), lse="float16"),
    "products of cotangents and values": lambda: _silent_of(
        "dq", _values(70, 0, 0, 0), 1000.0, weight_gradients="float16"
    ),
    "quotients of cotangents by row sums": lambda: _silent_of(
        "dq", _values(100, 50), weight_gradients="float16", backward_weights="stored", reference_range=8.0, **_ZERO
    ),
    "delta and the cotangent of the log-sum-exp": lambda: _silent_of(
        "dq", _values(30, 30), 1000.0, 4e4, score_accumulation="float16"
    ),
    "the difference of dP and delta": lambda: _silent_of(
        "dq", _values(50, 50, 50, -50), 1000.0, stored_scores="float16"
    ),
    "score gradients that are scaled before their products": lambda: _silent_of(
        "dq", _values(400, -400, scale=1000.0), score_gradients="float16"
    ),
    "operands of keys that are hidden": lambda: _silent(_turned(2**20, mask=np.array([[[[True, False]]]])), **_NARROW),
    "sums of dq that overflow": lambda: _silent_of(
        "dq", _given([[0]], [[1e4], [1e4]], [[20], [-20]]), gradient_accumulation="float16"
    ),
    "sums of dk that overflow": lambda: _silent_of(
        "dk", _given([[1e4]], [[0], [0]], [[20], [-20]]), gradient_accumulation="float16"
    ),
    "sums of dv that overflow": lambda: _silent_of("dv", _values(0, 0), 2e5, gradient_accumulation="float16"),
    "rows outside the domain that add to dk": lambda: _outside("dk"),
    "queries outside the domain": lambda: _outside("dq"),
    "keys outside the domain": lambda: _outside("dk"),
    "rows outside the domain that add to the gradient of an option": lambda: _outside(
        "dbias", bias=np.zeros((1, 1, 1, 2))
    ),
    "linear attention of which a contract says nothing": lambda: _silent(_linear(1.0, 1.0), lse_merges=1),
    "sums of linear attention": lambda: _silent(_linear(512.0, 256.0), **_NARROW),
    "the least sum of linear weights": lambda: _silent(_linear(2.0**-9, 2.0**-9), softmax="float16"),
    "the inverse of a sum of linear weights": lambda: _silent(_linear(128.0, 128.0), softmax="float16"),
    "values of linear attention that enter products": lambda: _silent(
        _linear(2.0**-4, 2.0**-4, 1e5), multiplicands="float16"
    ),
    "outputs of linear attention": lambda: _silent(_linear(1.0, 1.0, 7e4), output="float16"),
    "the square of a sum of linear weights, inverted": lambda: _silent_of("dq", _linear(8.0, 10.0), **_NARROW),
    "the least square of a sum of linear weights": lambda: _silent_of("dq", _linear(2.0**-5, 2.0**-4), **_NARROW),
    "gradients of a row of linear attention": lambda: _silent_of(
        "dq", _linear(1.0, 1.0), 1e5, weight_gradients="float16"
    ),
    "linear gradients of rows outside the forward domain": lambda: _silent_of(
        "dq", _linear(1.0, 1.0, 7e4), 2.0**-8, output="float16"
    ),
    "sums over rows of linear gradients": lambda: _silent_of(
        "dv", _linear(1.0, 1.0, rows=8), 3e4, partial_outputs="float16"
    ),
    "rows outside the domain that add to linear dk": lambda: _silent_of(
        "dk", _linear(1.0, 1.0, 7e4), 2.0**-8, output="float16"
    ),
}
