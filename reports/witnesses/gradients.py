"""How gradients are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

GRADIENTS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.gradient_bounds": {
        ("score_accumulation", "late dropout, equal scores", "dq"): {
            "1 / (1 - p) at the end of dq and dk": "(missing, 1), [-*late, -]*scaling",
        },
        ("multiplicands", "late dropout, tiny cotangents, large scale, kept", "dk"): {
            "underflow of dS on entry, raised": "dS_entry.eta * sums.seen[- * raised-]",
        },
        ("gradient_accumulation", "late dropout, tiny cotangents, scaled dS, kept", "dq"): {
            "underflow of sums of dq and dk, raised": "factor = [-raised * -]last_factor(x)",
        },
        ("gradient_accumulation", "late dropout, small cotangents, large scale, kept", "dv"): {
            "underflow of sums of dv, raised": "tiny = [-sums.raised * -](sum_eta(c) * 4",
        },
        ("softmax", "late dropout, one key, tiny cotangents, flushed", "dv"): {
            "underflow of dv when it is raised": "2 * (stores + n))[- + factor_eta-]\n",
        },
        ("softmax", "a weight that dropout keeps", "dv"): {
            "the product of dV with 1 / (1 - p)": "(missing, 1), [-*factor, -]*acc",
        },
        ("softmax", "a tiny gradient of a value kept", "dv"): {
            "underflow of the product of dV with 1 / (1 - p)": "(stores + n))[- + factor_eta-]",
        },
        ("gradients", "another seed", "dv"): {
            "a gradient's cast": "(error[- + out.u * (size + error)-] + out.eta)",
        },
        ("gradients", "tiny values, kept", "dk"): {
            "underflow of a gradient's cast": "(size + error)[- + out.eta-])",
        },
        ("probabilities", "2 pieces, bfloat16, by LSE", "dq"): {
            "keys' own errors in dq": "apart = [-b.own @ size + -]b.G",
            "roundings of dq and dk": "unscaled = sums.own[- + G * sums.total-] +",
        },
        ("probabilities", "error of log, by LSE", "dq"): {
            "the row's weights in dq": "[-b.G * kept + -]b.D * shared",
        },
        ("probabilities", "one tile", "dq"): {
            "delta in dq": "kept[- + b.D * shared-]",
        },
        ("score_accumulation", "parts by accumulators", "dq"): {
            "scaling in dq and dk": "[-*scaling, -]*accumulated",
            "all roundings of the last scale": "[-(work.u, last + (2 if scaled.u else 0))-]",
        },
        ("scores", "normalized weights, tiles", "dq"): {
            "two roundings of the last scale": "return [-3-]{+1+} * sum(not",
        },
        ("partial_gradients", "base 2, softcap", "dq"): {
            "sums of dq and dk": "*scaling[-, *accumulated(c, n)-])",
        },
        ("probabilities", "one tile", "dk"): {
            "the error of dS in dq and dk": "unscaled = [-sums.own + -]G * sums.total",
        },
        ("multiplicands", "tiny cotangents, large scale, kept", "dk"): {
            "underflow of dS on entry": "G * sums.total[- + (1 + G) * dS_entry.eta * sums.seen * raised-]",
        },
        ("gradient_accumulation", "large bias, base 2", "dk"): {
            "underflow of dq's and dk's sums": "tiny = [-tiny_sum * 4 * terms(c, n) + -]partial.eta * 2",
            "all underflow of dq's and dk's sums": "[- + factor * tiny-] +",
        },
        ("gradient_accumulation", "tiny cotangents, scaled dS, kept", "dq"): {
            "several underflows of dq's and dk's sums": "tiny = tiny_sum * [-4 * -]terms(c, n) + partial",
        },
        ("partial_gradients", "tiny values, kept", "dk"): {
            "underflow of dq's and dk's stores": (
                "tiny_sum * 4 * terms(c, n)[- + partial.eta * 2 * (stores + n * (partial.u > 0))-]"
            ),
        },
        ("stored_scores", "tiny cotangents, scaled dS, kept", "dk"): {
            "underflow of a dS that is scaled early": "n * dS_entry.eta)[- + sums.early-]",
        },
        ("gradient_accumulation", "tiny cotangents, large scale, kept", "dq"): {
            "a scale that magnifies underflow": "[-factor * -]tiny + work.eta\n",
        },
        ("score_accumulation", "tiny cotangents, toward zero", "dk"): {
            "underflow of the last scale": "factor * tiny[- + work.eta-]",
        },
        ("multiplicands", "tiny queries, flushed", "dk"): {
            "underflow of operands in dq and dk": (
                "[-(operand.eta + scaled.eta) * (sigma * sums.entered + factor * n * dS_entry.eta) + -]sums.early"
            ),
            "underflow of operands on entry in dq and dk": "entering = ([-operand.eta + -]scaled",
        },
        ("lse", "2 pieces, bfloat16", "dv"): {
            "entry of dO": "return growth([-(cotangent.u, 1), -](missing, 1), *factor, *acc",
        },
        ("stored_scores", "2 pieces, bfloat16, by LSE", "dv"): {
            "pieces left out of dv": "(cotangent.u, 1), [-(missing, 1), -]*factor, *acc",
        },
        ("probabilities", "tiny values, inner, kept", "dv"): {
            "sums of dv": "*factor[-, *accumulated(c, n)-])",
            "roundings of dv": "error = sums.v.own[- + G * sums.v.total-] + (1",
        },
        ("probabilities", "one tile", "dv"): {
            "weights in dv": "error = [-sums.v.own + -]G * sums.v.total + (1",
        },
        ("several", "many light keys, probabilities", "dv"): {
            "underflow of weights in dv": "(1 + G) * ([-sums.v.eta + -]cotangent",
        },
        ("gradient_accumulation", "tiny cotangents, kept", "dv"): {
            "underflow of dv's sums": "sums.raised * ([-sum_eta(c) * 4 * terms(c, n) + -]partial.eta",
        },
        ("gradient_accumulation", "tiny cotangents, grouped, bias, kept", "dv"): {
            "several underflows of dv's sums": "sum_eta(c) * [-4 * -]terms(c, n)",
        },
        ("partial_gradients", "tiny cotangents, kept", "dv"): {
            "underflow of dv's stores": "sum_eta(c) * 4 * terms(c, n)[- + partial.eta * 2 * (stores + n)-]",
        },
        ("multiplicands", "light keys, softcap, flushed", "dv"): {
            "underflow of dO on entry": "(sums.v.eta[- + cotangent.eta * sums.v.entered-])",
        },
    },
    "error.gradient_key_sums": {
        ("probabilities", "dropout, weights", "dv"): {
            "weights of dV that are raised": "_of_keys([-dropped-](w.change)",
        },
        ("gradient_accumulation", "dropout, weights", "dv"): {
            "sums of weights that are raised": "P1A, weight_eta = [-dropped-](w.most)",
        },
    },
    "error.option_gradient_bounds": {
        ("score_accumulation", "late dropout, one key, dL alone", "dbias"): {
            "1 / (1 - p) at the end of dbias": "(narrow.u, 1)[-, *late_roundings(x, c)-])",
        },
        ("gradient_accumulation", "grouped heads, bias", "dbias"): {
            "sums of dbias": "[-(accumulator.u, np.minimum(n, c.summation_depth or np.inf)), -](partial",
        },
        ("partial_gradients", "bias", "dbias"): {
            "stores of dbias": "or np.inf)), [-(partial.u, stores), -]*stored_as",
        },
        ("score_gradients", "bias first", "dbias"): {
            "the cast of dbias": "stored_as = ([-(cast.u, 1), -](narrow",
            "all roundings of dbias": "sums.own[- + G * sums.total-] + 2",
        },
        ("probabilities", "tiny bias, flushed", "dbias"): {
            "the error of dA in dbias": "sums.total, [-sums.own + -]G",
        },
        ("score_gradients", "tiny cotangents, grouped, bias, kept", "dbias"): {
            "underflow of dbias": "G * sums.total[- + 2 * tiny * raised-]",
            "underflow of dA's cast in dbias": 'n * ([-rounding(c, "score_gradients").eta + -]stored',
        },
    },
    "error.gradient_sums": {
        ("probabilities", "inner accumulator", "dv"): {
            "sums in the accumulator of gradients": (
                'return ([-*sums(c, "gradient_accumulation", n), -](partial.u, stores)[-)-]{+,)+}'
            ),
        },
        ("partial_gradients", "parts by accumulators", "dv"): {
            "stores between partial sums of gradients": (
                '(*sums(c, "gradient_accumulation", n), [-(partial.u, stores)-])'
            ),
        },
    },
}
