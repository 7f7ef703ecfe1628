"""Terms without a witness, by module and by the reason why no attack shows that they are needed."""

from __future__ import annotations

GRADIENTS: dict[str, dict[str, dict[str, str]]] = {
    "error.bounds": {
        (
            "the bound lets every key pass all merges with all their errors alike; the kernels that merge "
            "here leave half of that room"
        ): {
            "merges of the output": "(rescaled.u, moved[- + 2 * merges-])",
            "half of the merges of the output": "(rescaled.u, moved + [-2 * -]merges)",
            "what merging adds to the numerator": "B = [-(1 + B) * (1 + _merge_growth(x, c)) - 1-]{+B+}",
            "underflow of merged weights": "4 * merges * ([-softmax.eta + -]tiny_sum",
            "underflow of merged outputs": "softmax.eta[- + tiny_sum-] + partial",
            "merged outputs normalized by a rounded LSE": (
                "finish = [-(1 + finish) * np.exp(merges * partial_lse_error(x, c)) - 1-]{+finish+}"
            ),
            "four stores of a merge": ", [-4 * -]c.lse_merges))",
            "stores of a merge": 'stores = growth((rounding(c, "softmax").u, [-4 * c.lse_merges-]{+0.0+}))',
            "the weights of a merge": "* np.exp(np.minimum([-2 * -]c.lse_merges",
            "all weights of a merge": "* np.exp(np.minimum([-2 * c.lse_merges * -]{+0.0 * +}merge",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "roundings make the output's underflow grow": "absolute = [-(1 + most_B) * -](",
            "roundings make a value's underflow grow": "entering = [-(1 + most_B) * -](enters.eta",
            "underflow of values in the hull": "absolute[- + 2 * f * entering-] + 2 * waiting",
            "underflow grown, with weights exp(s - LSE)": "absolute = [-(1 + B) * -]((cast.eta + 4",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of normalized weights": "largest_factor, [-2 * (before + every) * softmax.eta + -]lost",
            "underflow before normalization": "[-(1.0 if before else w.inverse_sum) * -]absolute",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "underflow of the output at rescalings": (
                "steps = terms(c, x.keys)[- + w.R.max(axis=-1, keepdims=True, initial=0.0)-]"
            ),
            "several underflows of a merge": "waits = [-4 * -]merges",
            "several underflows of weights exp(s - LSE)": "(cast.eta + [-4 * -]softmax.eta + lost) * total_v",
        },
        "weighs as much as the row sum's relative roundings only in rows of hundreds of light keys": {
            "underflow of the row sum in the output": "w.eta * total_v[- + x.keys * w.eta_sum * size_o-])",
        },
        (
            "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order"
        ): {
            "underflow of the output's row sum": "keepdims=True)[- - w.inverse_sum * x.keys * w.eta_sum-],",
        },
        (
            "the hull of the values is the smaller bound only where weights are all but lost, and is then "
            "too wide to be attained"
        ): {
            "underflow of sums in the hull": "outside_hull=[-2 * divided * absolute + -]2 * f",
            "roundings outside the hull": "[- + loose * np.maximum(np.abs(high), np.abs(low))-]",
            "what underflows in the row sum alone, in the hull": "most_C[- + e.divided * x.keys * w.eta_sum-]",
            "roundings of the numerator outside the hull": "([-1 + most_B-]{+1.0+}) / (1 - 2",
            "roundings of the row sum outside the hull": "(1 + most_B)[- / (1 - 2 * np.minimum(most_C, 0.25))-]",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the error of o's own evaluation": "spread(x, c, w.PA, o)[- + w.PA.sum(-1, keepdims=True) * slack-]",
            "the evaluation of the output in float64": "+ e.tiny)[- * INFLATION-]",
            "the evaluation of an output by LSE in float64": "+ lost)[- * INFLATION-]",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "blocks at the ends of tiles": "math.ceil(length / c.matrix_block)[- + c.tiles(length)-])",
        },
    },
    "error.score_gradient_bounds": {
        "a log-sum-exp so far off that a far weight counts leaves every near one without a bound": {
            "what far weights have in common with others": "np.where([-x.seen-]{+x.visible+}, own + common, 0.0)",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "the row's weights with delta in dq": "eD_weighted = [-(1 + G) * -]eD",
            "roundings of P's error in dA": "dA = own[- * (1 + relative)-] + relative",
            "both factors of dP underflow": "+ entering[- + Dv * of_g.eta * off_v-]",
            "roundings make dP's underflow grow": "[-(1 + relative) * -]underflow",
            "the slope's second order": "2 * t * e[- + e * e-] +",
            "the slope's error with dA's": "(exact[- + factor-]) * dA",
        },
        "no emulated kernel does what this allows: weights of dL found apart from those of dP - D": {
            "one more rounding with dL": "row.around + dL, [-2-]{+1+}",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of dA": "tiny = [-4 * work.eta + -]2 * parts",
            "underflow of a stored weight's division": ", [-4 * softmax.eta + -]w.eta * w.inverse_sum",
            "underflow of a stored weight": "4 * softmax.eta[- + w.eta * w.inverse_sum-]",
            "underflow on entry to dP": '"gradient_accumulation")[- + entering-] + Dv',
            "cotangents that meet underflowing values": "entering = [-off_v * size_g.sum(-1)[..., :, None] + -]of_g",
            "values that meet underflowing cotangents": "[..., :, None][- + of_g.eta * size_v.sum(-1)[..., None, :]-]",
            "underflow of storing dP": "+ dP)[- + stored.eta * (x.largest_factor + (1 if factor else 0))-]",
            "underflow of the sum with dL": "[..., None])[- + x.largest_factor * work.eta-]",
            "underflow of delta times 1 - p": "x.c is None else D[- + x.largest_factor * work.eta-]",
            "underflow of storing dP, raised": "stored.eta * ([-x.largest_factor-]{+1+} + (1 if factor else 0))",
            "underflow of dP times 1 / (1 - p)": "(x.largest_factor[- + (1 if factor else 0)-])",
            "underflow of the sum with dL, raised": "[..., None]) + [-x.largest_factor * -]work.eta\n    if late",
            "underflow of delta's sum over keys, raised": "n * [-x.largest_factor * -](2 * work.eta",
            "underflow of the product with the slope, raised": "eta = [-x.largest_factor * -]stored.eta",
            "underflow of delta's sum": "+ summed[- + 2 * Dv * work.eta-]",
            "underflow of the stored products of delta": 'work.eta[- + rounding(c, "stored_scores").eta-])\n    return',
            "underflow of delta's sum over keys": 'n * x.largest_factor * ([-2 * work.eta + -]rounding(c, "stored',
            "underflow of the product with the slope": "+ dS)[- + eta * (1 + 2 / cap)-]",
            "underflow of dS's store": ('rounding(c, "score_gradients").eta[- + rounding(c, "stored_scores").eta-]'),
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the product of dP with 1 / (1 - p)": "blocks=math.ceil(Dv / c.matrix_block))[-, *factor-]{+,+})",
            "the sums of P dP less P D": "tiny = tiny + growth([-(work.u, 1), -](stored.u, 1)) * weights",
            "entry of one factor of dP": "growth([-(of_g.u, 1), -](of_v.u, 1), (left_out",
            "pieces left out of dP": '(of_v.u, 1), [-(left_out(c, c.format("output"), form), 1), -]*roundings',
            "the stored products of delta": "growth((work.u, depth)[-, (stored.u, 1)-]) * weights",
            "the sum with dL": (
                "D + [-work.u * (np.abs(g.D) + D + np.abs(g.lse_cotangent)[..., None]) + -]x.largest_factor"
            ),
            "one rounding of delta's sum": "min(Dv, c.summation_depth or Dv)[-)-]{+ - 1)+}",
            "one rounding of delta's sum over keys": ('work, n = rounding(c, "score_accumulation"), x.keys[- + 1.0-]'),
            "two roundings of delta's sum over keys": (
                'work, n = rounding(c, "score_accumulation"), x.keys[- + 1.0-]{+ - 1.0+}'
            ),
            "the slope's roundings": "e * e[- + 4 * stored.u-]",
            "half of the slope's roundings": "e * e + [-4-]{+2+} * stored.u",
            "three quarters of the slope's roundings": "e * e + [-4-]{+1+} * stored.u",
            "storing tanh in the slope": "/ cap[- + stored.u * t-]",
            "the product with the slope": "dS[- + relative * (np.abs(g.dS) + dS)-] + eta",
            "the store of that product": "relative = growth([-(stored.u, 1), -](work.u, 1))",
            "the constant of that product": "relative = growth((stored.u, 1)[-, (work.u, 1)-])\n    exact",
        },
        (
            "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order"
        ): {
            "the truth in the most of dA": "(total + EX)[- + x.P * row.size-] + tiny",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "several underflows of a stored weight's division": ", [-4 * -]softmax.eta + w.eta * w.inverse_sum",
            "several underflows of recomputed weights": "np.full(x.L.shape, [-4 * -]softmax.eta)",
            "underflow of both products and sums of dP": "underflow = [-2 * -]terms(c, Dv) * sum",
        },
        "weighs as much as the row sum's relative roundings only in rows of hundreds of light keys": {
            "underflow in the defect of weights": (
                "N[- + x.keys * (weights.eta + w.inverse_sum * w.eta_sum)-]\n    sizes"
            ),
        },
    },
    "error.dropout_bounds": {
        "no emulated kernel does what this allows: 1 / (1 - p) kept for the end in the softmax's format": {
            "the softmax's format at the end": 'return factor_roundings(x, c, [-"softmax", -]"score_accumulation")',
        },
    },
    "error.gradient_bounds": {
        "the adversary does not compute scores that are no products of operands": {
            "1 / (1 - p) at the end of other scores": "(narrowed, 1)[-, *late_roundings(x, c)-]) * size",
            "underflow in other scores, raised": "tiny = 2 * [-x.largest_factor * -]last_factor(x)",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the evaluation of gradients in float64": "error.shape)[- * INFLATION-]",
            "the weights' evaluation in gradients": "out.eta)[- * _widening(alpha, name, error.shape)-]",
            "the evaluation of P k": "shared = np.abs(b.P_slope @ k)[- + evaluated * (b.P_slope @ size)-]",
        },
        ("no emulated kernel does what this allows: gradients that are scaled in a format of another precision"): {
            "storing dq and dk before their scale": "(scaled.u, 1), [-(widened.u, 1), -](work",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the scaled operand's entry in dq and dk": "return growth([-(operand.u, 1), -](dS_entry",
            "dS's entry": "(operand.u, 1), [-(dS_entry.u, 1), -](missing",
            "pieces left out of dq and dk": "(dS_entry.u, 1), [-(missing, 1), -]*late",
            "the operand that was scaled for dq and dk": "scaling = ([-(scaled.u, 1), -](widened",
            "one rounding of the last scale": "return [-3-]{+2+} * sum(not",
            "the softcap as the last factor": "constants = abs(x.problem.scale_value),[- x.problem.softcap or 1.0-]",
            "the root that is left for the last scale": "last[- + (2 if scaled.u else 0)-]",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "underflow of stored products of dq and dk": "2 * (stores[- + n * (partial.u > 0)-])",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of scaled operands in dq and dk": "entering = (operand.eta[- + scaled.eta-])",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "roundings make underflow grow in dv": "[-(1 + G) * -](sums.v.eta + cotangent",
            "roundings make underflow grow in dq and dk": "sigma * unscaled + [-(1 + G) * -]entering",
            "roundings make the underflow of dS grow": "G * sums.total + [-(1 + G) * -]dS_entry",
            "underflow of both factors of dq and dk": "(sigma * sums.entered[- + factor * n * dS_entry.eta-])",
        },
    },
    "error.option_gradient_bounds": {
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "one rounding of dbias's sum": "np.minimum(n[-,-]{+ - 1,+} c.summation_depth or np.inf)), (partial",
            "dA as it is stored for dbias": "(cast.u, 1)[-, (narrow.u, 1)-], *late",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "underflow of dbias's stored products": "accumulator.eta[- + partial.eta-])",
            "underflow of dbias's stores": "partial.eta)[- + stores * partial.eta-]",
            "the factor 2 of dbias's underflow": "G * sums.total + [-2 * -]tiny",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of dA's store in dbias": 'rounding(c, "score_gradients").eta[- + stored.eta-] + acc',
            "underflow of dbias, raised": "2 * tiny[- * raised-])",
            "underflow of dbias's sums": "stored.eta[- + accumulator.eta-] + partial",
        },
    },
    "error.gradient_sums": {
        ("no emulated kernel does what this allows: gradients that are scaled in a format of another precision"): {
            "a gradient cast from the wider format": "key=lambda form: [-form.precision-]{+-form.precision+})",
        },
        "no emulated kernel does what this allows: as many stores of a gradient as are allowed": {
            "one store of a gradient": "np.minimum(c.gradient_stores[-, n-]{+ - 1, n+})",
        },
    },
}
