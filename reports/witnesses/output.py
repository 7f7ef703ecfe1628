"""How outputs are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

OUTPUT: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.dropout_bounds": {
        ("probabilities", "a probability that dropout keeps", "output"): {
            "products of probabilities that are normalized": (
                'return [-("softmax", "probabilities") if c.normalize == "before_product" else -]("softmax",)'
            ),
        },
        ("softmax", "a weight that dropout keeps", "output"): {
            "the rounding of p": "((u, 4[- - math.log1p(-moved) / math.log1p(u)-] if moved < 1",
            "roundings of 1 / (1 - p)": "((u, [-4-]{+0+} - math.log1p(-moved)",
        },
        ("score_accumulation", "late dropout, one key", "dq"): {
            "the format of what is finished when it is raised": (
                'return factor_roundings(x, c, "softmax"[-, "score_accumulation"-])'
            ),
        },
    },
    "error.output_bounds": {
        ("several", "a low key that dropout keeps", "output"): {
            "dropout raises what underflows in a narrowed accumulator": "+ [-f * -]parts * divided",
        },
        ("several", "low keys in many parts", "output"): {
            "parts of a row that are narrowed": "+ f * [-parts * -]divided",
        },
        ("several", "a cast that dropout repeats", "output"): {
            "a second cast, relative to the first": "([-u / (1 - u)-]{+u+}, max(casts",
        },
        ("softmax", "dropout, weights", "output"): {
            "the product with 1 / (1 - p)": "        [-*factor_roundings(x, c, *weight_stages(c)),-]\n        (entry",
        },
        ("probabilities", "dropout, row sum of the cast", "output"): {
            "two casts of what a row sum has cast": "([-2-]{+0+} if factor else 0) if casts",
        },
        ("softmax", "dropout, by LSE, weights", "output"): {
            "the product with 1 / (1 - p) of weights exp(s - LSE)": "[-*factor, -]*output_sums(c, x.keys, length)]",
        },
        ("probabilities", "dropout, weights", "output"): {
            "weights raised as their roundings": "waiting + [-x.dropped(w.P1A * B)-]{+w.P1A * B+} @ size_v",
        },
        ("probabilities", "one tile", "output"): {
            "the probabilities' cast in the numerator": "(u, [-min(casts, 1)-]{+0+})",
            "roundings of the numerator alone": "waiting + [-x.dropped(w.P1A * B) @ size_v + -](w",
            "terms of the numerator beside the weights": "(spread[- + of.of_each(e.rest)-]) / e.kappa",
        },
        ("lse", "2 pieces, bfloat16", "output"): {
            "entry of the values": "        [-(entry(c, value_format(x, c)).u, 1),-]\n        (left_out",
        },
        ("several", "2 pieces, bfloat16", "output"): {
            "pieces left out of the output": "        [-(left_out_of_output(x, c), 1),-]\n        (rounding",
        },
        ("softmax", "eager, P dP - P D", "output"): {
            "normalization before the product": "3 * every or [-2 * before-]{+0.0+}),",
            "one rounding of normalization before the product": "3 * every or [-2 * -]before),",
        },
        ("probabilities", "inner accumulator", "output"): {
            "sums of the output": "return growth(*own, [-*output_sums(c, x.keys, x.problem.key_length), -](rounding",
        },
        ("output_accumulation", "four queries", "output"): {
            "rescalings of the output": "moved = every - 1 if every else [-w.R-]{+0 * w.R+}",
        },
        ("output_accumulation", "ring by difference, light keys", "output"): {
            "merges by a difference": "narrowing.eta\n        + [-_difference_error(x, c, w, most_B)-]{+0.0+},",
            "the range of what is subtracted": "own * ([-high - low + -]4 * off",
        },
        ("softmax", "normalized after every tile, falling scores", "output"): {
            "roundings of normalizing after every tile": "[-3 * every or 2 * before-]{+0.0+}),",
            "two of three roundings of normalizing after every tile": "[-3 * -]every or 2",
        },
        ("output_accumulation", "normalized after every tile, falling scores", "output"): {
            "rescaling after every tile": "moved = [-every - 1 if every else -]w.R",
        },
        ("partial_outputs", "ring", "output"): {
            "storing partial outputs": "[-, (partial, c.lse_merges)-])",
        },
        ("several", "a light key of a large value, probabilities", "output"): {
            "underflow of the probabilities' cast": "([-cast.eta + -]flushed)",
        },
        ("output_accumulation", "tiny values, flushed", "output"): {
            "underflow of the output's sums": "total_v[- + 4 * steps * tiny_sum * f-])",
        },
        ("output_accumulation", "tiny values, eager, kept", "output"): {
            "several underflows of each of the output's sums": "total_v + [-4 * -]steps * tiny_sum",
        },
        ("multiplicands", "tiny values, flushed", "output"): {
            "underflow of values on entry": "+ [-entering * x.dropped(w.P1A).sum(-1, keepdims=True)-]{+0.0+}",
        },
        ("several", "a low maximum, no reference", "output"): {
            "underflow of the weights in the numerator": "([-(1 + most_B) * w.eta * total_v + -]x.keys",
        },
        ("several", "tiny values, one key, merged, partial", "output"): {
            "underflow of partial outputs": "tiny_sum[- + partial.eta-])",
        },
        ("several", "tinier values, one key, merged, partial", "output"): {
            "underflow of partial outputs in the hull": "entering[- + 2 * waiting-]",
            "underflow outside the hull": "rough)[- + of.of_each(e.outside_hull)-])",
        },
        ("row_sum", "eager, cast P in dS", "output"): {
            "roundings of the row sum alone": "@ size_v[- + (w.P1A * w.C).sum(-1, keepdims=True) * size_o-]",
        },
        ("softmax", "V = 8 and little more", "output"): {
            "the accumulator narrowed to the softmax": "[-, (narrowing.u, 1)-], (out",
            "one of two roundings of the normalization": "finish = growth((softmax.u, [-2 * -](1 - before))",
        },
        ("partial_gradients", "light keys, tf32 to float16", "output"): {
            "both roundings of the normalization": ("finish = growth([-(softmax.u, 2 * (1 - before)), -](narrowing"),
        },
        ("output", "another seed", "output"): {
            "the output's cast": "(narrowing.u, 1)[-, (out.u, 1)-])",
        },
        ("stored_scores", "light keys, tiny cotangents, kept", "output"): {
            "a row sum that falls below the output's": "kappa=1[- - w.fall.sum(-1, keepdims=True)-] -",
            "the denominator": "of.of_each(e.rest))[- / e.kappa-],",
        },
        ("softmax", "a low key of tiny value, no reference", "output"): {
            "underflow of the accumulator narrowed to the softmax": "[-divided(x, c) * narrowing.eta-]{+0.0+}",
        },
        ("softmax", "tiny values, flushed", "output"): {
            "last underflow of the output": "+ slack + X)[- + e.tiny-]\n",
        },
        ("output", "tiny values, kept", "output"): {
            "underflow of the output's cast": "lost)\n        + [-out.eta-]{+0.0+}\n        + f * parts",
        },
        ("probabilities", "operands cut", "output"): {
            "weights that move the output": "spread = [-value_spread.spread(x, w.PA, of) + -]w.PA",
        },
        ("lse", "light keys, tf32 to float16", "output"): {
            "last roundings of the output": "last = [-e.finish * (np.abs(o) + slack + X) + -]e.tiny",
        },
        ("probabilities", "2 pieces, bfloat16, by LSE", "output"): {
            "the cast of weights exp(s - LSE)": "factors = [[-(cast.u, 1), -](enters",
            "roundings of terms with weights exp(s - LSE)": "A[- + np.log1p(B)-], 0.0)",
        },
        ("several", "2 pieces, bfloat16, by LSE", "output"): {
            "values with weights exp(s - LSE)": "(cast.u, 1), [-(enters.u, 1), -](left",
            "pieces with weights exp(s - LSE)": "(enters.u, 1), [-(left_out_of_output(x, c), 1), -]*factor, *out",
        },
        ("output_accumulation", "weights exp(s - LSE)", "output"): {
            "sums with weights exp(s - LSE)": "*factor[-, *output_sums(c, x.keys, length)-]]",
        },
        ("partial_gradients", "2 pieces, bfloat16, by LSE", "output"): {
            "the error of weights exp(s - LSE)": "np.where(x.visible, [-A + -]np.log1p(B)",
        },
        ("several", "a light key of a large value, by LSE, probabilities", "output"): {
            "underflow of the cast of weights exp(s - LSE)": "(([-cast.eta + -]4 * softmax.eta + lost)",
        },
        ("several", "a light key, flushed, by LSE", "output"): {
            "underflow of weights exp(s - LSE)": "(cast.eta[- + 4 * softmax.eta-] + lost)",
        },
        ("output_accumulation", "tiny values, by LSE, kept", "output"): {
            "underflow of sums with weights exp(s - LSE)": "total_v[- + 4 * terms(c, x.keys) * tiny-])",
            "several underflows of sums with weights exp(s - LSE)": "total_v + [-4 * -]terms(c, x.keys) * tiny",
        },
        ("multiplicands", "tiny values, by LSE, flushed", "output"): {
            "underflow of values with weights exp(s - LSE)": ("absolute[- + (1 + B) * entering-]"),
        },
        ("probabilities", "a larger error of log, by LSE", "output"): {
            "the LSE and the weights together": "first=[-(1 + G) * -]own + G",
        },
        ("probabilities", "error of log, by LSE", "output"): {
            "the LSE's error in the output": "own[- + G * (np.abs(o) + slack + off)-] + off",
        },
        ("output", "weights exp(s - LSE)", "output"): {
            "the cast of an output by LSE": "finish=np.full(x.L.shape, [-out.u-]{+0.0+})",
        },
        ("output", "tiny values, by LSE, kept", "output"): {
            "underflow of the cast of an output by LSE": "tiny=[-out.eta + -]lost",
        },
        ("probabilities", "coarse exponentials, one key, dropout", "output"): {
            "roundings of the numerator in a mean": (
                "met, r = of.v[head][some][None], "
                "[-_of_keys(e.B[head][at[2]], some)[..., None] * of.size[head][some][None]-]"
                "{+0.0 * of.size[head][some][None]+}"
            ),
            "roundings in a mean are raised": "kept * met, [-kept * -]r\n",
        },
        ("row_sum", "coarse exponentials, V = 1", "output"): {
            "roundings of the row sum in a mean": (
                "r = r[- + _of_keys(e.C[at], some)[..., None] * sizes[at][:, None, :]-] + known"
            ),
        },
        ("several", "a low maximum, no reference", "dk"): {
            "underflow of weights in a mean": "divided(x, c) * (absolute[- + (1 + most_B) * w.eta * total_v-])",
        },
        ("multiplicands", "coarse exponentials, one key, tiny values, flushed", "output"): {
            "underflow of values on entry to a mean": "total_v) + [-2 * f * entering + -]2 * waiting",
        },
        ("output_accumulation", "coarse exponentials, a low key of tiny value, no reference", "output"): {
            "underflow of a mean": "divided(x, c) * ([-absolute + -](1 + most_B) * w.eta",
            "the row sum that divides the underflow of a mean": "outside_hull=2[- * divided(x, c)-] * (absolute",
        },
        ("probabilities", "large stored scores, two keys, V = 1, by LSE", "output"): {
            "roundings of a mean of weights exp(s - LSE)": "moved = [-(1 + B) * -]np.exp",
        },
        ("several", "coarse exponentials, V = 1, by LSE", "output"): {
            "weights exp(s - LSE) that are no shares": (
                "moved = (1 + B)[- * np.exp(np.minimum(rounding_by_lse(x, c, w, again=again), 700.0))-] - 1"
            ),
        },
        ("output_accumulation", "large stored scores, one key, tiny values, by LSE, flushed", "output"): {
            "underflow of a mean of weights exp(s - LSE)": "outside_hull=[-absolute\n        + -](1 + moved",
        },
        ("multiplicands", "large stored scores, one key, tiny values, by LSE, flushed", "output"): {
            "underflow of values on entry to a mean of weights exp(s - LSE)": (
                "outside_hull=absolute[-\n        + (1 + moved.max(axis=-1, keepdims=True, initial=0.0)) "
                "* x.largest_factor * (enters.eta + lost)-],"
            ),
        },
    },
    "error.weighted_means": {
        ("several", "coarse exponentials", "output"): {
            "weights at the upper ends of their intervals": "least = [-high - low-]{+0.0 * high+}, (low",
        },
        ("several", "coarse exponentials, three keys, delta of P", "dk"): {
            "errors of what a mean is made of": "(sign * apart_[- + r_-])[..., None]",
        },
        ("stored_scores", "two large scores, eager", "dv"): {
            "other weights in the least share": "low / (low + _of_others([-high-]{+low+})), high",
            "other weights in the largest share": "high / (high + _of_others([-low-]{+high+}))\n",
        },
    },
}
