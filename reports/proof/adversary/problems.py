"""The problems that the adversary attacks: small ones and small layers, whose every number a narrow format holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

#: The format of a stage that is made narrow, and of the numbers of a problem, which it holds.
NARROW = "float16"


def small_problem(
    *,
    seed: int = 0,
    n: int = 5,
    Sq: int = 1,
    Hq: int = 1,
    D: int = 3,
    scale: float = 0.3,
    spread: float = 1.0,
    queries: float = 2.0,
    value: float = 0.0,
    value_spread: float = 0.0,
    value_format: str = NARROW,
    bias: bool = False,
    biases: float = 2.0,
    bias_format: str = NARROW,
    slopes: float | None = None,
    sink: float | None = None,
    dropped: float | None = None,
    dtype: str = "float64",
    **options: Any,
) -> Problem:
    """Make a problem of few numbers of the format NARROW, but for the bias and a value; slopes are not rounded.

    ``sink`` is the sink of every query head.
    V is random, or ``value`` and ``value_spread`` times random. ``dropped`` is the p of dropout, which drops the second
    key and every third one from there.
    """
    rng = np.random.default_rng(seed)

    def drawn(*shape: int, size: float = spread, form: str = NARROW) -> np.ndarray:
        return bits.nearest(rng.standard_normal(shape) * size, form)

    q, k, v = drawn(1, Hq, Sq, D, size=queries), drawn(1, 1, n, D), drawn(1, 1, n, 2)
    if value:
        v = bits.nearest(value + value_spread * v, value_format)
    added = drawn(1, 1, Sq, n, size=biases, form=bias_format) if bias else None
    if sink is not None:
        options["sinks"] = np.full((1, Hq, 1, 1), sink)
    falls = None if slopes is None else np.full((1, 1, 1, 1), slopes)
    if dropped is not None:
        options |= {"dropout_p": dropped, "dropout_keep": np.arange(n)[None, None, None] % 3 != 1}
    return Problem(q=q, k=k, v=v, bias=added, alibi_slopes=falls, scale=scale, dtypes=dtype, **options)


def bilinear(*, matrix: float = 1.0, **given: Any) -> Problem:
    """Make a small problem of a bilinear score, whose matrix W has entries of the size ``matrix``."""
    problem = small_problem(**given)
    W = bits.nearest(np.random.default_rng(3).standard_normal((1, 1, *2 * problem.q.shape[-1:])) * matrix, NARROW)
    return problem.replace(score_weight=W)


def cosine(*, gamma: float = 3.0, **given: Any) -> Problem:
    """Make a small problem of a cosine score."""
    return small_problem(**given).replace(score_gamma=np.full((1, 1, 1, 1), gamma))


def additive(*, width: int = 2, biases: bool = False, **given: Any) -> Problem:
    """Make a small problem of an additive score, with parameters of a narrow format."""
    problem = small_problem(**given)
    rng, D = np.random.default_rng(4), problem.q.shape[-1]
    shapes = {"score_vector": (1, width), "score_key_weight": (width, D), "score_query_weight": (width, D)}
    shapes |= {"score_bias": (1, width)} if biases else {}
    made = {name: bits.nearest(rng.standard_normal((1, 1, *shape)), NARROW) for name, shape in shapes.items()}
    return problem.replace(**made)


def rotary(*, layout: str = "half", D: int = 4, Sq: int = 2, **given: Any) -> Problem:
    """Make a small problem whose queries and keys are turned by their positions."""
    return small_problem(D=D, Sq=Sq, **given).replace(rotary=layout)


def small_layer(
    *,
    seed: int = 0,
    heads: int = 2,
    n: int = 3,
    Sq: int = 2,
    width: int = 2,
    head_width: int = 2,
    inputs: float = 1.0,
    queries: float = 1.0,
    keys: float = 1.0,
    values: float = 1.0,
    outputs: float = 1.0,
    biases: float = 0.0,
    shared: bool = False,
    form: str = NARROW,
    dtype: str = "float64",
    **options: Any,
) -> Problem:
    """Make a layer of few numbers of ``form``: q, k and v with rows of ``width``, and heads of ``head_width``.

    ``queries``, ``keys``, ``values`` and ``outputs`` are the sizes of W_Q, W_K, W_V and W_O; ``biases`` is that of all
    four biases, 0 for none. With ``shared``, all heads have the same keys and values.
    """
    rng = np.random.default_rng(seed)

    def drawn(*shape: int, size: float = inputs) -> np.ndarray:
        return bits.nearest(rng.standard_normal(shape) * size, form)

    q, k, v = drawn(1, 1, Sq, width), drawn(1, 1, n, width), drawn(1, 1, n, width)
    of_keys = 1 if shared else heads
    projections: dict[str, Any] = {
        "query_projection": drawn(1, heads, head_width, width, size=queries),
        "key_projection": drawn(1, of_keys, head_width, width, size=keys),
        "value_projection": drawn(1, of_keys, head_width, width, size=values),
        "output_projection": drawn(1, heads, width, head_width, size=outputs),
    }
    if biases:
        for name, of in (("query", heads), ("key", of_keys), ("value", of_keys)):
            projections[f"{name}_projection_bias"] = drawn(1, of, 1, head_width, size=biases)
        projections["output_projection_bias"] = drawn(1, 1, 1, width, size=biases)
    return Problem(q=q, k=k, v=v, dtypes=dtype, **projections | options)
