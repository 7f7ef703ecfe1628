"""How weights, row sums and log-sum-exps are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

WEIGHTS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.weight_bounds": {
        ("several", "4 rising scores, normalized, softmax", "output"): {
            "all rescalings": "np.minimum([-others-]{+0 * others+}, tiles - 1)",
            "R in alpha": "alpha + [-(1 + R) * -]one, 0.0), np",
            "row sum and weights computed apart": (
                "return np.where(x.visible, [-(e.rescaled - e.delta) + (e.direct - e.delta)-]{+0.0+}, 0.0)"
            ),
            "the row sum's weights, computed apart": "[-(e.rescaled - e.delta) + -](e.direct",
        },
        ("softmax", "one key, normalized, no maximum", "output"): {
            "weights computed again from one reference": '"before_product" or [-c.kv_tile is None-]{+not e.R.any()+}:',
        },
        ("probabilities", "error of exp, 2 keys", "dv"): {
            "a rescaled weight's own exponential": "alpha + ([-1 + -]R) * one",
            "the exponential of exp(s - LSE)": "+ delta + EL)[- + exponential_error(c)-]",
        },
        ("probabilities", "tiny values, inner, kept", "lse"): {
            "the score's error in a weight": "alpha = [-delta + -]np.where(_exact",
        },
        ("softmax", "one tile", "output"): {
            "the difference of score and maximum": "0.0, [-softmax.u-]{+0.0+}) * distance",
        },
        ("score_accumulation", "2 large scores, scale 1, folded", "output"): {
            "the base-2 maximum": "+ size[- + size.max(axis=-1, keepdims=True, initial=0.0)-])",
        },
        ("lse", "parts by LSE", "lse"): {
            "the log-sum-exps of parts": "c.lse_merges * ([-partial_lse_error(x, c) + -]merge_weight",
        },
        ("probabilities", "error of exp, eager", "lse"): {
            "the exponential of a weight that is computed once": "np.where(x.visible, alpha[- + one-], 0.0), R",
            "the error of exp": 'softmax.eta[- - math.log1p(-elementary_error(c, "exp_error"))-]',
        },
        ("softmax", "eager, P dP - P D", "dv"): {
            "the rounding of an exponential": '"exp_error"))[- - math.log1p(-softmax.u)-]',
        },
        ("probabilities", "tiny values, inner, kept", "dv"): {
            "the score in exp(s - LSE)": "return [-score_error(x, c) + -]exponent_by_lse_error(x, c, EL)",
        },
        ("partial_gradients", "light keys, tf32 to float16", "dv"): {
            "the difference of score and LSE": (
                "[-softmax.u * (np.abs(x.s - L) + delta + EL) + -]exponential_error(c)\n    if"
            ),
        },
        ("score_accumulation", "weights exp(s - LSE), base 2", "output"): {
            "base 2 of the backward weights": (
                "alpha + [-8 * work.u * (np.abs(x.s) + delta + np.abs(L) + 2 * shift + EL) + -]2 * work.eta"
            ),
        },
        ("lse", "ring", "lse"): {
            "the row sum in a part's log-sum-exp": "size = largest[- + log_sum-]",
        },
        ("lse", "parts by LSE", "output"): {
            "storing a part's log-sum-exp": "(softmax, 2), [-(final, 1), -](work, base2)",
        },
        ("several", "error of log, merged", "output"): {
            "the logarithm of a part's row sum": (
                'return [-elementary_error(c, "log_error") * (1 + log_sum) + -]relative'
            ),
        },
        ("several", "many light keys, cast row sum, softmax", "output"): {
            "exact differences fit the format": "return [-fits & -](delta",
        },
    },
    "error.row_sum_bounds": {
        ("several", "a score that may be far lower, no reference", "output"): {
            "errors of scores in the least row sum": (
                "distance = distance + [-log_weight_error(x, c).delta-]{+0.0 * x.s+}.max"
            ),
        },
        ("row_sum", "ring by difference, an answer near 0", "output"): {
            "row sums of merges by a difference": "alpha[- + merged_row_sum_error(c)-], 0.0)",
            "roundings of row sums that are merged by a difference": (
                '([-2 * math.log1p(-rounding(c, "row_sum").u) + -]math.log1p(-row_sum'
            ),
        },
        ("probabilities", "2 keys, cast row sum", "dv"): {
            "the cast of a weight in the row sum": "alpha[- - math.log1p(-cast.u)-], 0.0)",
        },
        ("row_sum", "eager, cast P in dS", "dq"): {
            "additions of the row sum": (
                "((row_sum.u, [-np.minimum(np.maximum(x.keys - 1, 0), c.summation_depth or np.inf) + -]moved),)"
            ),
        },
        ("row_sum", "2 keys, eager", "dk"): {
            "one addition of the row sum": "np.maximum(x.keys - [-1-]{+2+}, 0)",
            "the entry to the row sum, where it falls": "shrunk[- - math.log1p(-entry.u)-] - math",
        },
        ("row_sum", "eager, cast P in dS", "dk"): {
            "the row sum's additions, where it falls": "defect = apart[- + shrunk-] - math",
        },
        ("softmax", "eager, V = 1", "dk"): {
            "the store of the row sum, where it falls": "(-entry.u)[- - math.log1p(-store)-]",
        },
        ("stored_scores", "light keys, tiny cotangents, kept", "output"): {
            "a fall of the weight": "np.expm1([--alpha -]{+0.0 +}- defect)",
        },
        ("several", "a low maximum, no reference", "output"): {
            "the reference's distance": "initial=0.0)[- + c.reference_distance-] + ref",
            "the slack in inverse_sum": "x.L, 0.0)[- + top-], 700.0)",
            "underflow of a weight": "eta, eta_sum = steps * [-softmax.eta-]{+0.0+}",
        },
        ("row_sum", "eager, cast P in dS", "output"): {
            "the row sum's additions, where it rises": "growth([-*factors, -](entry.u",
        },
        ("row_sum", "2 keys, eager", "output"): {
            "the entry to the row sum, where it rises": "*factors, [-(entry.u, 1.0), -](store",
        },
        ("softmax", "V = 8 and little more", "output"): {
            "the store of the row sum, where it rises": "(entry.u, 1.0)[-, (store, 1.0)-])",
        },
        ("several", "4 rising scores, normalized, softmax", "output"): {
            "the row sum's own weights, where it rises": "(1 + grown)[- * np.exp(np.minimum(apart, 700.0))-] - 1",
        },
        ("several", "many keys that flush, cast row sum", "lse"): {
            "cast.eta in the row sum": "(eta_sum[- + (cast.eta if casts_row_sum(c) else 0.0)-])",
            "underflow of the row sum": "absolute = [-(w.inverse_sum * x.keys * w.eta_sum)[..., 0]-]{+0.0+}",
            "as many underflows as keys": "w.inverse_sum[- * x.keys-] * w",
        },
        ("stored_scores", "grouped heads", "lse"): {
            "weights that rise": "np.log1p(([-w.PA + -]w.P1A * w.C)",
        },
        ("probabilities", "error of log, by LSE", "lse"): {
            "the error of log": 'X + [-elementary_error(c, "log_error") * (1 + log_sum + X) + -]softmax.u',
        },
        ("softmax", "2 keys, base 2", "lse"): {
            "the rounding of the logarithm": "(1 + log_sum + X)[- + softmax.u * (log_sum + X)-]",
            "one of two roundings of the LSE": "X + growth((softmax.u, [-2-]{+1+})",
        },
        ("partial_gradients", "light keys, tf32 to float16", "lse"): {
            "both roundings of the LSE": "X + growth([-(softmax.u, 2), -](final",
        },
        ("lse", "base 2, bias", "dv"): {
            "the LSE's store": "(softmax.u, 2)[-, (final.u, 1)-])",
        },
        ("score_accumulation", "base 2 inside the exponent", "lse"): {
            "ln 2 in the LSE": "growth((work, [-4-]{+0+}))",
        },
        ("score_accumulation", "scores of 0, base 2", "lse"): {
            "the row sum in the LSE of base 2": "w.top[..., 0][- + log_sum-] + X)",
        },
        ("score_accumulation", "large scores, base 2", "lse"): {
            "the reference in the LSE of base 2": (
                "X + growth((work, 4)) * ([-np.abs(x.M[..., 0]) + shift + w.top[..., 0] + -]log_sum"
            ),
        },
        ("lse", "ALiBi from the first key", "lse"): {
            "the error of moving a log-sum-exp": "X = X + [-shift_error(x, c, X[..., None])[..., 0]-]{+0.0+}\n",
        },
        ("lse", "ALiBi alone, from the first key", "lse"): {
            "the LSE before it is moved": "(np.abs(L)[- + shift-] + X)",
        },
        ("lse", "tiny scores, one key, kept", "lse"): {
            "underflow of the LSE's store": "3 * softmax.eta[- + final.eta-]",
        },
        ("several", "many keys that flush, cast row sum", "dk"): {
            "underflow of the row sum in the LSE of weights": "w.defect[- - np.log1p(-np.minimum(lost, 0.5))-]",
        },
        ("several", "coarse exponentials", "output"): {
            "the largest that a weight may be": "log_high = np.where(x.visible & ~wild, x.log_P[- + alpha-], -np.inf)",
            "the least that a weight may be": "np.exp(x.log_P[- - alpha-] - largest)",
        },
        ("row_sum", "coarse exponentials, V = 1", "output"): {
            "roundings of the row sum alone, whatever scores are": "return [-w.C + -]divided(x, c) * x.keys * w",
        },
        ("output_accumulation", "coarse exponentials, a low key of tiny value, no reference", "output"): {
            "a row sum as small as its reference allows": "distance = [-c.reference_distance + -]reference_rounding",
        },
        ("several", "coarse exponentials, V = 1, by LSE", "output"): {
            "a weight's own roundings in the row sum": "own = [-w.beside_scores + -]exponent_by_lse",
            "roundings that are no errors of scores": (
                "beside_scores=np.where(x.visible, [-alpha - e.delta-]{+0.0 * alpha+}, 0.0)"
            ),
            "a weight's own roundings in exp(s - LSE)": "w.beside_scores + [-exponent_by_lse_error(x, c, EL) + -]lse",
        },
        ("lse", "large stored scores, one key, by LSE", "output"): {
            "roundings of the LSE that weights share": "exponent_by_lse_error(x, c, EL)[- + lse_rounding(x, c, w)-]\n",
            "roundings of the LSE after the row sum": (
                "return normalization_error(x, c, w)[- + np.where(np.isnan(after), np.inf, after)[..., None]-]"
            ),
        },
        ("row_sum", "large stored scores, two keys, V = 1, by LSE", "output"): {
            "roundings of the row sum in the LSE": (
                "return [-normalization_error(x, c, w) + -]np.where(np.isnan(after)"
            ),
            "the row sum over the sum of weights": "np.where(lost < 0.5, [-w.defect-]{+0.0 * w.defect+} - np",
        },
        ("score_accumulation", "large scores, one key, by LSE", "output"): {
            "scores that are computed again": "own[- + (repeated_score_error(x, c) if again else 0.0)-], 0.0)",
        },
    },
}
