"""Witnesses of the roundings of scores, and of those that all products share.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

SCORES: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("score_gradients", "operands cut", "dv"): (
        "bits that are cut, not rounded",
        "cutting on entry to a product",
        "entry of the probabilities to the product",
    ),
    ("score_accumulation", "tiny cotangents, toward zero", "dk"): ("underflow of results that are cut",),
    ("score_accumulation", "tiny scores, kept", "dv"): (
        "all underflow",
        but(1, "underflow of both products and sums"),
        "underflow of a score's sums",
    ),
    ("multiplicands", "tiny values, flushed", "output"): ("results that are flushed",),
    ("stored_scores", "tiny values, flushed on entry", "output"): (
        "flushing on entry to a product",
        "flushing on an exact conversion",
    ),
    ("several", "bfloat16 that flushes", "output"): ("flushing of formats of float32's range",),
    ("output", "light keys, tf32 to float16", "output"): ("formats of as many bits and a smaller range",),
    ("probabilities", "2 pieces, bfloat16, by LSE", "output"): ("formats of the same range and fewer bits",),
    ("partial_gradients", "error of log, float32", "lse"): ("elementary functions of float32",),
    ("softmax", "eager, P dP - P D", "dv"): ("the store of the row sum",),
    ("several", "a row sum of weights that the cast flushes", "lse"): ("a row sum of what a cast only flushes",),
    ("several", "a row sum of weights of two pieces", "lse"): ("pieces that enter a row sum together",),
    ("several", "2 pieces, bfloat16, by LSE", "output"): (
        "what the last piece leaves",
        "products of pieces that are left out",
        "products of pieces, all left out",
    ),
    ("probabilities", "one tile", "output"): ("the cast of the probabilities",),
    ("several", "a light key of a large value, probabilities", "output"): ("underflow of a probability's cast",),
    ("probabilities", "2 keys, cast row sum", "dv"): ("the cast in the row sum",),
    ("row_sum", "2 keys, eager", "dk"): ("the entry of a weight to the row sum",),
    ("several", "pieces one by one, output", "output"): ("a product of pieces is several",),
    ("score_accumulation", "parts by LSE, V = 1", "dv"): (
        "the rounding of a product before its sum",
        "roundings of the scale",
    ),
    ("gradient_accumulation", "depth 3", "dq"): ("a declared depth of summation",),
    ("probabilities", "tiny values, inner, kept", "lse"): ("the inner accumulator's sums",),
    ("score_accumulation", "inner accumulator", "dv"): ("additions to the outer accumulator",),
    ("score_accumulation", "tiny cotangents, toward zero", "dv"): ("sums that are cut one by one",),
    ("scores", "unit 8 -3, D 4", "output"): (but(1, "the cut of a sum on a matrix unit"),),
    ("several", "sums of 2 on a unit of 1, 0 bits", "lse"): ("the cuts of single sums",),
    ("gradient_accumulation", "matrix unit, fewer bits", "dk"): ("bits below the grid of a block",),
    ("several", "sums of 2 on a unit of 4, 0 bits", "lse"): ("alignment to the largest",),
    ("several", "sums of 2 on a unit of 4, 2 bits", "lse"): ("the cut of a block's sum",),
    ("several", "products", "lse"): ("products rounded before sums",),
    ("several", "tiny products", "lse"): ("underflow of products rounded before sums",),
    ("several", "products of integers", "lse"): ("the bits of products rounded before sums",),
    ("several", "inner accumulator, tiny scores", "lse"): ("the underflow of an inner accumulator",),
    ("score_accumulation", "scale 2.0, operands", "dv"): (but(2, "powers of 2 have no exact root"),),
    ("stored_scores", "roots of the scale", "dv"): (
        "storing a scaled operand",
        but(1, "scaling both operands"),
        "scaling both operands",
    ),
    ("score_accumulation", "roots of the scale", "dv"): ("roundings of the operand's factor",),
    ("several", "tiny scaled query stored scores query 0.0004883", "lse"): (
        "underflow of a scaled operand",
        "underflow of a scaled operand before it is unscaled",
        "underflow of operands that are scaled",
        "underflow of operands times the other operand",
    ),
    ("several", "tiny scaled query multiplicands query 0.0004883", "lse"): (
        "underflow on entry of a scaled operand",
        "underflow on entry, before it is unscaled",
        "underflow of operands on entry",
    ),
    ("score_accumulation", "tiny queries, softcap folded, kept", "dv"): (
        "unscaling by a softcap",
        "underflow of a scaled score's sums",
    ),
    ("score_gradients", "operands cut", "lse"): (
        but(1, "entry of both operands of a score"),
        "entry of both operands of a score",
        "exact scores have operands that enter exactly",
    ),
    ("stored_scores", "2 pieces, bfloat16, by LSE", "lse"): ("pieces left out of a score",),
    ("score_accumulation", "parts by LSE, V = 1", "lse"): ("sums of a score",),
    ("stored_scores", "roots of the scale", "output"): ("exact scores have operands that are not scaled inexactly",),
    ("partial_gradients", "error of log, float32", "output"): ("exact scores fit the accumulator",),
    ("stored_scores", "base 2", "dv"): (
        "storing a score",
        "the scaled score's rounding",
    ),
    ("stored_scores", "tiny scores, kept", "dv"): (
        "underflow of storing a score",
        "the scaled score's underflow",
    ),
    ("score_accumulation", "parts by accumulators", "output"): (but(1, "roundings of the scale"),),
    ("several", "tiny scores, power of 2", "dv"): (
        "underflow by a scale of a power of 2",
        "underflow of a scaled exact score that is stored",
    ),
    ("stored_scores", "a sink beside a key, base 2", "lse"): ("a sink rounded to the format of scores",),
    ("stored_scores", "a sink that is moved", "lse"): ("the sum that moves a sink",),
    ("stored_scores", "bias rounded", "lse"): ("a bias rounded to the format of scores",),
    ("stored_scores", "bias and softcap", "lse"): (
        "the score over the softcap",
        but(1, "roundings after tanh"),
        "roundings after tanh",
    ),
    ("several", "a slope nearby, float64 sums", "lse"): ("the largest slope nearby",),
    ("stored_scores", "error of tanh, eager", "dv"): ("the error of tanh",),
    ("several", "softcap folded, tiny stored scores", "lse"): ("underflow of tanh",),
    ("several", "a score beyond the softcap", "dv"): ("the softcap itself, rounded",),
    ("scores", "bias first", "dv"): (but(6, "a bias that is divided by the scale"),),
    ("score_accumulation", "bias first", "dv"): (but(5, "a bias that is divided by the scale"),),
    ("score_accumulation", "tiny bias, bias first, kept", "dv"): ("a bias that is divided by the scale",),
    ("score_accumulation", "tiny bias, bias first, kept", "lse"): ("underflow of a bias that is divided by the scale",),
    ("several", "tiny bias first, large scale score accumulation", "lse"): (
        "underflow of a bias that a large scale divides",
    ),
    ("stored_scores", "bias and softcap", "dv"): ("the sum with a bias",),
    ("score_accumulation", "ALiBi alone, a light key", "output"): (
        "a slope that is rounded as it is loaded",
        "the product of slope and distance",
    ),
    ("score_accumulation", "ALiBi first", "output"): ("a slope that is divided by the scale",),
    ("stored_scores", "ALiBi from the last key", "lse"): (
        "the product of slope and distance as it is stored",
        "the sum with ALiBi",
        "sums that are moved",
        "products of keys counted from one of them",
    ),
    ("stored_scores", "ALiBi and bias", "output"): ("the sum of two of score, bias and ALiBi",),
    ("score_accumulation", "ALiBi alone, tiny slopes", "lse"): ("underflow of a slope, a quotient and a product",),
    ("lse", "ALiBi from the first key", "lse"): (
        "what all scores of a row may differ by",
        "the store of a log-sum-exp that is moved",
    ),
    ("softmax", "ALiBi, tiny slopes from the first key", "dv"): ("the sum that moves a log-sum-exp",),
    ("lse", "ALiBi, tiny slopes from the first key", "lse"): (
        "the log-sum-exp that is moved",
        "an error that is moved",
    ),
    ("several", "ALiBi in bfloat16, a far key", "lse"): (
        but(2, "slope, distance and product in a format of their own"),
    ),
    ("alibi_terms", "ALiBi alone, a light key", "output"): (
        but(1, "slope, distance and product in a format of their own"),
        "slope, distance and product in a format of their own",
    ),
    ("alibi_terms", "ALiBi alone, tiny slopes", "lse"): ("underflows of a slope and a product in their own format",),
    ("score_accumulation", "large scores, one key, by LSE", "output"): (but(1, "both scores of a key"),),
    ("score_accumulation", "large scores, softcap, one key, by LSE", "output"): (
        "what two scores under a softcap do not share",
    ),
}
