"""How gradients of scores are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

SCORE_GRADIENTS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.score_gradient_bounds": {
        ("weight_gradients", "dropout, eager, weights", "dk"): {
            "dP in delta": "keepdims=True)[- + (P1A * edP).sum(-1, keepdims=True)-])",
        },
        ("softmax", "a light key, flushed, by LSE", "dk"): {
            "underflow of P in the most of dA": (
                "(total + EX)[- + eta * (total + EX) * (1 + relative)-] + tiny\n    return"
            ),
        },
        ("softmax", "V = 1", "dk"): {
            "the last roundings of an output of equal values in delta": (
                "(size * off).sum(-1, keepdims=True)[- + last-], np.inf)"
            ),
        },
        ("row_sum", "V = 1", "dk"): {
            "the row sum in a mean of products": (
                "of_values[- + e.C * (size * np.abs(x.O)).sum(-1, keepdims=True)-] + row"
            ),
        },
        ("stored_scores", "three uncertain scores, eager, delta of O", "dk"): {
            "the largest weight less P in the most of dA": (
                "above, below = [-np.maximum(w.most - x.P, 0.0) * size + -]w.most * EX"
            ),
        },
        ("lse", "three uncertain scores, delta of P", "dk"): {
            "the largest weight with the error of dP - D in the most of dA": "0.0) * size[- + w.most * EX-], (x.P",
            "roundings beside the largest share of a weight": (
                "most * np.exp([-np.minimum(off, 700.0)-]{+0.0 * off+})"
            ),
            "the change of weights in delta": "([-weights.change * np.abs(g.dP) + -]weights.most * edP)",
            "roundings of weights in a mean of products": "[-(factor - 1) * np.abs(g.dP) + -]factor * edP",
        },
        ("stored_scores", "less uncertain scores", "dk"): {
            "roundings of dA from the largest weight": "EX) + [-relative * weights.most * (total + EX) + -]eta",
        },
        ("lse", "less uncertain scores", "dv"): {
            "roundings by the LSE beside the share of a weight": (
                'off = [-rounding_by_lse(x, c, w, again=c.backward_weights == "recomputed" or not narrows_scores(c))-]'
                "{+np.zeros(x.s.shape)+}"
            ),
        },
        ("multiplicands", "three uncertain scores", "dv"): {
            "scores that are computed again beside the share of a weight": (
                '[-again=c.backward_weights == "recomputed" or not narrows_scores(c)-]{+again=False+}'
            ),
        },
        ("softmax", "three uncertain scores", "dv"): {
            "the largest share of a weight in its change": "np.maximum([-most - x.P, -]{+0.0, +}x.P - least)",
        },
        ("multiplicands", "two uncertain scores, eager", "dv"): {
            "the least share of a weight in its change": "np.maximum(most - x.P, [-x.P - least-]{+0.0+})",
        },
        ("row_sum", "two uncertain scores, eager", "dv"): {
            "roundings beside the least share of a weight": "least * np.exp([--off-]{+0.0 * off+})",
        },
        ("softmax", "less uncertain scores, eager", "dv"): {
            "both roundings of a division beside the share of a stored weight": (
                "normalization_error(x, c, w)[- - 2 * math.log1p(-softmax.u)-], 0.0)"
            ),
            "one rounding of a division beside the share of a stored weight": (
                "normalization_error(x, c, w) - [-2 * -]math.log1p(-softmax.u), 0.0)"
            ),
        },
        ("row_sum", "less uncertain scores, eager", "dv"): {
            "the row sum beside the share of a stored weight": (
                "off = np.where(x.visible, [-normalization_error(x, c, w) - -]{+-+}2 * math"
            ),
        },
        ("probabilities", "less uncertain scores, eager", "dv"): {
            "the cast beside the share of a weight": "own + moved, off[- + moved-], eta",
        },
        ("output_accumulation", "two uncertain scores, eager, delta of O", "dk"): {
            "a mean of products in delta": "np.fmin(through, [-_mean_of_products(row, e, size) + -]last)",
        },
        ("score_accumulation", "less uncertain scores, eager, delta of O, output in bfloat16", "dk"): {
            "the last roundings of the output with a mean of products": ("_mean_of_products(row, e, size)[- + last-])"),
        },
        ("score_accumulation", "less uncertain scores, eager, delta of O, output_accumulation in bfloat16", "dk"): {
            "roundings of the numerator in a mean of products": "moved + [-e.B * of_values + -]e.C",
        },
        ("row_sum", "differentiated product in float32, values alike", "dk"): {
            "what is left of references": "(error[- + left-] for error",
        },
        ("score_accumulation", "differentiated product in float32, no maximum", "dk"): {
            "underflow of dA": "tiny = [-4 * largest_quotient(row.near, c) * work.eta + -]2 * parts",
            "underflow of dA of weights that are above their row sum": (
                "tiny = 4 * [-largest_quotient(row.near, c) * -]work.eta"
            ),
        },
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
            "the most of the weights of dL": "evaluated * size[- + change * dL-]\n",
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
            "underflow of storing dA": "* work.eta[- + 2 * parts * stored.eta-]\n",
        },
        ("stored_scores", "eager, P dP - P D", "dk"): {
            "P dP less P D": "products = [-growth((work.u, 1), (stored.u, 1))-]{+0.0+} * weights",
            "the stores of P dP less P D": "products = growth((work.u, 1)[-, (stored.u, 1)-]) * weights",
            "last underflow of dA": "(1 + relative)[- + tiny-]\n    most",
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
            "a weight between its ends in the most of dA": "most = [-_most_error(row, EX) + -]relative * weights.most",
            "the most of dA below its error": "np.minimum(dA, most[-)-]{+ * 0.5)+}",
        },
        ("probabilities", "error of tanh, eager", "dq"): {
            "a weight stored, its error": (
                'own = [-(e.direct if c.normalize == "before_product" else e.rescaled) -]{+0.0 +}- 2'
            ),
        },
        ("softmax", "eager, P dP - P D", "dv"): {
            "one rounding of a stored weight's division": "e.rescaled) - [-2 * -]math.log1p(-softmax.u)",
            "both roundings of a stored weight's division": "e.rescaled)[- - 2 * math.log1p(-softmax.u)-]",
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
            "the cast of weights before the product with dO": "own, off, eta = own[- + moved-], off",
        },
        ("several", "many light keys, probabilities", "dv"): {
            "underflow of that cast": "off + moved, eta[- + narrow.eta-]\n",
        },
        ("probabilities", "cast P in dS", "dq"): {
            "the cast of weights that make dS": "scored = backward_weights(near, c, w, cast=[-casts-]{+False+})",
        },
        ("probabilities", "row sum of the cast", "dk"): {
            "the weights' part of delta": "through = ([-(row.w.PA * around).sum(-1, keepdims=True) + -](size",
        },
        ("lse", "light keys, tf32 to float16", "dq"): {
            "the last roundings of the output in delta": ("last = (size * ([-e.finish * (np.abs(x.O) + EO) + -]e.tiny"),
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
            "delta's sum over keys": "np.fmin(np.fmin(apart, together), mean)[- + summed.sum(-1, keepdims=True)-]",
        },
        ("several", "a very light key of a large value, eager", "dk"): {
            "underflow of weights in delta's sum": "weights.most[- + weights.eta-]) * sizes",
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
    "error.weight_gradient_bounds": {
        ("lse", "probabilities cast twice", "dq"): {
            "entry of both factors of dP": "growth([-(of_g.u, 1), (of_v.u, 1), -](left_out",
        },
        ("gradient_accumulation", "large scores, base 2, folded", "dk"): {
            "sums of dP": "form), 1)[-, *roundings-])",
        },
        ("gradient_accumulation", "tiny cotangents, grouped, bias, kept", "dbias"): {
            "underflow of dP's sums": (
                'underflow = [-2 * raised * terms(c, Dv) * sum_underflow(c, "gradient_accumulation") + -]entering'
            ),
        },
        ("gradient_accumulation", "differentiated product in float32, no maximum", "dk"): {
            "underflow of dP's sums times l": "underflow = 2 * [-raised * -]terms(c",
        },
        ("weight_gradients", "differentiated product, small dP", "dk"): {
            "underflow of dP that l multiplies": ("lost = x.largest_factor[- * raised-] + (1"),
        },
        ("score_accumulation", "differentiated product in float32, no maximum", "dk"): {
            "a weight that is above its row sum": (
                "    return [-np.exp(c.reference_distance + reference_rounding(x, c) + 2 * exponential_error(c))-]"
                "{+np.ones(x.L.shape)+}"
            ),
        },
        ("weight_gradients", "rotary, interleaved, eager", "dk"): {
            "storing dP": "return dP[- + stored.u * (np.abs(g.dP) + dP)-]",
        },
        ("weight_gradients", "tiny values, by LSE, flushed", "dk"): {
            "underflow of storing dP": "(np.abs(g.dP) + dP)[- + stored.eta * lost-]",
        },
        ("weight_gradients", "tiny values, by LSE, kept", "dk"): {
            "underflow of storing dP, raised": "lost = [-x.largest_factor * raised + -](1 if",
        },
        ("weight_gradients", "dropout, by LSE, weights", "dk"): {
            "1 / (1 - p) in the format of dP": '"stored_scores"[-, "weight_gradients"-])',
        },
        ("softmax", "a probability that dropout keeps", "dk"): {
            "1 / (1 - p) of dP in the format of the softmax": 'c, [-"softmax", -]"stored_scores", "weight_gradients")',
        },
        ("weight_gradients", "differentiated product", "dv"): {
            "the cast of dO / l": "own = growth(*division(x, c)[-, (cast.u, 1)-])",
        },
        ("weight_gradients", "differentiated product, tiny cotangents", "dv"): {
            "underflow of the cast of dO / l": "_largest_row_sum(x, c) * ([-cast.eta + -]enters.eta)",
            "what underflows in dO / l meets weights that are l times as large": (
                "2 * [-np.minimum(x.keys, np.exp(np.minimum(of_sum, 700.0))) * -]np.exp(top)"
            ),
        },
        ("weight_gradients", "differentiated product, large scores", "dv"): {
            "the reference in the largest row sum": "np.minimum(of_sum, 700.0)))[- * np.exp(top)-]",
        },
        ("softmax", "differentiated product in float32, tiny cotangents", "dv"): {
            "underflow of dO / l": "lost = [-division_underflow(x, c) + -]_largest",
        },
        ("multiplicands", "differentiated product in float32, cotangents that underflow", "dv"): {
            "underflow of dO / l on entry": "(cast.eta[- + enters.eta-])",
        },
        ("softmax", "differentiated product in float32, many small values, dropout", "dk"): {
            "underflow of D / l, raised": "return [-x.largest_factor * -]_largest_row_sum(x, c) * 2",
        },
        ("weight_gradients", "differentiated product, subnormal dP, dropout", "dk"): {
            "underflow of dP that is multiplied by l, raised": "lost = [-x.largest_factor * -]raised + (1",
        },
        ("softmax", "differentiated product in float32, small values", "dk"): {
            "underflow of D / l": (
                "return [-x.largest_factor * _largest_row_sum(x, c) * 2 * "
                'rounding(c, "softmax").eta if divides_cotangent(c) else -]0.0\n'
            ),
        },
        ("softmax", "differentiated product in float32, small cotangents", "dv"): {
            "what underflows in dO / l, times l": (
                'return x.largest_factor * [-_largest_row_sum(x, c) * -]2 * rounding(c, "softmax").eta'
            ),
        },
        ("softmax", "differentiated product in float32, values alike", "dk"): {
            "roundings of dO / l": "own = growth([-*division(x, c), -](cast.u, 1))",
            "both roundings of dO / l": "[-2 + -]R + 4 * c.lse_merges",
            "one of two roundings of dO / l": "[-2-]{+1+} + R + 4 * c.lse_merges",
        },
    },
    "error.reference_gradients": {
        ("weight_gradients", "differentiated product in float32, values alike", "dk"): {
            "errors of dP that are left of a reference": "return [-self.edP + -]probability_cast(self.c).u * self.dP",
            "all keys of a run": "left = [-_over_runs(x, c, -]{+(+}np.where(x.visible, most",
            "keys before the largest of a run": "np.take_along_axis(sums, at - [-before-]{+0 * before+}, axis=-1)",
            "keys after the largest of a run": "take_along_axis(sums, at + 1 + [-after-]{+0 * after+}, axis=-1)",
        },
        ("several", "differentiated product in float32, tf32", "dk"): {
            "casts of weights that are left of a reference": (
                "return self.edP[- + probability_cast(self.c).u * self.dP-]"
            ),
        },
        ("several", "differentiated product in float32, tf32, row sum of the cast", "dk"): {
            "casts of weights in a row sum that are left of a reference": (
                "each = each[- + probability_cast(c).u * row.D-]\n"
            ),
        },
        ("score_accumulation", "differentiated product in float32, values of both signs", "dk"): {
            "sums that are left of a reference": (
                'growth(([-rounding(self.c, "score_accumulation").u, n), (-]stored.u'
            ),
            "keys in sums that are left of a reference": "row.summed([-x.keys + -]4)",
            "dP in sums that are left of a reference": "row.summed(x.keys + 4) * ([-row.dP + -]row.D)",
        },
        ("stored_scores", "differentiated product in float32, values of both signs", "dk"): {
            "stores that are left of a reference": '"score_accumulation").u, n)[-, (stored.u, 2)-])',
        },
        ("score_accumulation", "differentiated product in float32, dL alone", "dk"): {
            "dL in what is left of a reference": "+ eD[- + dL-],",
            "sums of gradients that are left of a reference": (
                "    each = each[- + row.summed(x.keys + 4) * (row.dP + row.D)-]\n"
            ),
            "delta in sums that are left of a reference": "row.summed(x.keys + 4) * (row.dP[- + row.D-])\n",
        },
        ("row_sum", "differentiated product in float32, values alike", "dk"): {
            "delta's own factors that are left of a reference": (
                "row.own + [-(growth(*division(x, c), *late_roundings(x, c)) + row.C) * row.D + -]division_underflow"
            ),
            "the row sum that is left of a reference": "late_roundings(x, c))[- + row.C-]) * row.D",
            "what a key leaves of a reference": "most * [-_in_run(row)-]{+0.0+} + _underflow_in_run(row), 0.0)",
        },
        ("softmax", "differentiated product in float32, dL alone", "dk"): {
            "roundings of D / l that are left of a reference": (
                "row.own + ([-growth(*division(x, c), *late_roundings(x, c)) + -]row.C)"
            ),
            "the division of D by l that is left of a reference": "growth([-*division(x, c), -]*late_roundings",
        },
        ("softmax", "differentiated product in float32, values alike", "dk"): {
            "roundings of an output that are left of a reference": (
                "last=(dO * ([-e.finish * np.abs(x.O) + -]e.tiny))"
            ),
            "last roundings of an output that are left of a reference": (
                "apart * row.of_v[- + (row.divided if row.in_parts else row.last)-]\n"
            ),
        },
        ("softmax", "differentiated product in float32, small values", "dk"): {
            "underflow of D / l that is left of a reference": "row.D[- + division_underflow(x, c)-]\n",
        },
        ("output_accumulation", "differentiated product in float32, values alike", "dk"): {
            "products of weights with values that are left of a reference": (
                "each = each + [-apart * row.of_v + -](row.divided"
            ),
            "sums of weighted values that are left of a reference": (
                "apart = [-(1 + row.moved) * -](1 + row.summed(x.v.shape[-1] + 2)) - 1\n    each"
            ),
        },
        ("score_accumulation", "differentiated product in float32, many columns", "dk"): {
            "delta's sum that is left of a reference": (
                "apart = (1 + row.moved)[- * (1 + row.summed(x.v.shape[-1] + 2))-] - 1\n    each"
            ),
            "columns in delta's sum that are left of a reference": (
                "apart = (1 + row.moved) * (1 + row.summed([-x.v.shape[-1] + -]2))"
            ),
        },
        ("multiplicands", "differentiated product in float32, subnormal values", "dk"): {
            "underflow on entry that is left of a reference": (
                "return each[- + x.largest_factor * (entry(c, value_format(x, c)).eta + row.lost) * row.dO-]\n\n"
            ),
            "underflow of values on entry that is left of a reference": (
                "return each + x.largest_factor * ([-entry(c, value_format(x, c)).eta + -]row.lost) * row.dO"
            ),
        },
        ("multiplicands", "differentiated product in float32, subnormal values, dropout", "dk"): {
            "underflow on entry that is left of a reference, raised": "each + [-x.largest_factor * -](entry(c, value",
        },
        ("multiplicands", "differentiated product in float32, light keys", "dk"): {
            "underflow of weights that is left of a reference": "([-of_weights + -]of_sums)",
            "underflow of casts of weights that is left of a reference": (
                "of_weights = [-_cast_underflow(row) * row.dP + -](steps"
            ),
            "a cast that underflows": (
                "np.where([-x.s - delta < highest + math.log(smallest) + 1.0-]{+x.s < -np.inf+}, probability_cast"
            ),
        },
        ("output_accumulation", "differentiated product in float32, tiny values", "dk"): {
            "underflow of weighted values that is left of a reference": "(of_weights[- + of_sums-])",
            "underflow that is left of a reference": "most * _in_run(row)[- + _underflow_in_run(row)-], 0.0)",
        },
        ("output_accumulation", "differentiated product in float32, tiny values, dropout", "dk"): {
            "underflow of weighted values that is left of a reference, raised": (
                '"output_accumulation")[- * x.largest_factor-] * row.dO\n    of_weights'
            ),
        },
        ("stored_scores", "differentiated product in float32, small cotangents", "dk"): {
            "underflow of gradients that is left of a reference": "[- + x.largest_factor * small-]\n",
            "underflow of stored gradients that is left of a reference": "(x, c) * work[- + 2 * stored-]\n",
        },
        ("stored_scores", "differentiated product in float32, small cotangents, dropout", "dk"): {
            "underflow of gradients that is left of a reference, raised": "+ [-x.largest_factor * -]small\n",
        },
    },
}
