"""How gradients of scores are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

SCORE_GRADIENTS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.score_gradient_bounds": {
        ("several", "tiny bias, score accumulation and stored scores, two keys", "dbias"): {
            "one rounding of dA": "growth((work.u, [-1 + -]parts), (narrow",
        },
        ("score_accumulation", "late dropout, one key", "dq"): {
            "delta times 1 - p": "growth(*late) * ([-np.abs(g.D) + D + -]dL)",
        },
        ("score_accumulation", "late dropout, dL alone, delta of P", "dk"): {
            "dL times 1 - p": "(np.abs(g.D) + D[- + dL-])",
        },
        ("score_accumulation", "late dropout, one key, tiny cotangents, kept", "dq"): {
            "underflow of dA, raised": "tiny = [-x.largest_factor * -]tiny\n    if c.delta",
        },
        ("score_gradients", "late dropout, tiny cotangents, large scale, kept", "dk"): {
            "underflow of dS, raised": "[-x.largest_factor * -]tiny\n    return np.where(x.visible, dS + growth(",
        },
        ("score_gradients", "late dropout, tiny cotangents, scaled dS, kept", "dk"): {
            "underflow of a dS that is scaled early, raised": "beyond = [-x.largest_factor * -](last_factor",
        },
        ("row_sum", "dL alone, eager", "dk"): {
            "the weights of dL": "row.around[- + np.maximum(weights.PA, found.PA) * dL-]",
        },
        ("scores", "normalized weights, tiles", "dq"): {
            "both roundings of dA": "growth([-(work.u, 1 + parts), -](narrow",
        },
        ("stored_scores", "scaled dS", "dq"): {
            "storing dA": "(work.u, 1 + parts)[-, (narrow, parts)-])",
            "roundings of dA": "[-relative * x.P * total + -]P1A * (1",
            "the store of dS": "growth((cast.u, 1)[-, (stored.u, 1)-]) * (np.abs(g.dS) + dS) + tiny",
        },
        ("stored_scores", "tiny cotangents, scaled dS, kept", "dk"): {
            "underflow of storing dA": "4 * work.eta[- + 2 * parts * stored.eta-]",
        },
        ("stored_scores", "eager, P dP - P D", "dk"): {
            "P dP less P D": "tiny = tiny + [-growth((work.u, 1), (stored.u, 1))-]{+0.0+} * weights",
            "the stores of P dP less P D": "tiny = tiny + growth((work.u, 1)[-, (stored.u, 1)-]) * weights",
            "last underflow of dA": "(1 + relative)[- + tiny-]\n    most",
            "dP in delta": "keepdims=True)[- + (P1A * edP).sum(-1, keepdims=True)-])",
        },
        ("probabilities", "error of log, by LSE", "dk"): {
            "the error of P in dA": "dA = [-own * (1 + relative) + -]relative",
        },
        ("probabilities", "one tile", "dk"): {
            "the error of dP - D in dA": "x.P * total[- + P1A * (1 + relative) * EX-]",
            "the output in delta": "return [-stored + -]summed + 2 * Dv",
            "the other terms of delta": "keepdims=True)[- + (size * e.rest).sum(-1, keepdims=True)-]) / e.kappa",
        },
        ("several", "many light keys, cast row sum, softmax", "dq"): {
            "underflow of P in dA": "dA = dA[- + eta * (total + EX) * (1 + relative)-] + tiny",
            "underflow of recomputed weights": "np.full(x.L.shape, [-4 * softmax.eta-]{+0.0+})",
        },
        ("probabilities", "tiny bias, flushed", "dbias"): {
            "the weights in the most of dA": "most = [-(P1A + eta) * (1 + relative) * (total + EX) + -]x.P",
            "the most of dA below its error": "np.minimum(dA, most[-)-]{+ * 0.5)+}",
        },
        ("probabilities", "error of tanh, eager", "dq"): {
            "a weight stored, its error": (
                'own = [-(e.direct if c.normalize == "before_product" else e.rescaled) -]{+0.0 +}- 2'
            ),
        },
        ("softmax", "eager, P dP - P D", "dv"): {
            "one rounding of a stored weight's division": "- [-2 * -]math.log1p(-softmax.u)",
            "both roundings of a stored weight's division": "[- - 2 * math.log1p(-softmax.u)-]",
        },
        ("probabilities", "error of tanh, eager", "dv"): {
            "the row sum of stored weights": (
                "common, eta = [-row_sum_error(x, w)[..., None]-]{+np.zeros(x.L.shape)+}, 4"
            ),
        },
        ("probabilities", "tiny values, inner, kept", "dv"): {
            "the LSE of recomputed weights": "common = [-lse_error(x, c, w)[..., None]-]{+np.zeros(x.L.shape)+}",
            "recomputed weights": "own, eta = [-weight_error_by_lse(x, c, common)-]{+np.zeros(x.s.shape)+}",
            "own and common errors of P together": "own[- + common-], 0.0))",
        },
        ("probabilities", "one tile", "dv"): {
            "the cast of weights before the product with dO": "own, eta = own[- - math.log1p(-narrow.u)-], eta",
        },
        ("several", "many light keys, probabilities", "dv"): {
            "underflow of that cast": "narrow.u), eta[- + narrow.eta-]",
        },
        ("probabilities", "cast P in dS", "dq"): {
            "the cast of weights that make dS": "scored = backward_weights(near, c, w, cast=[-casts-]{+False+})",
        },
        ("lse", "probabilities cast twice", "dq"): {
            "entry of both factors of dP": "growth([-(of_g.u, 1), (of_v.u, 1), -](left_out",
        },
        ("gradient_accumulation", "large scores, base 2, folded", "dk"): {
            "sums of dP": "form), 1)[-, *roundings-])",
        },
        ("gradient_accumulation", "tiny cotangents, grouped, bias, kept", "dbias"): {
            "underflow of dP's sums": (
                'underflow = [-2 * terms(c, Dv) * sum_underflow(c, "gradient_accumulation") + -]entering'
            ),
        },
        ("stored_scores", "base 2", "dk"): {
            "storing dP": "return dP[- + stored.u * (np.abs(g.dP) + dP)-]",
        },
        ("probabilities", "row sum of the cast", "dk"): {
            "the weights' part of delta": "through = ([-(w.PA * around).sum(-1, keepdims=True) + -](size",
        },
        ("lse", "light keys, tf32 to float16", "dq"): {
            "the last roundings of the output in delta": (
                "through = through + (size * (off + [-e.finish * (np.abs(x.O) + EO) + -]e.tiny"
            ),
        },
        ("softmax", "tiny values, flushed", "dq"): {
            "the last underflow of the output in delta": "+ EO)[- + e.tiny-]",
        },
        ("score_accumulation", "parts by LSE, V = 1", "dk"): {
            "delta's sum": "stored[- + summed-] + 2",
        },
        ("row_sum", "eager, cast P in dS", "dk"): {
            "a defect of stored weights": "* np.exp([-w.defect-]{+0.0 * w.defect+}) - 1",
        },
        ("softmax", "eager, V = 1", "dk"): {
            "both roundings of stored weights in delta": ('(1 + growth([-(rounding(c, "softmax").u, 2), -](cast, 1)))'),
            "one rounding of stored weights in delta": '(rounding(c, "softmax").u, [-2-]{+1+})',
        },
        ("probabilities", "eager, cast P in dS", "dk"): {
            "the cast of stored weights in delta": '(rounding(c, "softmax").u, 2)[-, (cast, 1)-])',
            "the defect of weights in delta": "apart = [-N * np.abs(g.D) + -](1",
            "the weights in delta": "(1 + G) * ([-(PA * row.around).sum(-1, keepdims=True) + -](P1A",
        },
        ("lse", "delta of P", "dq"): {
            "the LSE in the defect of recomputed weights": "N = [-(1 + G) * -](1 + PA",
        },
        ("softmax", "3 keys, delta of P", "dk"): {
            "the weights in their defect": "N = (1 + G)[- * (1 + PA.sum(-1, keepdims=True))-] - 1",
        },
        ("score_accumulation", "eager, V = 1", "dk"): {
            "delta's sum over keys": "np.fmin(apart, together)[- + summed.sum(-1, keepdims=True)-]",
        },
        ("several", "a very light key of a large value, eager", "dk"): {
            "underflow of weights in delta's sum": "weights.P1A[- + weights.eta-]) * sizes",
        },
        ("probabilities", "error of tanh, eager", "dk"): {
            "the slope's first order": "factor = [-2 * t * e + -]e * e",
            "the score in the slope": "e = [-softcapped_error(x, c) / cap + -]stored.u",
            "the slope's error with dA": "dS = [-np.abs(g.dA) * factor + -](exact",
        },
        ("probabilities", "softcap", "dk"): {
            "dA's error after the slope": "* factor[- + (exact + factor) * dA-]",
        },
        ("score_gradients", "light keys, kept", "dk"): {
            "the cast of dS": "growth([-(cast.u, 1), -](stored.u, 1)) * (np.abs(g.dS) + dS) + tiny",
        },
        ("score_gradients", "light keys, tiny cotangents, kept", "dk"): {
            "underflow of dS": "(np.abs(g.dS) + dS)[- + tiny-]",
            "underflow of dS's cast": 'tiny = [-rounding(c, "score_gradients").eta + -]rounding',
        },
        ("stored_scores", "large cotangents, scaled slope, tiny scale, kept", "dk"): {
            "underflow of a scaled slope": "beyond * tiny[- + slope-], 0.0)",
            "underflow of dS times a scaled slope": "visible, [-beyond * tiny + -]slope, 0.0)",
        },
        ("probabilities", "2 pieces, bfloat16, by LSE", "dq"): {
            "the row's weights in dS": "(G * row.size + eD_weighted), 0.0)[-,-]{+ * 0.0,+}",
        },
    },
}
