"""Terms without a witness, by module and by the reason why no attack shows that they are needed."""

from __future__ import annotations

GRADIENTS: dict[str, dict[str, dict[str, str]]] = {
    "error.output_bounds": {
        (
            "the bound lets every key pass all merges with all their errors alike; the kernels that merge "
            "here leave half of that room"
        ): {
            "merges of the output": "growth([-(rescaled, 2 * c.lse_merges), -](partial",
            "half of the merges of the output": "growth((rescaled, [-2 * -]c.lse_merges), (partial",
            "what merging adds to the numerator": "(partial, c.lse_merges)))[- * (1 + _merge_growth(x, c))-] - 1",
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
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the error of o's own evaluation": "spread(x, w.PA, of)[- + w.PA.sum(-1, keepdims=True) * around-]",
            "the evaluation of the output in float64": "return (X + last)[- * INFLATION-]",
            "the evaluation of an output of a layer in float64": "through.of_each(last))[- * INFLATION-]",
        },
    },
    "error.row_sum_bounds": {
        (
            "the hull of the values is the smaller bound only where weights are all but lost, and is then "
            "too wide to be attained"
        ): {
            "what underflows in the row sum alone, in the hull": "w.C[- + divided(x, c) * x.keys * w.eta_sum-]\n",
        },
    },
    "error.products": {
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
            "the row sum of a mean of products": "row.g.dP - row.g.D, r)[- / least-]\n",
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
            "underflow of a stored weight's division": ", [-4 * softmax.eta + -]w.eta * np.fmin(w.inverse_sum, divided",
            "underflow of a stored weight": ("4 * softmax.eta[- + w.eta * np.fmin(w.inverse_sum, divided(x, c))-]"),
            "last underflow in the most of dA": "eta * (total + EX) * (1 + relative)[- + tiny-]\n    return",
            "underflow of a mean of products": (
                "np.where(least > 0.75, found, np.inf)[- + (size * e.outside_hull).sum(-1, keepdims=True)-]"
            ),
            "underflow of the sum with dL": "[..., None])[- + x.largest_factor * work.eta-]",
            "underflow of delta times 1 - p": "x.c is None else D[- + x.largest_factor * work.eta-]",
            "underflow of the sum with dL, raised": "[..., None]) + [-x.largest_factor * -]work.eta\n    if late",
            "underflow of delta's sum over keys, raised": "n * [-x.largest_factor * -](2 * work.eta",
            "underflow of the product with the slope, raised": "eta = [-x.largest_factor * -]stored.eta",
            "underflow of delta's division by l": ("* (np.abs(g.D) + D)[- + division_underflow(row.near, row.c)-]\n"),
            "underflow of delta's sum": "+ summed[- + 2 * Dv * work.eta-]",
            "underflow of the stored products of delta": 'work.eta[- + rounding(c, "stored_scores").eta-])\n    return',
            "underflow of delta's sum over keys": 'n * x.largest_factor * ([-2 * work.eta + -]rounding(c, "stored',
            "underflow of the product with the slope": "+ dS)[- + eta * (1 + 2 / cap)-]",
            "underflow of dS's store": ('rounding(c, "score_gradients").eta[- + rounding(c, "stored_scores").eta-]'),
        },
        "random_attack(7001785) is its witness, which a test attacks; none of the chosen ways leaves so little room": {
            "the rounding of P dP less P D": "tiny = tiny + [-(1 + relative) * -]products",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the sums of P dP less P D": "products = growth([-(work.u, 1), -](stored.u, 1)) * weights",
            "the stored products of delta": "growth((work.u, depth)[-, (stored.u, 1)-]) * weights",
            "the division of delta by l": (
                "D = D + [-growth(*division(row.near, row.c)) * (np.abs(g.D) + D) + -]division_underflow"
            ),
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
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "several underflows of a stored weight's division": ", [-4 * -]softmax.eta + w.eta * np.fmin(",
            "several underflows of recomputed weights": "np.full(x.L.shape, [-4 * -]softmax.eta)",
        },
        (
            "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order"
        ): {
            "the least weight in the most of dA": "return np.maximum(above, [-below-]{+0.0+})",
            "the least weight less P in the most of dA": "[-(x.P - w.least) * size + -]w.least * EX\n",
            "the least weight with the error of dP - D in the most of dA": (
                "(x.P - w.least) * size[- + w.least * EX-]\n"
            ),
            "dP with the largest weights in delta": "(weights.change * np.abs(g.dP)[- + weights.most * edP-])",
            "dP in a mean of products": "np.abs(g.dP)[- + factor * edP-] + row.slack",
        },
        "values are off only in layers, whose scores the adversary does not make as uncertain as a mean needs them": {
            "values that are off in a mean of products": "r = [-moved + -]e.B",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "the evaluation of P in the most of dA": "below)[- + evaluated * size-] + change",
            "the evaluation of P in the change of a weight": "x.P - least)[- + evaluated-])",
            "the evaluation of P beside the largest weight": "np.fmin(P1A, most[- + evaluated-])",
            "the evaluation of dP - D beside a mean of products": "keepdims=True)[- + row.slack-]\n    least",
            "the evaluation of dP - D beside a mean under stored weights": "factor * edP[- + row.slack-])",
        },
        "weighs as much as the row sum's relative roundings only in rows of hundreds of light keys": {
            "underflow in the defect of weights": (
                "N[- + x.keys * (weights.eta + np.fmin(w.inverse_sum, divided(x, c)) * w.eta_sum)-]\n"
            ),
        },
    },
    "error.weight_gradient_bounds": {
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "both factors of dP underflow": "underflow[- + Dv * of_g.eta * off_v-]\n",
            "roundings make dP's underflow grow": "[-(1 + relative) * -]underflow",
            "roundings of dO / l in its size": "size, error = size[- + own-], own",
            "errors of scores in the largest row sum": "0.0)[- + 2 * delta-]\n    return 2",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow on entry to dP": '"gradient_accumulation")[- + entering-]\n',
            "cotangents that meet underflowing values": "entering = [-off_v * size_g.sum(-1)[..., :, None] + -]of_g",
            "values that meet underflowing cotangents": "[..., :, None][- + of_g.eta * size_v.sum(-1)[..., None, :]-]",
            "underflow of values times 1 / (1 - p) in dP": 'of_v.eta[- + factor_underflow(x, c, "softmax")-]\n',
            "underflow of dP times 1 / (1 - p)": "lost = x.largest_factor * raised[- + (1 if factor else 0)-]\n",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the product of dP with 1 / (1 - p)": "blocks=math.ceil(Dv / c.matrix_block))[-, *factor-]{+,+})",
            "1 / (1 - p) of dP in the format of stored scores": '"softmax", [-"stored_scores", -]"weight_gradients")',
            "entry of one factor of dP": "growth([-(of_g.u, 1), -](of_v.u, 1), (left_out",
            "pieces left out of dP": "(of_v.u, 1), [-(left_out(c, cotangent_format(c), form), 1), -]*roundings",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "underflow of both products and sums of dP": "underflow = [-2 * -]raised",
            "two underflows of dO / l": '_largest_row_sum(x, c) * [-2 * -]rounding(c, "softmax").eta',
            "the factor 2 of the largest row sum": "return [-2 * -]np.minimum(x.keys",
        },
        "no emulated kernel does what this allows: several tiles or merged parts that a framework differentiates": {
            "rescale factors in dO / l": "2[- + R-] + 4 * c.lse_merges",
            "merges in dO / l": "R[- + 4 * c.lse_merges-])",
        },
    },
    "error.reference_gradients": {
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "errors of dP in what is left of references": "np.abs(g.dP)[- + edP-], 0.0)",
            "errors of delta in what is left of references": "np.abs(g.D)[- + eD-] + dL",
            "errors of dO in what is left of references": (
                "dO = [-cotangent_entering(x, g, c)[0]-]{+np.abs(g.cotangent)+}\n    dL"
            ),
            "roundings of what is left of references": "return [-(1 + again) * -]left",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "one of two stores that are left of references": "(stored.u, [-2-]{+1+}))\n",
            "adding what is left of references": "left[- + again * most * (row.dP + row.D)-]\n",
            "adding what is left of references to that of dP": "again * most * ([-row.dP + -]row.D)",
            "adding what is left of references to that of delta": "again * most * (row.dP[- + row.D-])\n",
            "1 / (1 - p) at the end in what is left of references": (
                "growth(*division(x, c)[-, *late_roundings(x, c)-])"
            ),
            "four more roundings of sums that are left of references": "row.summed(x.keys[- + 4-])",
            "three of four more roundings of sums that are left of references": "row.summed(x.keys + [-4-]{+1+})",
            "two of four more roundings of sums that are left of references": "row.summed(x.keys + [-4-]{+2+})",
            "one of four more roundings of sums that are left of references": "row.summed(x.keys + [-4-]{+3+})",
            "two more roundings of delta's sum that are left of references": "][- + 2-])) - 1\n    each",
            "one more rounding of delta's sum that is left of references": "] + [-2-]{+1+})) - 1\n    each",
            "delta's sum over keys in what is left of references": (
                "return each[- + row.summed(x.keys + 2) * row.dP-]\n    apart"
            ),
            "keys in delta's sum that is left of references": "return each + row.summed([-x.keys + -]2) * row.dP",
            "two more roundings of delta's sum over keys that are left of references": (
                "return each + row.summed(x.keys[- + 2-]) * row.dP"
            ),
            "one more rounding of delta's sum over keys that is left of references": (
                "return each + row.summed(x.keys + [-2-]{+1+}) * row.dP"
            ),
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of an output that is left of a reference": "np.abs(x.O)[- + e.tiny-])).sum",
            "underflow of factors of dropout that is left of references": (
                "return each + x.largest_factor * (entry(c, value_format(x, c)).eta[- + row.lost-]) * row.dO"
            ),
            "underflow of factors of dropout beside that of weights": "(steps * softmax[- + row.lost-]) * row.of_v",
            "underflow of delta's sum that is left of references": "small = [-2 * x.v.shape[-1] * work + -]4 * largest",
            "underflow of dA that is left of references": "* work + [-4 * largest_weight(x, c) * work + -]2 * stored",
        },
        "underflow of a weight is that of dP's and of delta's alike, which cancel in what is left": {
            "weights that underflow in what is left of references": (
                "row.dP[- + (steps * softmax + row.lost) * row.of_v-]\n"
            ),
            "weights that underflow in the softmax's format": "([-steps * softmax + -]row.lost) * row.of_v",
        },
        (
            "room for several underflows of one number, in a product, its sum and its scaling; the kernels commit fewer"
        ): {
            "several underflows of a weighted value that are left of references": "steps = [-4 * -](1",
            "several underflows of dA that are left of references": "work + [-4 * -]largest_weight(x, c)",
            "two underflows of a stored gradient that are left of references": "(x, c) * work + [-2 * -]stored\n",
            "two underflows of delta's sum that are left of references": "small = [-2 * -]x.v.shape",
            "a cast that may underflow by errors of the row's maximum": "+ math.log(smallest)[- + 1.0-], prob",
        },
        "no emulated kernel does what this allows: several tiles or merged parts that a framework differentiates": {
            "rescalings and divisions that underflow in what is left of references": (
                "(1[- + row.w.R.max(axis=-1, keepdims=True, initial=0.0) + renormalizations(x, c)-])\n    of_sums"
            ),
            "rescalings that underflow in what is left of references": (
                "(1 + [-row.w.R.max(axis=-1, keepdims=True, initial=0.0) + -]renormalizations(x, c))\n    of_sums"
            ),
            "divisions that underflow in what is left of references": (
                "initial=0.0)[- + renormalizations(x, c)-])\n    of_sums"
            ),
            "what is left of log-sum-exps of parts": (
                "left = left[- + most * np.where(x.visible, _in_part(row), 0.0).max("
                "axis=-1, keepdims=True, initial=0.0)-]\n"
            ),
            "divisions of each part in a run": "[-row.divided if row.in_parts else -]row.last)\n",
            "roundings of the division of a part": "return [-relative * self.of_v + -]tiny * self.dO",
            "four roundings of the division of a part": "growth((softmax.u, [-4 + -]3 * renorm",
            "roundings of the divisions of each tile": "4[- + 3 * renormalizations(self.x, self.c)-]), (narrow",
            "the accumulator of a part narrowed to the softmax's format": "self.c))[-, (narrowing.u, 1)-])",
            "underflow of the division of a part": "return relative * self.of_v[- + tiny * self.dO-]\n",
            "underflow of a quotient of a part": "tiny = [-3 * softmax.eta + -]self.lost",
            "underflow of factors of dropout in a part": "tiny = 3 * softmax.eta[- + self.lost-] + divided",
            "underflow of the narrowed accumulator of a part": (
                "self.lost[- + divided(self.x, self.c) * narrowing.eta-]\n"
            ),
            "merges of a part": "merged = [-(1 + merged_growth(x, c)) * -](1 + row.summed(x.v.shape[-1] + 2)) - 1",
            "the sum of delta of a part": (
                "(1 + merged_growth(x, c))[- * (1 + row.summed(x.v.shape[-1] + 2))-] - 1\n    waits"
            ),
            "underflow of merges of a part": "row.divided[- + waits * x.largest_factor * row.dO-]\n",
            "merges of a part in its value": "stored = [-merged * row.of_v + -](1",
            "divisions of a part in its value": "stored = merged * row.of_v + [-(1 + merged) * row.divided + -]waits",
            "sums of delta over keys of a part": "row.own + [-row.summed(x.keys + 2) * row.dP + -]moved",
            "errors of dP in a part": "return stored + [-row.own + -]row.summed",
            "what is stored of a part": "return [-stored + -]row.own",
            "roundings of the numerator of a part": "* row.dP + [-moved + -]divided(x, c) * lost",
            "roundings of weighted values of a part": "moved = [-row.moved * (row.of_v + stored) + -](entry",
            "underflow on entry in a part": (
                "(row.of_v + stored)[- + (entry(c, value_format(x, c)).eta + row.lost) * row.dO-]\n    return stored"
            ),
            "underflow of a part": "moved[- + divided(x, c) * lost-]\n",
            "underflow of sums in a part": ("lost = [-4 * terms(c, x.keys) * lost * row.dO + -](_cast_underflow"),
            "underflow of casts in a part": (
                "row.dO[- + (_cast_underflow(row) * row.dP).sum(-1, keepdims=True)-]\n    moved"
            ),
        },
        "the adversary does not choose by roundings which key attains the maximum": {
            "keys of a run that may be below the largest": "low = np.where(x.visible, x.s[- - delta-], -np.inf)",
            "the largest key of a run that may be above it": "high = np.where(x.visible, x.s[- + delta-], -np.inf)",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any "
            "rounding attacked"
        ): {
            "a run is no less than its key": "[-np.maximum(found, terms)-]{+found+} + 2.0**-44",
            "the evaluation of the sum over a run": "np.maximum(found, terms)[- + 2.0**-44 * sums[..., -1:]-], 0.0)",
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
            "the evaluation of a product with a matrix": "np.abs(vectors @ M)[- + 2.0**-40 * apart-]",
            "the evaluation of a row of dq": 'bound.allowed["dq"][- * amplification(alpha)[..., None]-]\n    return',
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
