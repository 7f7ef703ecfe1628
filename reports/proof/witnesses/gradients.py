"""Witnesses of the roundings of gradients.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

GRADIENTS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("score_accumulation", "late dropout, equal scores", "dq"): ("1 / (1 - p) at the end of dq and dk",),
    ("multiplicands", "late dropout, tiny cotangents, large scale, kept", "dk"): ("underflow of dS on entry, raised",),
    ("gradient_accumulation", "late dropout, tiny cotangents, scaled dS, kept", "dq"): (
        "underflow of sums of dq and dk, raised",
    ),
    ("gradient_accumulation", "late dropout, small cotangents, large scale, kept", "dv"): (
        "underflow of sums of dv, raised",
    ),
    ("softmax", "late dropout, one key, tiny cotangents, flushed", "dv"): ("underflow of dv when it is raised",),
    ("softmax", "a weight that dropout keeps", "dv"): ("the product of dV with 1 / (1 - p)",),
    ("softmax", "a tiny gradient of a value kept", "dv"): ("underflow of the product of dV with 1 / (1 - p)",),
    ("gradients", "another seed", "dv"): ("a gradient's cast",),
    ("gradients", "tiny values, kept", "dk"): ("underflow of a gradient's cast",),
    ("probabilities", "2 pieces, bfloat16, by LSE", "dq"): (
        "keys' own errors in dq",
        "roundings of dq and dk",
    ),
    ("probabilities", "error of log, by LSE", "dq"): ("the row's weights in dq",),
    ("probabilities", "one tile", "dq"): ("delta in dq",),
    ("score_accumulation", "parts by accumulators", "dq"): (
        "scaling in dq and dk",
        "all roundings of the last scale",
    ),
    ("scores", "normalized weights, tiles", "dq"): (but(1, "roundings of the last scale"),),
    ("partial_gradients", "base 2, softcap", "dq"): ("sums of dq and dk",),
    ("probabilities", "one tile", "dk"): ("the error of dS in dq and dk",),
    ("multiplicands", "tiny cotangents, large scale, kept", "dk"): ("underflow of dS on entry",),
    ("gradient_accumulation", "large bias, base 2", "dk"): (
        "underflow of dq's and dk's sums",
        "all underflow of dq's and dk's sums",
    ),
    ("gradient_accumulation", "tiny cotangents, scaled dS, kept", "dq"): (
        but(1, "several underflows of dq's and dk's sums"),
    ),
    ("partial_gradients", "tiny values, kept", "dk"): ("underflow of dq's and dk's stores",),
    ("stored_scores", "tiny cotangents, scaled dS, kept", "dk"): ("underflow of a dS that is scaled early",),
    ("gradient_accumulation", "tiny cotangents, large scale, kept", "dq"): ("a scale that magnifies underflow",),
    ("score_accumulation", "tiny cotangents, toward zero", "dk"): ("underflow of the last scale",),
    ("multiplicands", "tiny queries, flushed", "dk"): (
        "underflow of operands in dq and dk",
        "underflow of operands on entry in dq and dk",
    ),
    ("lse", "2 pieces, bfloat16", "dv"): ("entry of dO",),
    ("stored_scores", "2 pieces, bfloat16, by LSE", "dv"): ("pieces left out of dv",),
    ("probabilities", "tiny values, inner, kept", "dv"): (
        "sums of dv",
        "roundings of dv",
    ),
    ("probabilities", "one tile", "dv"): ("weights in dv",),
    ("several", "many light keys, probabilities", "dv"): ("underflow of weights in dv",),
    ("gradient_accumulation", "tiny cotangents, kept", "dv"): ("underflow of dv's sums",),
    ("gradient_accumulation", "tiny cotangents, grouped, bias, kept", "dv"): (
        but(1, "several underflows of dv's sums"),
    ),
    ("partial_gradients", "tiny cotangents, kept", "dv"): ("underflow of dv's stores",),
    ("multiplicands", "light keys, softcap, flushed", "dv"): ("underflow of dO on entry",),
    ("probabilities", "dropout, weights", "dv"): ("weights of dV that are raised",),
    ("gradient_accumulation", "dropout, weights", "dv"): ("sums of weights that are raised",),
    ("score_accumulation", "late dropout, one key, dL alone", "dbias"): ("1 / (1 - p) at the end of dbias",),
    ("gradient_accumulation", "grouped heads, bias", "dbias"): ("sums of dbias",),
    ("partial_gradients", "bias", "dbias"): ("stores of dbias",),
    ("score_gradients", "bias first", "dbias"): (
        "the cast of dbias",
        "all roundings of dbias",
    ),
    ("probabilities", "tiny bias, flushed", "dbias"): ("the error of dA in dbias",),
    ("score_gradients", "tiny cotangents, grouped, bias, kept", "dbias"): (
        "underflow of dbias",
        "underflow of dA's cast in dbias",
    ),
    ("probabilities", "inner accumulator", "dv"): ("sums in the accumulator of gradients",),
    ("partial_gradients", "parts by accumulators", "dv"): ("stores between partial sums of gradients",),
}
