"""Witnesses of the roundings of gradients of scores.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, both, but

SCORE_GRADIENTS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("weight_gradients", "dropout, eager, weights", "dk"): ("dP in delta",),
    ("softmax", "a light key, flushed, by LSE", "dk"): ("underflow of P in the most of dA",),
    ("softmax", "V = 1", "dk"): ("the last roundings of an output of equal values in delta",),
    ("row_sum", "V = 1", "dk"): ("the row sum in a mean of products",),
    ("stored_scores", "three uncertain scores, eager, delta of O", "dk"): (
        "the largest weight less P in the most of dA",
    ),
    ("lse", "three uncertain scores, delta of P", "dk"): (
        "the largest weight with the error of dP - D in the most of dA",
        "roundings beside the largest share of a weight",
        "the change of weights in delta",
        "roundings of weights in a mean of products",
    ),
    ("stored_scores", "less uncertain scores", "dk"): ("roundings of dA from the largest weight",),
    ("lse", "less uncertain scores", "dv"): ("roundings by the LSE beside the share of a weight",),
    ("multiplicands", "three uncertain scores", "dv"): ("scores that are computed again beside the share of a weight",),
    ("softmax", "three uncertain scores", "dv"): ("the largest share of a weight in its change",),
    ("multiplicands", "two uncertain scores, eager", "dv"): ("the least share of a weight in its change",),
    ("row_sum", "two uncertain scores, eager", "dv"): ("roundings beside the least share of a weight",),
    ("softmax", "less uncertain scores, eager", "dv"): (
        "roundings of a division beside the share of a stored weight",
        but(1, "roundings of a division beside the share of a stored weight"),
    ),
    ("row_sum", "less uncertain scores, eager", "dv"): ("the row sum beside the share of a stored weight",),
    ("probabilities", "less uncertain scores, eager", "dv"): ("the cast beside the share of a weight",),
    ("output_accumulation", "two uncertain scores, eager, delta of O", "dk"): ("a mean of products in delta",),
    ("score_accumulation", "less uncertain scores, eager, delta of O, output in bfloat16", "dk"): (
        "the last roundings of the output with a mean of products",
    ),
    ("score_accumulation", "less uncertain scores, eager, delta of O, output_accumulation in bfloat16", "dk"): (
        "roundings of the numerator in a mean of products",
    ),
    ("row_sum", "differentiated product in float32, values alike", "dk"): (
        "what is left of references",
        "delta's own factors that are left of a reference",
        "the row sum that is left of a reference",
        "what a key leaves of a reference",
    ),
    ("score_accumulation", "differentiated product in float32, no maximum", "dk"): (
        "underflow of dA",
        "underflow of dA of weights that are above their row sum",
        "a weight that is above its row sum",
    ),
    ("several", "tiny bias, score accumulation and stored scores, two keys", "dbias"): ("one rounding of dA",),
    ("score_accumulation", "late dropout, one key", "dq"): ("delta times 1 - p",),
    ("score_accumulation", "late dropout, dL alone, delta of P", "dk"): ("dL times 1 - p",),
    ("score_accumulation", "late dropout, one key, tiny cotangents, kept", "dq"): ("underflow of dA, raised",),
    ("score_gradients", "late dropout, tiny cotangents, large scale, kept", "dk"): ("underflow of dS, raised",),
    ("score_gradients", "late dropout, tiny cotangents, scaled dS, kept", "dk"): (
        "underflow of a dS that is scaled early, raised",
    ),
    ("row_sum", "dL alone, eager", "dk"): (
        "the most of the weights of dL",
        "the weights of dL",
    ),
    ("scores", "normalized weights, tiles", "dq"): ("both roundings of dA",),
    ("stored_scores", "scaled dS", "dq"): (
        "storing dA",
        "roundings of dA",
        "the store of dS",
    ),
    ("stored_scores", "tiny cotangents, scaled dS, kept", "dk"): ("underflow of storing dA",),
    ("stored_scores", "eager, P dP - P D", "dk"): (
        "P dP less P D",
        "the stores of P dP less P D",
        "last underflow of dA",
    ),
    ("probabilities", "error of log, by LSE", "dk"): ("the error of P in dA",),
    ("probabilities", "one tile", "dk"): (
        "the error of dP - D in dA",
        "the output in delta",
        "the other terms of delta",
    ),
    ("several", "many light keys, cast row sum, softmax", "dq"): (
        "underflow of P in dA",
        "underflows of recomputed weights",
    ),
    ("probabilities", "tiny bias, flushed", "dbias"): (
        "a weight between its ends in the most of dA",
        "the most of dA is below its error",
    ),
    ("probabilities", "error of tanh, eager", "dq"): ("a weight stored, its error",),
    ("softmax", "eager, P dP - P D", "dv"): (
        but(1, "roundings of a stored weight's division"),
        "roundings of a stored weight's division",
    ),
    ("probabilities", "error of tanh, eager", "dv"): ("the row sum of stored weights",),
    ("probabilities", "tiny values, inner, kept", "dv"): (
        "the LSE of recomputed weights",
        "recomputed weights",
        "own and common errors of P together",
    ),
    ("probabilities", "one tile", "dv"): ("the cast of weights before the product with dO",),
    ("several", "many light keys, probabilities", "dv"): (
        "underflow of the cast of weights before the product with dO",
    ),
    ("probabilities", "cast P in dS", "dq"): ("the cast of weights that make dS",),
    ("probabilities", "row sum of the cast", "dk"): ("the weights' part of delta",),
    ("lse", "light keys, tf32 to float16", "dq"): ("the last roundings of the output in delta",),
    ("softmax", "tiny values, flushed", "dq"): ("the last underflow of the output in delta",),
    ("score_accumulation", "parts by LSE, V = 1", "dk"): ("delta's sum",),
    ("row_sum", "eager, cast P in dS", "dk"): ("a defect of stored weights",),
    ("softmax", "eager, V = 1", "dk"): (
        "roundings of stored weights in delta",
        but(1, "roundings of stored weights in delta"),
    ),
    ("probabilities", "eager, cast P in dS", "dk"): (
        "the cast of stored weights in delta",
        "the defect of weights in delta",
        "the weights in delta",
    ),
    ("lse", "delta of P", "dq"): ("the LSE in the defect of recomputed weights",),
    ("softmax", "3 keys, delta of P", "dk"): ("the weights in their defect",),
    ("score_accumulation", "eager, V = 1", "dk"): ("delta's sum over keys",),
    ("several", "a very light key of a large value, eager", "dk"): ("underflow of weights in delta's sum",),
    ("probabilities", "error of tanh, eager", "dk"): (
        "the first order of the softcap's slope",
        "the score in the slope",
        "the error of the softcap's slope with dA",
    ),
    ("probabilities", "softcap", "dk"): ("dA's error after the slope",),
    ("score_gradients", "light keys, kept", "dk"): ("the cast of dS",),
    ("score_gradients", "light keys, tiny cotangents, kept", "dk"): (
        "underflow of dS",
        "underflow of dS's cast",
    ),
    ("stored_scores", "large cotangents, scaled slope, tiny scale, kept", "dk"): (
        "underflow of a scaled slope",
        "underflow of dS times a scaled slope",
    ),
    ("probabilities", "2 pieces, bfloat16, by LSE", "dq"): ("the row's weights in dS",),
    ("lse", "probabilities cast twice", "dq"): (both("entry of cotangents to dP", "entry of values to dP"),),
    ("gradient_accumulation", "large scores, base 2, folded", "dk"): ("sums of dP",),
    ("gradient_accumulation", "tiny cotangents, grouped, bias, kept", "dbias"): ("underflow of dP's sums",),
    ("gradient_accumulation", "differentiated product in float32, no maximum", "dk"): (
        "underflow of dP's sums times l",
    ),
    ("weight_gradients", "differentiated product, small dP", "dk"): ("underflow of dP that l multiplies",),
    ("weight_gradients", "rotary, interleaved, eager", "dk"): ("storing dP",),
    ("weight_gradients", "tiny values, by LSE, flushed", "dk"): ("underflow of storing dP",),
    ("weight_gradients", "tiny values, by LSE, kept", "dk"): ("underflow of storing dP, raised",),
    ("weight_gradients", "dropout, by LSE, weights", "dk"): ("1 / (1 - p) in the format of dP",),
    ("softmax", "a probability that dropout keeps", "dk"): ("1 / (1 - p) of dP in the format of the softmax",),
    ("weight_gradients", "differentiated product", "dv"): ("the cast of dO / l",),
    ("weight_gradients", "differentiated product, tiny cotangents", "dv"): (
        "underflow of the cast of dO / l",
        "what underflows in dO / l meets weights that are l times as large",
    ),
    ("weight_gradients", "differentiated product, large scores", "dv"): ("the reference in the largest row sum",),
    ("softmax", "differentiated product in float32, tiny cotangents", "dv"): ("underflow of dO / l",),
    ("multiplicands", "differentiated product in float32, cotangents that underflow", "dv"): (
        "underflow of dO / l on entry",
    ),
    ("softmax", "differentiated product in float32, many small values, dropout", "dk"): ("underflow of D / l, raised",),
    ("weight_gradients", "differentiated product, subnormal dP, dropout", "dk"): (
        "underflow of dP that is multiplied by l, raised",
    ),
    ("softmax", "differentiated product in float32, small values", "dk"): (
        "underflow of D / l",
        "underflow of D / l that is left of a reference",
    ),
    ("softmax", "differentiated product in float32, small cotangents", "dv"): ("what underflows in dO / l, times l",),
    ("softmax", "differentiated product in float32, values alike", "dk"): (
        "roundings of dO / l",
        "roundings of the quotient dO / l",
        but(1, "roundings of the quotient dO / l"),
        "roundings of an output that are left of a reference",
        "last roundings of an output that are left of a reference",
    ),
    ("weight_gradients", "differentiated product in float32, values alike", "dk"): (
        "errors of dP that are left of a reference",
        "all keys of a run",
        "keys before the largest of a run",
        "keys after the largest of a run",
    ),
    ("several", "differentiated product in float32, tf32", "dk"): ("casts of weights that are left of a reference",),
    ("several", "differentiated product in float32, tf32, row sum of the cast", "dk"): (
        "casts of weights in a row sum that are left of a reference",
    ),
    ("score_accumulation", "differentiated product in float32, values of both signs", "dk"): (
        "sums that are left of a reference",
        "keys in sums that are left of a reference",
        "dP in sums that are left of a reference",
    ),
    ("stored_scores", "differentiated product in float32, values of both signs", "dk"): (
        "stores that are left of a reference",
    ),
    ("score_accumulation", "differentiated product in float32, dL alone", "dk"): (
        "dL in what is left of a reference",
        "sums of gradients that are left of a reference",
        "delta in sums that are left of a reference",
    ),
    ("softmax", "differentiated product in float32, dL alone", "dk"): (
        "roundings of D / l that are left of a reference",
        "the division of D by l that is left of a reference",
    ),
    ("output_accumulation", "differentiated product in float32, values alike", "dk"): (
        "products of weights with values that are left of a reference",
        "sums of weighted values that are left of a reference",
    ),
    ("score_accumulation", "differentiated product in float32, many columns", "dk"): (
        "delta's sum that is left of a reference",
        "columns in delta's sum that are left of a reference",
    ),
    ("multiplicands", "differentiated product in float32, subnormal values", "dk"): (
        "underflow on entry that is left of a reference",
        "underflow of values on entry that is left of a reference",
    ),
    ("multiplicands", "differentiated product in float32, subnormal values, dropout", "dk"): (
        "underflow on entry that is left of a reference, raised",
    ),
    ("multiplicands", "differentiated product in float32, light keys", "dk"): (
        "underflow of weights that is left of a reference",
        "underflow of casts of weights that is left of a reference",
        "a cast that underflows",
    ),
    ("output_accumulation", "differentiated product in float32, tiny values", "dk"): (
        "underflow of weighted values that is left of a reference",
        "underflow that is left of a reference",
    ),
    ("output_accumulation", "differentiated product in float32, tiny values, dropout", "dk"): (
        "underflow of weighted values that is left of a reference, raised",
    ),
    ("stored_scores", "differentiated product in float32, small cotangents", "dk"): (
        "underflow of gradients that is left of a reference",
        "underflow of stored gradients that is left of a reference",
    ),
    ("stored_scores", "differentiated product in float32, small cotangents, dropout", "dk"): (
        "underflow of gradients that is left of a reference, raised",
    ),
}
