"""Terms without a witness, by the reason why no attack shows that they are needed."""

from __future__ import annotations

from .strikes import Strike, but

WEIGHTS: dict[str, tuple[Strike, ...]] = {
    "superfluous: a sink has an error by underflow, so that scores of a row with one never count as exact": (
        "exact differences have no sink",
    ),
    "no emulated kernel does what this allows: in a row that sees no key, its reference is the sink itself": (
        "a reference of 0 above a sink alone",
    ),
    "the rounding of a product that the judge itself makes in float64; the adversary chooses none as small": (
        "the product of a stored output with its scale",
    ),
    "moves a distance that is multiplied by a unit roundoff, so that it is of the second order": (
        "errors of keys that a sink is above",
        "the error of a sink above the keys",
    ),
    "a key comes nearer by its rounded product than negligible weights allow only in float64, at scores of 2^60": (
        "products of base 2 that are rounded before their difference",
    ),
    "the keys below the maximum count as many rescalings anyway, and an error of the factor 1 is common to the row": (
        "rescale factors of 1",
    ),
    "needs scores that are equal in truth and computed apart by as much as counts, which no attack has": (
        "computed scores that rise where true ones do not",
        "computed scores that fall below the weight's own",
    ),
    (
        "with base 2 the terms of score, maximum and LSE leave room for one another: no attack fills the room of "
        "all of them"
    ): (
        but(5, "base 2 at a distance"),
        but(4, "base 2 at a distance"),
        but(3, "base 2 at a distance"),
        "base 2 at a distance",
        "base 2 of the score",
        but(4, "base 2 of the backward weights"),
        but(2, "base 2 of the backward weights"),
        "base 2 of the score in the backward weights",
        "base 2 of the LSE in the backward weights",
        "the reference's rounding in a part's row sum",
        "a rounded reference that may overflow",
        "the reference's rounding in base 2",
        "the reference's rounding",
        "the reference's rounding in what divides an error",
        "base 2 of a sink",
        but(3, "ln 2 in the LSE"),
        but(2, "ln 2 in the LSE"),
    ),
    "with base 2 a product underflows only where the relative roundings of larger scores of its row weigh more": (
        "underflow of base 2",
        "underflow of a sink in base 2",
        "underflow of base 2 in the backward weights",
    ),
    (
        "the bound lets every key pass all merges with all their errors alike; the kernels that merge here leave "
        "half of that room"
    ): (
        "the weights of parts",
        "further merges",
        "a reference far from the maximum of a part",
        "a reference that is no maximum of a part",
        "the largest score in a part's log-sum-exp",
        but(1, "roundings of a part's log-sum-exp"),
        "roundings of a part's log-sum-exp",
        but(3, "base 2 of a part's log-sum-exp"),
        but(2, "base 2 of a part's log-sum-exp"),
        "base 2 of a part's log-sum-exp",
        "the rounding of a part's logarithm in base 2",
        "the argument of a part's weight",
        "the exponential of a part's weight",
        "base 2 of a part's weight",
        but(1, "base 2 of a part's weight"),
        "base 2 of scores that are moved",
        "base 2 of scores and LSE that are moved",
        "the largest score that is moved",
        "an LSE that is moved back",
        "the number of keys in a part's argument",
        "merges of the row sum",
        but(1, "merges of the row sum"),
        "underflow at every merge",
    ),
    (
        "perhaps superfluous: a subnormal difference of scores is exact unless it is flushed, and an exponential "
        "of it is near 1"
    ): (
        "underflow of an exponential",
        but(1, "underflows of an exponential"),
    ),
    (
        "other roundings of the same stage accompany it in every kernel, and leave more of their room unused than "
        "it takes"
    ): (
        "the output's weights, computed apart",
        "the slack in a distance",
        but(1, "the slack in a distance"),
        "the range in a distance",
        "rescalings of the row sum",
        "the store of a row sum that is merged by a difference",
        but(1, "roundings of row sums that are merged by a difference"),
        "the reference that is moved, in the LSE of base 2",
        "the reference in the logarithm",
    ),
    "a product of two errors, which the room of the first-order terms hides at the precision of float16": (
        "the score's error in the difference of score and LSE",
        "the LSE's error in the difference of score and LSE",
        "errors of log-sum-exps in a part's argument",
        "the error of a score in its distance",
        "the error of the maximum in a distance",
        "the error of the largest score",
        "the maximum's error in the reference",
        "roundings make the row sum's underflow grow",
        "roundings of the row sum that divide a mean",
    ),
    "decides where sums or differences count as exact; no attack has numbers for which it decides alone": (
        "exact differences have no bias",
        "exact differences have no softcap",
        "exact differences are to the maximum",
        "exact differences are natural",
        "exact differences have a scale of a power of 2",
        "exact differences are of exact scores",
    ),
    "no emulated kernel does what this allows: a row sum made as a product with ones": (
        "a row sum of cast weights on a matrix unit",
    ),
    "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order": (
        "the row sum's own weights, where it falls",
        "a fall of the row sum",
        "underflow in row sums that rise",
        "underflow in row sums that fall",
        "a row sum that rises",
        "a row sum that falls",
    ),
    "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer": (
        but(1, "several underflows of one weight"),
        "underflow at every rescaling",
        but(1, "room of a row sum that divides an error"),
        but(1, "underflows of a mean"),
        "underflow of the normalization",
        but(1, "underflows of the normalization"),
        but(1, "underflows of values on entry to a mean"),
        but(1, "underflows of outputs that wait"),
    ),
    "no emulated kernel does what this allows: a lazy reference that is lowered again": (
        "a lazy reference magnifies underflow",
    ),
    "weighs as much as the row sum's relative roundings only in rows of hundreds of light keys": (
        "underflow of a weight in the row sum",
        "underflow of the row sum itself",
    ),
    "a log-sum-exp so far off that a far weight counts leaves every near one without a bound": (
        "far keys in a mean",
        "weights of which nothing is known",
    ),
    "no emulated kernel does what this allows: weights that are stored after a row sum of their casts": (
        "the cast where the row sum falls",
    ),
    "a subnormal beside other absolute terms of the same stage, which leave more of their room unused than it takes": (
        "underflow of the LSE's steps",
    ),
    "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any rounding attacked": (
        "the evaluation of the LSE in float64",
        "the evaluation of an LSE beside its row sum",
        "the evaluation of intervals of weights",
        "the weights' evaluation in float64",
        "the evaluation of the output in a mean",
        "the evaluation of the output in sizes",
        "the evaluation of the output that an LSE multiplies",
        "values that are close to a mean",
        "the evaluation of a mean",
        "the evaluation of the least share",
        "the evaluation of the largest share",
    ),
}
