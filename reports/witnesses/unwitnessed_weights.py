"""Terms without a witness, by module and by the reason why no attack shows that they are needed."""

from __future__ import annotations

WEIGHTS: dict[str, dict[str, dict[str, str]]] = {
    "error.far_keys": {
        "a key comes nearer by its rounded product than negligible weights allow only in float64, at scores of 2^60": {
            "products of base 2 that are rounded before their difference": "if [-c.base2-]{+False+}:",
        },
    },
    "error.weight_bounds": {
        (
            "the keys below the maximum count as many rescalings anyway, and an error of the factor 1 is "
            "common to the row"
        ): {
            "rescale factors of 1": "if tiles == 1[- or not c.exp_of_zero_is_one-]:",
        },
        "needs scores that are equal in truth and computed apart by as much as counts, which no attack has": {
            "computed scores that rise where true ones do not": "x.s[- + delta-], -np.inf)",
            "computed scores that fall below the weight's own": "x.s[- - delta-], np.inf)",
        },
        (
            "with base 2 the terms of score, maximum and LSE leave room for one another: no attack fills "
            "the room of all of them"
        ): {
            "one rounding of base 2 at a distance": "work.u * ([-6-]{+5+} * distance",
            "two roundings of base 2 at a distance": "work.u * ([-6-]{+4+} * distance",
            "three roundings of base 2 at a distance": "work.u * ([-6-]{+3+} * distance",
            "base 2 at a distance": "work.u * ([-6-]{+0+} * distance",
            "base 2 of the score": "6 * distance + [-size + -]size.max",
            "half of base 2 of the backward weights": "[-8-]{+4+} * work.u",
            "three quarters of base 2 of the backward weights": "[-8-]{+2+} * work.u",
            "base 2 of the score in the backward weights": "([-np.abs(x.s) + delta + -]np.abs(L) + 2 * shift + EL)",
            "base 2 of the LSE in the backward weights": "(np.abs(x.s) + delta[- + np.abs(L) + 2 * shift + EL-])",
            "the reference's rounding in a part's row sum": (
                "+ c.reference_distance[- + reference_rounding(x, c)-] + 1"
            ),
            "a rounded reference that may overflow": 'return rounded if [-c.exponent == "base2_fused"-]{+False+} else',
            "the reference's rounding in base 2": (
                'rounded = [-growth((rounding(c, "score_accumulation").u, 1)) * _largest_score(x, c)-]{+np.zer'
                "os((*x.s.shape[:-1], 1))+}"
            ),
        },
        ("with base 2 a product underflows only where the relative roundings of larger scores of its row weigh more"): {
            "underflow of base 2": "alpha = alpha + [-2 * work.eta-]{+0.0+}\n    if c.lse",
            "underflow of base 2 in the backward weights": "2 * shift + EL)[- + 2 * work.eta-]",
        },
        (
            "the bound lets every key pass all merges with all their errors alike; the kernels that merge "
            "here leave half of that room"
        ): {
            "the weights of parts": "partial_lse_error(x, c)[- + merge_weight_error(x, c)-])",
            "further merges": "alpha + [-c.lse_merges-]{+1.0+} * (partial",
            "a reference far from the maximum of a part": (
                "np.maximum(x.keys, 1))[- + c.reference_distance-] + reference_rounding(x, c) + 1"
            ),
            "a reference that is no maximum of a part": "else log_sum[- + 2 * largest-]",
            "the largest score in a part's log-sum-exp": "size = [-largest + -]log_sum",
            "one rounding of a part's log-sum-exp": "relative = growth((softmax, [-2-]{+1+})",
            "both roundings of a part's log-sum-exp": "relative = growth([-(softmax, 2), -](final",
            "one rounding of base 2 of a part's log-sum-exp": "base2 = [-4-]{+3+}",
            "half of base 2 of a part's log-sum-exp": "base2 = [-4-]{+2+}",
            "base 2 of a part's log-sum-exp": "base2 = [-4-]{+0+}",
            "the argument of a part's weight": "error = [-softmax * argument + -]exponential_error(c)\n    if",
            "the exponential of a part's weight": "softmax * argument[- + exponential_error(c)-]",
            "base 2 of a part's weight": "error + [-2 * work * argument-]{+0.0+}",
            "half of base 2 of a part's weight": "error + [-2 * -]work * argument",
            "base 2 of scores that are moved": "np.abs(x.s)[- + row_shift(x, c)-] + delta",
            "base 2 of scores and LSE that are moved": "np.abs(L)[- + 2 * shift-] + EL",
            "the largest score that is moved": "np.abs(x.s)[- + row_shift(x, c)-], 0.0)",
            "an LSE that is moved back": "alpha = alpha + [-shift_error(x, c, EL)-]{+0.0+}",
            "the number of keys in a part's argument": (
                "_distance(x, c, delta)[- + 2 * np.log(np.maximum(x.keys, 1)) + 1-]"
            ),
        },
        (
            "perhaps superfluous: a subnormal difference of scores is exact unless it is flushed, and an "
            "exponential of it is near 1"
        ): {
            "underflow of an exponential": "return [-2 * softmax.eta -]{+0.0 +}- math",
            "one of two underflows of an exponential": "return [-2 * -]softmax.eta -",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the output's weights, computed apart": "(e.rescaled - e.delta)[- + (e.direct - e.delta)-]",
            "the slack in a distance": "off = [-2 * c.reference_slack-]{+0.0+} if",
            "half of the slack in a distance": "off = [-2 * -]c.reference_slack if",
            "the range in a distance": "else [-c.reference_range-]{+0.0+}\n    return x.M",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "the score's error in that difference": "(np.abs(x.s - L)[- + delta-] + EL)",
            "the LSE's error in that difference": "(np.abs(x.s - L) + delta[- + EL-])",
            "the error of a score in its distance": "x.M - x.s[- + delta-] + delta.max",
            "the error of the maximum in a distance": (
                "+ delta[- + delta.max(axis=-1, keepdims=True, initial=0.0)-] + off"
            ),
            "the error of the largest score": ", 0.0)[- + score_error(x, c)-]",
        },
        "decides where sums or differences count as exact; no attack has numbers for which it decides alone": {
            "exact differences have no bias": "plain = [-not x.problem.has_addends and -]x.problem.softcap",
            "exact differences have no softcap": "not x.problem.has_addends[- and x.problem.softcap is None-]",
            "exact differences are to the maximum": "softcap is None[- and c.reference_distance == 0-]",
            "exact differences are natural": "plain = plain[- and not c.base2-]",
            "exact differences have a scale of a power of 2": "(plain[- and is_power_of(2, sigma)-])",
            "exact differences are of exact scores": "return fits[- & (delta.max(axis=-1, keepdims=True) == 0)-]",
        },
    },
    "error.row_sum_bounds": {
        "no emulated kernel does what this allows: a row sum made as a product with ones": {
            "a row sum of cast weights on a matrix unit": ("if [-casts_row_sum(c) and on_matrix_unit(c)-]{+False+}:"),
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "rescalings of the row sum": 'rounding(c, "row_sum"), [-R + -](2 * c.lse_merges if',
            "the store of a row sum that is merged by a difference": ".u)[- + math.log1p(-row_sum_store(c))-])",
            "one of two roundings of such a row sum": '([-2 * -]math.log1p(-rounding(c, "row_sum").u)',
            "the reference that is moved, in the LSE of base 2": "np.abs(x.M[..., 0])[- + shift-] + w.top",
            "the reference in the logarithm": "x.M[..., 0])[- + w.top[..., 0]-]\n    X = X + elem",
        },
        (
            "the bound lets every key pass all merges with all their errors alike; the kernels that merge "
            "here leave half of that room"
        ): {
            "merges of the row sum": '"row_sum"), R[- + (2 * c.lse_merges if c.merging == "weighted" else 0)-]',
            "half of the merges of the row sum": '"row_sum"), R + ([-2 * -]c.lse_merges if',
            "underflow at every merge": "2 * most[- + 2 * c.lse_merges-])",
        },
        (
            "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order"
        ): {
            "the row sum's own weights, where it falls": "defect = [-apart + -]shrunk",
            "a fall of the row sum": "np.expm1(-alpha[- - defect-])",
            "underflow in row sums that rise": ".sum(-1)[- + absolute-])\n    fall",
            "underflow in row sums that fall": "w.fall.sum(-1)[- + absolute-]",
            "a row sum that rises": "(w.PA[- + w.P1A * w.C-])",
            "a row sum that falls": (
                "X = np.maximum(rise, [-np.where(fall < 1, -np.log1p(-np.minimum(fall, 1.0)), np.inf)-]{+0.0+})"
            ),
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "the maximum's error in the reference": (
                "top = [-e.delta.max(axis=-1, keepdims=True, initial=0.0) + -]c.ref"
            ),
            "roundings make the row sum's underflow grow": (
                "else 0.0))[- * (1 + C.max(axis=-1, keepdims=True, initial=0.0))-]"
            ),
        },
        (
            "with base 2 the terms of score, maximum and LSE leave room for one another: no attack fills "
            "the room of all of them"
        ): {
            "the reference's rounding": "initial=0.0) + c.reference_distance[- + reference_rounding(x, c)-]",
            "the reference's rounding in what divides an error": (
                "    distance = c.reference_distance[- + reference_rounding(x, c)-]\n"
            ),
            "one rounding of ln 2 in the LSE": "growth((work, [-4-]{+3+}))",
            "half of ln 2 in the LSE": "growth((work, [-4-]{+2+}))",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "several underflows of one weight": "steps = [-4 * -](1 +",
            "underflow at every rescaling": "(1[- + 2 * most-] + 2 * c.lse",
            "room of a row sum that divides an error": "return [-4 * -]np.exp(np.minimum(distance",
        },
        "no emulated kernel does what this allows: a lazy reference that is lowered again": {
            "a lazy reference magnifies underflow": (
                'c.lse_merges)[- * np.exp(c.reference_slack if c.reference == "maximum" else 0.0)-]'
            ),
        },
        "weighs as much as the row sum's relative roundings only in rows of hundreds of light keys": {
            "underflow of a weight in the row sum": "steps * [-max(softmax.eta, row_sum.eta)-]{+0.0+}",
            "underflow of the row sum itself": "steps * [-max(softmax.eta, row_sum.eta)-]{+softmax.eta+}",
        },
        "a log-sum-exp so far off that a far weight counts leaves every near one without a bound": {
            "far keys in a mean": "log_high = [-np.where(x.seen & ~x.visible, NEGLIGIBLE, log_high)-]{+log_high+}",
            "weights of which nothing is known": "wild = x.visible & [-~(alpha <= WILD)-]{+(alpha < 0)+}",
        },
        "no emulated kernel does what this allows: weights that are stored after a row sum of their casts": {
            "the cast where the row sum falls": (
                "initial=0.0)[- - (math.log1p(-cast.u) if casts_row_sum(c) else 0.0)-]"
            ),
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of the LSE's steps": "[- + 3 * softmax.eta-] + final.eta",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the evaluation of the LSE in float64": "final.eta)[- * INFLATION-]",
            "the evaluation of an LSE beside its row sum": ", 0.0)[- + 2.0**-48 * EL-]",
            "the evaluation of intervals of weights": "intervals(x, alpha[- + evaluated-])",
            "the weights' evaluation in float64": "top, 700.0))[- * widen-]",
        },
    },
    "error.output_bounds": {
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "roundings of the row sum that divide a mean": "found[at] = np.maximum(*both)[- / least[at]-]",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "one of two underflows of a mean": "outside_hull=[-2 * -]divided(x, c)",
            "underflow of the normalization": "tiny=[-f * (3 * softmax.eta + lost)-]{+0.0+}\n        + out.eta",
            "two of three underflows of the normalization": "tiny=f * ([-3 * -]softmax.eta + lost)",
            "one of two underflows of values on entry to a mean": "total_v) + [-2 * -]f * entering",
            "one of two underflows of outputs that wait": "entering + [-2 * -]waiting",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the evaluation of the output in a mean": "sizes[at][:, None, :][- + known[at][:, None, :]-]",
            "the evaluation of the output in sizes": "np.abs(e.o)[- + known-])",
            "the evaluation of the output that an LSE multiplies": "G * (np.abs(o)[- + slack-] + off) + off",
        },
    },
    "error.weighted_means": {
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "values that are close to a mean": "(t > (X[- + m-])[:, None, :])",
            "the evaluation of a mean": "np.minimum(X, most)[- + 2 * m-])",
            "the evaluation of the least share": "least[- * (1 - rounded)-], 0.0)",
            "the evaluation of the largest share": "most[- * (1 + rounded)-], 1.0)",
        },
    },
}
