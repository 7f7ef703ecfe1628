"""Witnesses of the roundings of weights, row sums and log-sum-exps.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

WEIGHTS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("several", "4 rising scores, normalized, softmax", "output"): (
        "all rescalings",
        "rescalings of a weight",
        "row sum and weights computed apart",
        "the row sum's weights, computed apart",
        "the row sum's own weights, where it rises",
    ),
    ("stored_scores", "a sink that is a tile of its own", "lse"): ("a tile of the sink alone",),
    ("softmax", "a sink far above a key, by the key, base 2", "lse"): (
        "a sink above the keys that are its reference",
        "a reference that leaves out the sink",
        "the reference below a sink",
    ),
    ("softmax", "one key, normalized, no maximum", "output"): ("weights computed again from one reference",),
    ("probabilities", "error of exp, 2 keys", "dv"): (
        "a rescaled weight's own exponential",
        "the exponential of exp(s - LSE)",
    ),
    ("probabilities", "tiny values, inner, kept", "lse"): ("the score's error in a weight",),
    ("softmax", "one tile", "output"): ("the difference of score and maximum",),
    ("score_accumulation", "2 large scores, scale 1, folded", "output"): ("the base-2 maximum",),
    ("lse", "parts by LSE", "lse"): ("the log-sum-exps of parts",),
    ("probabilities", "error of exp, eager", "lse"): (
        "the exponential of a weight that is computed once",
        "the error of exp",
    ),
    ("softmax", "eager, P dP - P D", "dv"): ("the rounding of an exponential",),
    ("probabilities", "tiny values, inner, kept", "dv"): ("the score in exp(s - LSE)",),
    ("partial_gradients", "light keys, tf32 to float16", "dv"): ("the difference of score and LSE",),
    ("score_accumulation", "weights exp(s - LSE), base 2", "output"): ("base 2 of the backward weights",),
    ("lse", "ring", "lse"): ("the row sum in a part's log-sum-exp",),
    ("lse", "parts by LSE", "output"): ("storing a part's log-sum-exp",),
    ("several", "error of log, merged", "output"): ("the logarithm of a part's row sum",),
    ("several", "many light keys, cast row sum, softmax", "output"): ("exact differences fit the format",),
    ("several", "a score that may be far lower, no reference", "output"): ("errors of scores in the least row sum",),
    ("row_sum", "ring by difference, an answer near 0", "output"): (
        "row sums of merges by a difference",
        "roundings of row sums that are merged by a difference",
    ),
    ("probabilities", "2 keys, cast row sum", "dv"): ("the cast of a weight in the row sum",),
    ("row_sum", "eager, cast P in dS", "dq"): ("additions of the row sum",),
    ("row_sum", "2 keys, eager", "dk"): (
        "one addition of the row sum",
        "the entry to the row sum, where it falls",
    ),
    ("row_sum", "eager, cast P in dS", "dk"): ("the row sum's additions, where it falls",),
    ("softmax", "eager, V = 1", "dk"): ("the store of the row sum, where it falls",),
    ("stored_scores", "light keys, tiny cotangents, kept", "output"): ("a fall of the weight",),
    ("several", "a low maximum, no reference", "output"): (
        "the reference's distance",
        "the reference's error in the inverse of a row sum",
        "underflow of a weight",
    ),
    ("row_sum", "eager, cast P in dS", "output"): ("the row sum's additions, where it rises",),
    ("row_sum", "2 keys, eager", "output"): ("the entry to the row sum, where it rises",),
    ("softmax", "V = 8 and little more", "output"): ("the store of the row sum, where it rises",),
    ("several", "many keys that flush, cast row sum", "lse"): (
        "underflow of the cast in the row sum",
        "underflow of the row sum",
        "as many underflows as keys",
    ),
    ("stored_scores", "grouped heads", "lse"): ("weights that rise",),
    ("probabilities", "error of log, by LSE", "lse"): ("the error of log",),
    ("softmax", "2 keys, base 2", "lse"): (
        "the rounding of the logarithm",
        but(1, "roundings of the LSE"),
    ),
    ("partial_gradients", "light keys, tf32 to float16", "lse"): ("roundings of the LSE",),
    ("lse", "base 2, bias", "dv"): ("the LSE's store",),
    ("score_accumulation", "base 2 inside the exponent", "lse"): ("ln 2 in the LSE",),
    ("score_accumulation", "scores of 0, base 2", "lse"): ("the row sum in the LSE of base 2",),
    ("score_accumulation", "large scores, base 2", "lse"): ("the reference in the LSE of base 2",),
    ("lse", "ALiBi from the first key", "lse"): ("the error of moving a log-sum-exp",),
    ("lse", "ALiBi alone, from the first key", "lse"): ("the LSE before it is moved",),
    ("lse", "tiny scores, one key, kept", "lse"): ("underflow of the LSE's store",),
    ("several", "many keys that flush, cast row sum", "dk"): ("underflow of the row sum in the LSE of weights",),
    ("several", "coarse exponentials", "output"): (
        "the largest that a weight may be",
        "the least that a weight may be",
    ),
    ("row_sum", "coarse exponentials, V = 1", "output"): ("roundings of the row sum alone, whatever scores are",),
    ("output_accumulation", "coarse exponentials, a low key of tiny value, no reference", "output"): (
        "a row sum as small as its reference allows",
    ),
    ("several", "coarse exponentials, V = 1, by LSE", "output"): (
        "a weight's own roundings in the row sum",
        "roundings that are no errors of scores",
        "a weight's own roundings in exp(s - LSE)",
    ),
    ("lse", "large stored scores, one key, by LSE", "output"): (
        "roundings of the LSE that weights share",
        "roundings of the LSE after the row sum",
    ),
    ("row_sum", "large stored scores, two keys, V = 1, by LSE", "output"): (
        "roundings of the row sum in the LSE",
        "the row sum over the sum of weights",
    ),
    ("score_accumulation", "large scores, one key, by LSE", "output"): ("scores that are computed again",),
}
