"""Witnesses of the roundings of linear attention.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

LINEAR: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("operands", "linear exponentials", "lse"): (
        "features of queries",
        "features of keys",
    ),
    ("operands", "linear", "lse"): ("N in the log-sum-exp",),
    ("operands", "linear light key, flushed", "output"): ("features in sums over linear weights",),
    ("softmax", "linear tiny LSE, base 2", "lse"): (
        "roundings of epsilon and of the sum with it",
        but(1, "roundings of epsilon and of the sum with it"),
        "the store of N",
        "a linear weight in the softmax's format",
    ),
    ("multiplicands", "linear keys", "lse"): (
        "entry of features",
        but(1, "entry of features"),
    ),
    ("multiplicands", "linear keys", "output"): (
        "entry of values to states",
        "all entries to sums over linear weights",
        "the least N",
    ),
    ("stored_scores", "linear", "lse"): (
        "scores before sums over keys",
        "a linear score that is stored",
    ),
    ("partial_outputs", "linear keys", "output"): (
        "states before sums over columns",
        "the rounding of a state that waits",
        "states that wait",
    ),
    ("score_accumulation", "linear large values", "output"): (
        but(1, "underflows of linear scores' products and sums"),
        "underflow of linear scores' sums",
    ),
    ("score_accumulation", "linear light key, flushed", "output"): ("underflow in the format of linear scores' sums",),
    ("stored_scores", "linear light key, flushed", "output"): (
        "underflow of linear scores that are stored",
        "the numerator of linear attention",
    ),
    ("probabilities", "linear light key, flushed", "output"): ("underflow of the cast of linear weights",),
    ("softmax", "linear large values", "output"): ("underflow of linear weights",),
    ("multiplicands", "linear tiny queries", "lse"): ("underflow of features of queries on entry",),
    ("multiplicands", "linear tiny keys", "lse"): ("underflow of features of keys on entry",),
    ("multiplicands", "linear tiny values", "output"): ("underflow of values on entry to states",),
    ("output", "linear", "output"): (
        "last roundings of a linear output",
        "the cast of a linear output",
    ),
    ("output", "linear large sum, flushed", "output"): (
        "underflow of the cast of a linear output",
        "underflow of last operations on a linear output",
    ),
    ("partial_outputs", "linear tiny states, flushed", "output"): (
        "underflow of states",
        "underflow of a state that waits",
    ),
    ("multiplicands", "linear tiny states, flushed", "output"): ("underflow of a state on entry",),
    ("partial_outputs", "linear, states, pieces", "lse"): (
        "pieces left out of states",
        "pieces left out of products with states",
        "entry of states",
    ),
    ("probabilities", "linear exponentials", "output"): ("the cast of linear weights",),
    ("multiplicands", "linear", "output"): ("errors of both sums of a linear output",),
    ("lse", "linear, states, pieces", "output"): ("roundings of sums over linear weights",),
    ("output_accumulation", "linear large queries", "output"): ("underflow of sums of states",),
    ("output_accumulation", "linear tiny states, flushed", "output"): ("underflow in the format of states' sums",),
    ("output_accumulation", "linear small products", "output"): ("underflow of last sums over linear weights",),
    ("row_sum", "linear loud key, by key", "output"): (
        "the denominator of linear attention",
        "states that are added to one accumulator",
    ),
    ("row_sum", "linear loud key, by key", "lse"): ("N in the format of row sums",),
    ("row_sum", "linear keys", "output"): ("keys of a long tile in one accumulator",),
    ("output_accumulation", "linear loud key, N a column", "lse"): ("N as a column of the values",),
    ("softmax", "linear large sum, flushed", "output"): (
        "underflow of a quotient by N",
        "underflow of a sum that is divided by N",
    ),
    ("softmax", "linear tiny states, flushed", "output"): ("underflow of a quotient by a small N",),
    ("softmax", "linear light key, normalized first", "output"): ("underflow of a linear weight that is divided by N",),
    ("probabilities", "linear light key, normalized first", "output"): ("underflow of the cast of a quotient by N",),
    ("output", "linear LSE of some size, log", "lse"): (
        "the logarithm of N",
        "an error of the logarithm near N = 1",
    ),
    ("output", "linear exponentials, log", "lse"): ("an error of the logarithm that grows with it",),
    ("softmax", "linear tiny epsilon", "lse"): (
        "roundings of the logarithm of N",
        but(1, "roundings of the logarithm of N"),
    ),
    ("softmax", "linear exponentials, base 2", "lse"): (but(2, "roundings of the logarithm of N"),),
    ("score_accumulation", "linear, base 2", "lse"): ("ln 2 in the logarithm of N",),
    ("lse", "linear", "lse"): ("the cast of the logarithm of N",),
    ("lse", "linear tiny LSE, flushed", "lse"): ("underflow of the cast of the logarithm of N",),
    ("partial_outputs", "linear keys", "lse"): ("the logarithm's slope at the least N",),
    ("lse", "linear LSE of some size, log", "lse"): ("the error of N in the cast of its logarithm",),
}
