"""How scores are rounded, and what all products share.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

SCORES: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.roundoff": {
        ("score_gradients", "operands cut", "dv"): {
            "bits that are cut, not rounded": "Rounding([-cuts * -]form.unit_roundoff",
            "cutting on entry to a product": (
                'return [-c.entry_rounding or c.rounding if stage == "multiplicands" else -]c.rounding'
            ),
        },
        ("score_accumulation", "tiny cotangents, toward zero", "dk"): {
            "underflow of results that are cut": ", [-cuts * -]tiny)",
        },
        ("score_accumulation", "tiny scores, kept", "dv"): {
            "all underflow": "cuts * [-tiny-]{+0.0+})",
        },
        ("multiplicands", "tiny values, flushed", "output"): {
            "results that are flushed": "tiny = [-form.smallest_normal if flushes else -]form.smallest",
        },
        ("stored_scores", "tiny values, flushed on entry", "output"): {
            "flushing on entry to a product": (
                '"flushed"[- or (entering and c.float16_subnormals == "flushed_on_entry")-]'
            ),
            "flushing on an exact conversion": (
                'Rounding(0.0, [-form.smallest_normal if flushes(c, form, entering=stage == "multiplicands"'
                ") else -]0.0)"
            ),
        },
        ("several", "bfloat16 that flushes", "output"): {
            "flushing of formats of float32's range": (
                'return [-c.subnormals == "flushed" and form.emin == FORMATS["float32"].emin-]{+False+}'
            ),
        },
        ("output", "light keys, tf32 to float16", "output"): {
            "formats of as many bits and a smaller range": (
                "form.precision >= source.precision[- and form.emin <= source.emin-]"
            ),
        },
        ("probabilities", "2 pieces, bfloat16, by LSE", "output"): {
            "formats of the same range and fewer bits": (
                "return [-form.precision >= source.precision and -]form.emin <="
            ),
        },
        ("partial_gradients", "error of log, float32", "lse"): {
            "elementary functions of float32": (
                'work = "float64"[- if c.format("score_accumulation").precision == FORMATS["float64"].preci'
                'sion else "float32"-]'
            ),
        },
        ("softmax", "eager, P dP - P D", "dv"): {
            "the store of the row sum": 'return [-conversion(c, "softmax", c.format("row_sum")).u-]{+0.0+}',
        },
    },
    "error.products": {
        ("several", "a row sum of weights that the cast flushes", "lse"): {
            "a row sum of what a cast only flushes": "and probability_cast(c)[- != EXACT-]{+.u > 0+}",
        },
        ("several", "a row sum of weights of two pieces", "lse"): {
            "pieces that enter a row sum together": (
                'stages += ["probabilities", "multiplicands"][- if c.multiplicand_pieces == 1 else ["probabilities"]-]'
            ),
        },
        ("several", "2 pieces, bfloat16, by LSE", "output"): {
            "what the last piece leaves": "Rounding([-one.u**pieces-]{+0.0+}, 4",
            "products of pieces that are left out": "if [-i + j >= P-]{+i + j > P+})",
            "products of pieces, all left out": "return [-sum-]{+0.0 * sum+}(u**i",
        },
        ("probabilities", "one tile", "output"): {
            "the cast of the probabilities": ("Rounding([-own.u + -]enters.u{+ + 0.0+}[- + own.u * enters.u-], own"),
        },
        ("score_gradients", "operands cut", "dv"): {
            "entry of the probabilities to the product": "own.u + [-enters.u-]{+0.0+} + own.u * enters.u",
        },
        ("several", "a light key of a large value, probabilities", "output"): {
            "underflow of a probability's cast": ", [-own.eta + -]enters.eta)",
        },
        ("probabilities", "2 keys, cast row sum", "dv"): {
            "the cast in the row sum": (
                'return [-c.row_sum_of == "cast" and c.normalize == "after_product" and probability_cast(c)'
                " != EXACT-]{+False+}"
            ),
        },
        ("row_sum", "2 keys, eager", "dk"): {
            "the entry of a weight to the row sum": (
                'return [-conversion(c, "row_sum", min((c.format(stage) for stage in stages), key=lambda fo'
                "rm: form.precision))-]{+EXACT if stages else EXACT+}"
            ),
        },
        ("several", "pieces one by one, output", "output"): {
            "a product of pieces is several": (
                "return n[- * (c.multiplicand_pieces * (c.multiplicand_pieces + 1) // 2)-]"
            ),
        },
        ("score_accumulation", "parts by LSE, V = 1", "dv"): {
            "the rounding of a product before its sum": "depth = n[- if-]{+ - 1.0 if+} c.summation_depth",
        },
        ("gradient_accumulation", "depth 3", "dq"): {
            "a declared depth of summation": (
                "np.minimum(n, c.summation_depth[-)-]{+ - 1)+}\n    if c.inner_accumulation"
            ),
        },
        ("probabilities", "tiny values, inner, kept", "lse"): {
            "the inner accumulator's sums": "factors = ([-*factors-]{+*()+}, (rounding",
        },
        ("score_accumulation", "inner accumulator", "dv"): {
            "additions to the outer accumulator": "factors = (*factors,[- (rounding(c, stage).u, depth)-])",
        },
        ("score_accumulation", "tiny cotangents, toward zero", "dv"): {
            "sums that are cut one by one": '[-(2 if c.rounding == "toward_zero" else 1)-]{+1+}',
        },
        ("scores", "unit 8 -3, D 4", "output"): {
            "the cut of a sum on a matrix unit": "cut = [-2 * -]form.unit",
        },
        ("several", "sums of 2 on a unit of 1, 0 bits", "lse"): {
            "the cuts of single sums": "return ((cut, [-depth-]{+0.0 * depth+}),)",
        },
        ("gradient_accumulation", "matrix unit, fewer bits", "dk"): {
            "bits below the grid of a block": "aligned = cut[- * 2.0**-c.matrix_extra_bits-]",
        },
        ("several", "sums of 2 on a unit of 4, 0 bits", "lse"): {
            "alignment to the largest": (
                "return ([-(aligned, n if widest <= form.precision + c.matrix_extra_bits else n + passed), "
                "-](cut, passed)[-)-]{+,)+}"
            ),
        },
        ("several", "sums of 2 on a unit of 4, 2 bits", "lse"): {
            "the cut of a block's sum": ", [-(cut, passed)-])",
        },
        ("several", "inner accumulator, tiny scores", "lse"): {
            "the underflow of an inner accumulator": (
                'return outer[- if c.inner_accumulation is None else max(outer, rounding(c, "inner_accumula'
                'tion").eta)-]'
            ),
        },
    },
    "error.score_bounds": {
        ("score_accumulation", "scale 2.0, operands", "dv"): {
            "powers of 2 have no exact root": "is_power_of([-4-]{+2+}, sigma)",
        },
        ("stored_scores", "roots of the scale", "dv"): {
            "storing a scaled operand": "growth([-(stored.u, 1), -](work.u, 3",
            "scaling one operand": "(scaled.u, [-2-]{+1+})",
            "scaling both operands": "[-(scaled.u, 2), -]*roundings",
        },
        ("score_accumulation", "roots of the scale", "dv"): {
            "both roundings of the operand's factor": "[-(work.u, 3 if folds else 2)-]",
        },
        ("several", "tiny scaled query stored scores query 0.0004883", "lse"): {
            "underflow of a scaled operand": "Rounding(u, [-stored.eta * _unscaling(x, c)-]{+0.0+})",
            "underflow of a scaled operand before it is unscaled": "stored.eta[- * _unscaling(x, c)-])",
            "underflow of operands that are scaled": "eta = enters.eta[- + scaled.eta-]",
            "underflow of operands times the other operand": ("underflow + [-eta * (sizes + d * eta)-]{+0.0+})"),
        },
        ("several", "tiny scaled query multiplicands query 0.0004883", "lse"): {
            "underflow on entry of a scaled operand": ("Rounding(enters.u, [-enters.eta * _unscaling(x, c)-]{+0.0+})"),
            "underflow on entry, before it is unscaled": "enters.eta[- * _unscaling(x, c)-])",
            "underflow of operands on entry": "eta = [-enters.eta + -]scaled.eta",
        },
        ("score_accumulation", "tiny queries, softcap folded, kept", "dv"): {
            "unscaling by a softcap": "abs(x.problem.scale_value)[-, x.problem.softcap or 0.0-])",
            "underflow of a scaled score's sums": '"score_accumulation")[- * _unscaling(x, c)-]\n    underflow',
        },
        ("score_gradients", "operands cut", "lse"): {
            "entry of one operand of a score": "(enters.u, [-2-]{+1+})",
            "entry of both operands of a score": "[-(enters.u, 2), -](left_out",
            "exact scores have operands that enter exactly": "if [-operand_entry(x, c).u or -]operand_scaling",
        },
        ("stored_scores", "2 pieces, bfloat16, by LSE", "lse"): {
            "pieces left out of a score": "[-(left_out(c, form, form), 1), -](scaled.u, 2)",
        },
        ("score_accumulation", "parts by LSE, V = 1", "lse"): {
            "sums of a score": "(scaled.u, 2)[-, *roundings-])",
        },
        ("score_accumulation", "tiny scores, kept", "dv"): {
            "underflow of both products and sums": "underflow = [-2 * -]terms(c, d)",
            "underflow of a score's sums": (
                '[-2 * terms(c, d) * sum_underflow(c, "score_accumulation") * _unscaling(x, c)-]{+0.0+}'
            ),
        },
        ("stored_scores", "roots of the scale", "output"): {
            "exact scores have operands that are not scaled inexactly": (
                "operand_entry(x, c).u[- or operand_scaling(x, c).u-] or"
            ),
        },
        ("partial_gradients", "error of log, float32", "output"): {
            "exact scores fit the accumulator": "return [-fits & -](products >=",
        },
        ("stored_scores", "base 2", "dv"): {
            "storing a score": "delta + [-stored.u * (np.abs(x.scaled) + delta) + -]sigma * stored.eta",
            "the scaled score's rounding": (
                "if not is_power_of(2, sigma):\n        delta = delta + growth((work.u, 2)[-, (stored.u, 1)-])"
            ),
        },
        ("stored_scores", "tiny scores, kept", "dv"): {
            "underflow of storing a score": "(np.abs(x.scaled) + delta)[- + sigma * stored.eta-]",
            "the scaled score's underflow": "+ delta)[- + stored.eta-]\n    elif",
        },
        ("score_accumulation", "parts by accumulators", "output"): {
            "one of two roundings of the scale": (
                "if not is_power_of(2, sigma):\n        delta = delta + growth((work.u, [-2-]{+1+})"
            ),
        },
        ("score_accumulation", "parts by LSE, V = 1", "dv"): {
            "both roundings of the scale": (
                "if not is_power_of(2, sigma):\n        delta = delta + growth([-(work.u, 2), -](stored.u"
            ),
        },
        ("several", "tiny scores, power of 2", "dv"): {
            "underflow by a scale of a power of 2": (
                "np.where(exact_scores(x, c) & (not narrows), 0.0, [-stored.eta-]{+0.0+})"
            ),
            "underflow of a scaled exact score that is stored": "exact_scores(x, c)[- & (not narrows)-]",
        },
        ("stored_scores", "bias rounded", "lse"): {
            "a bias rounded to the format of scores": "np.where(held, 0.0, [-loaded.u * size + -]loaded.eta)",
        },
        ("stored_scores", "bias and softcap", "lse"): {
            "the score over the softcap": ("growth((work.u, 2)[-, (stored.u, 1)-]) * (np.abs(x.scaled) + delta) + cap"),
            "one of two roundings after tanh": "(stored.u, [-2-]{+1+})) * (np.abs(x.capped)",
            "both roundings after tanh": "growth((work.u, 1)[-, (stored.u, 2)-]) * (np.abs(x.capped)",
        },
        ("several", "a slope nearby, float64 sums", "lse"): {
            "the largest slope nearby": "np.abs(x.scaled)[- - _divided_error(x, c, delta, cap)-], 0.0)",
        },
        ("stored_scores", "error of tanh, eager", "dv"): {
            "the error of tanh": 'cap * ([-elementary_error(c, "tanh_error") + -]2 *',
        },
        ("several", "softcap folded, tiny stored scores", "lse"): {
            "underflow of tanh": '"tanh_error")[- + 2 * stored.eta-])',
        },
        ("several", "a score beyond the softcap", "dv"): {
            "the softcap itself, rounded": "growth([-(work.u, 1), -](stored.u, 2)) * (np.abs(x.capped)",
        },
        ("scores", "bias first", "dv"): {
            "one rounding of a bias that is divided by the scale": "else (work.u, [-7-]{+6+})",
        },
        ("score_accumulation", "bias first", "dv"): {
            "two roundings of a bias that is divided by the scale": "else (work.u, [-7-]{+5+})",
        },
        ("score_accumulation", "tiny bias, bias first, kept", "dv"): {
            "a bias that is divided by the scale": "else (work.u, [-7-]{+0+})",
        },
        ("score_accumulation", "tiny bias, bias first, kept", "lse"): {
            "underflow of a bias that is divided by the scale": "* size[- + 2 * work.eta * max(1.0, sigma)-]",
        },
        ("several", "tiny bias first, large scale score accumulation", "lse"): {
            "a large scale of that underflow": "2 * work.eta[- * max(1.0, sigma)-]",
        },
        ("stored_scores", "bias and softcap", "dv"): {
            "the sum with a bias": "delta + [-stored.u * (np.abs(x.s) + delta) + -]stored.eta + work.eta",
        },
        ("score_accumulation", "ALiBi alone, a light key", "output"): {
            "a slope that is rounded as it is loaded": "error = growth([-(loaded.u, 1), -](made.u",
            "the product of slope and distance": "(work.u, [-1 + -]constants)",
        },
        ("score_accumulation", "ALiBi first", "output"): {
            "a slope that is divided by the scale": "(work.u, 1 + [-constants-]{+0+})",
        },
        ("stored_scores", "ALiBi from the last key", "lse"): {
            "the product as it is stored": "1 + constants)[-, (stored.u, 1)-]) * size",
            "the sum with ALiBi": "delta + [-stored.u * (np.abs(x.s) + shift + delta) + -]of_sum",
            "sums that are moved": "np.abs(x.s) + [-shift + -]delta) + of_sum",
            "products of keys counted from one of them": ("far = [-farthest_key(x, c)-]{+far+}"),
        },
        ("stored_scores", "ALiBi and bias", "output"): {
            "the sum of two of score, bias and ALiBi": (
                "delta + [-stored.u * (np.abs(x.capped) + bias + size + delta) + -]of_sum"
            ),
        },
        ("score_accumulation", "ALiBi alone, tiny slopes", "lse"): {
            "underflow of a slope, a quotient and a product": (
                " + error[- + (1 + far) * (loaded.eta + 2 * made.eta + 3 * work.eta) * max(1.0, sigma)-]"
            ),
        },
        ("lse", "ALiBi from the first key", "lse"): {
            "what all scores of a row may differ by": "else slopes * [-_farthest_key(x)-]{+0.0 * _farthest_key(x)+}\n",
            "the store of a log-sum-exp that is moved": "growth((softmax.u, 1)[-, (final.u, 1)-]) * largest",
        },
        ("softmax", "ALiBi, tiny slopes from the first key", "dv"): {
            "the sum that moves a log-sum-exp": "growth([-(softmax.u, 1), -](final.u, 1)) * largest",
        },
        ("lse", "ALiBi, tiny slopes from the first key", "lse"): {
            "the log-sum-exp that is moved": "largest = [-L + -]shift + product",
            "an error that is moved": "shift + product[- + error-]",
        },
        ("several", "ALiBi in bfloat16, a far key", "lse"): {
            "a distance that is rounded to a format of its own": "(made.u, [-3-]{+2+})",
        },
        ("alibi_terms", "ALiBi alone, a light key", "output"): {
            "slope and product in a format of their own": "(made.u, [-3-]{+1+})",
            "slope, distance and product in a format of their own": "[-(made.u, 3), -](work.u, 1 + constants)",
        },
        ("alibi_terms", "ALiBi alone, tiny slopes", "lse"): {
            "underflow of a slope and a product in their own format": "loaded.eta + [-2 * made.eta + -]3",
        },
        ("score_accumulation", "large scores, one key, by LSE", "output"): {
            "both scores of a key": "[-2 * -]np.maximum(score_error(x, c) - shared",
        },
        ("score_accumulation", "large scores, softcap, one key, by LSE", "output"): {
            "what two scores under a softcap do not share": (
                "np.minimum(delta * slope, 2 * cap)[- - np.minimum((delta - shared) * slope, 2 * cap)-]\n"
            ),
        },
    },
}
