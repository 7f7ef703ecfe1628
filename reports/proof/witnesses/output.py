"""Witnesses of the roundings of outputs.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

OUTPUT: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("softmax", "two keys, V = 1, probabilities times 100.3", "output"): (
        "the product of a probability and its scale",
        "the division by the scale of probabilities",
        but(1, "the division by the scale of probabilities"),
    ),
    ("softmax", "probabilities times 2^8 in the exponent", "output"): ("a scale of probabilities in the exponent",),
    ("softmax", "two keys, V = 1, an output divided by its scale", "output"): (
        "the division by the scale of the output",
        but(1, "the division by the scale of the output"),
    ),
    ("softmax", "a tiny output divided by a large scale", "output"): ("underflow of the output divided by its scale",),
    ("several", "an output that saturates", "output"): ("saturation of the output",),
    ("several", "a probability that saturates", "output"): ("saturation of probabilities",),
    ("probabilities", "a probability that dropout keeps", "output"): ("products of probabilities that are normalized",),
    ("softmax", "a weight that dropout keeps", "output"): (
        "the rounding of p",
        "roundings of 1 / (1 - p)",
    ),
    ("score_accumulation", "late dropout, one key", "dq"): ("the format of what is finished when it is raised",),
    ("several", "a low key that dropout keeps", "output"): (
        "dropout raises what underflows in a narrowed accumulator",
    ),
    ("several", "low keys in many parts", "output"): ("parts of a row that are narrowed",),
    ("several", "a cast that dropout repeats", "output"): ("a second cast, relative to the first",),
    ("softmax", "dropout, weights", "output"): ("the product with 1 / (1 - p)",),
    ("probabilities", "dropout, row sum of the cast", "output"): ("casts of what the row sum has cast",),
    ("softmax", "dropout, by LSE, weights", "output"): ("the product with 1 / (1 - p) of weights exp(s - LSE)",),
    ("probabilities", "dropout, weights", "output"): ("dropout's factor in roundings of the numerator",),
    ("probabilities", "one tile", "output"): (
        "the probabilities' cast in the numerator",
        "roundings of the numerator alone",
        "terms of the numerator beside the weights",
    ),
    ("lse", "2 pieces, bfloat16", "output"): ("entry of the values",),
    ("several", "2 pieces, bfloat16", "output"): ("pieces left out of the output",),
    ("softmax", "eager, P dP - P D", "output"): (
        "roundings of normalizing before the product",
        but(1, "roundings of normalizing before the product"),
    ),
    ("probabilities", "inner accumulator", "output"): ("sums of the output",),
    ("output_accumulation", "four queries", "output"): ("rescalings of the output",),
    ("output_accumulation", "ring by difference, light keys", "output"): (
        "merges by a difference",
        "the range of what is subtracted",
    ),
    ("softmax", "normalized after every tile, falling scores", "output"): (
        "roundings of normalizing after every tile",
        but(1, "roundings of normalizing after every tile"),
    ),
    ("output_accumulation", "normalized after every tile, falling scores", "output"): ("rescaling after every tile",),
    ("partial_outputs", "ring", "output"): ("storing partial outputs",),
    ("several", "a light key of a large value, probabilities", "output"): ("underflow of the probabilities' cast",),
    ("output_accumulation", "tiny values, flushed", "output"): ("underflow of the output's sums",),
    ("output_accumulation", "tiny values, eager, kept", "output"): (
        but(1, "several underflows of each of the output's sums"),
    ),
    ("multiplicands", "tiny values, flushed", "output"): ("underflow of values on entry",),
    ("several", "a low maximum, no reference", "output"): ("underflow of the weights in the numerator",),
    ("several", "tiny values, one key, merged, partial", "output"): ("underflow of partial outputs",),
    ("several", "tinier values, one key, merged, partial", "output"): (
        "underflow of partial outputs in the hull",
        "underflow outside the hull",
    ),
    ("row_sum", "eager, cast P in dS", "output"): ("roundings of the row sum alone",),
    ("softmax", "V = 8 and little more", "output"): (
        "the accumulator narrowed to the softmax",
        but(1, "roundings of the normalization"),
    ),
    ("partial_gradients", "light keys, tf32 to float16", "output"): ("roundings of the normalization",),
    ("output", "another seed", "output"): ("the output's cast",),
    ("stored_scores", "light keys, tiny cotangents, kept", "output"): (
        "a row sum that falls below the output's",
        "the denominator",
    ),
    ("softmax", "a low key of tiny value, no reference", "output"): (
        "underflow of the accumulator narrowed to the softmax",
    ),
    ("softmax", "tiny values, flushed", "output"): ("last underflow of the output",),
    ("output", "tiny values, kept", "output"): ("underflow of the output's cast",),
    ("probabilities", "operands cut", "output"): ("weights that move the output",),
    ("lse", "light keys, tf32 to float16", "output"): ("last roundings of the output",),
    ("probabilities", "2 pieces, bfloat16, by LSE", "output"): (
        "the cast of weights exp(s - LSE)",
        "roundings of terms with weights exp(s - LSE)",
    ),
    ("several", "2 pieces, bfloat16, by LSE", "output"): (
        "values with weights exp(s - LSE)",
        "pieces with weights exp(s - LSE)",
    ),
    ("output_accumulation", "weights exp(s - LSE)", "output"): ("sums with weights exp(s - LSE)",),
    ("partial_gradients", "2 pieces, bfloat16, by LSE", "output"): ("the error of weights exp(s - LSE)",),
    ("several", "a light key of a large value, by LSE, probabilities", "output"): (
        "underflow of the cast of weights exp(s - LSE)",
    ),
    ("several", "a light key, flushed, by LSE", "output"): ("underflow of weights exp(s - LSE)",),
    ("output_accumulation", "tiny values, by LSE, kept", "output"): (
        "underflow of sums with weights exp(s - LSE)",
        but(1, "several underflows of sums with weights exp(s - LSE)"),
    ),
    ("multiplicands", "tiny values, by LSE, flushed", "output"): ("underflow of values with weights exp(s - LSE)",),
    ("probabilities", "a larger error of log, by LSE", "output"): ("the LSE and the weights together",),
    ("probabilities", "error of log, by LSE", "output"): ("the LSE's error in the output",),
    ("output", "weights exp(s - LSE)", "output"): ("the cast of an output by LSE",),
    ("output", "tiny values, by LSE, kept", "output"): ("underflow of the cast of an output by LSE",),
    ("probabilities", "coarse exponentials, one key, dropout", "output"): (
        "roundings of the numerator in a mean",
        "roundings in a mean are raised",
    ),
    ("row_sum", "coarse exponentials, V = 1", "output"): ("roundings of the row sum in a mean",),
    ("several", "a low maximum, no reference", "dk"): ("underflow of weights in a mean",),
    ("multiplicands", "coarse exponentials, one key, tiny values, flushed", "output"): (
        "underflow of values on entry to a mean",
    ),
    ("output_accumulation", "coarse exponentials, a low key of tiny value, no reference", "output"): (
        "underflow of a mean",
        "the row sum that divides the underflow of a mean",
    ),
    ("probabilities", "large stored scores, two keys, V = 1, by LSE", "output"): (
        "roundings of a mean of weights exp(s - LSE)",
    ),
    ("several", "coarse exponentials, V = 1, by LSE", "output"): ("weights exp(s - LSE) that are no shares",),
    ("output_accumulation", "large stored scores, one key, tiny values, by LSE, flushed", "output"): (
        "underflow of a mean of weights exp(s - LSE)",
    ),
    ("multiplicands", "large stored scores, one key, tiny values, by LSE, flushed", "output"): (
        "underflow of values on entry to a mean of weights exp(s - LSE)",
    ),
    ("several", "coarse exponentials", "output"): ("weights at the upper ends of their intervals",),
    ("several", "coarse exponentials, three keys, delta of P", "dk"): ("errors of what a mean is made of",),
    ("stored_scores", "two large scores, eager", "dv"): (
        "other weights in the least share",
        "other weights in the largest share",
    ),
}
