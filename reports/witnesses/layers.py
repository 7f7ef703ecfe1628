"""How layers are rounded: projections, their errors in scores, values and cotangents, and sums over heads.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

LAYERS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.projection_bounds": {
        ("output", "layer, results stored", "output"): {
            "an output that is stored before its bias is added": '.shifted([-stored(total, "output")-]{+total+}, bias',
        },
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): {
            "errors of heads in the output of a layer": (
                'error = np.where(x.keys == 0, 0.0, [-heads.allowed["output"]-]{+0.0 * x.O+})'
            ),
        },
        ("stored_scores", "layer of one head, one key, large outputs, large cotangents", "doutput_projection"): {
            "errors of heads in the gradient of W_O": "of_heads = Approximation(x.O, np.abs(x.O), [-o-]{+0.0 * o+}, c",
        },
        ("output", "layer of one head, two keys, tiny queries, tiny keys, biases, large cotangents", "output"): {
            "the bias of the output": (
                'return [-RunningErrors(o.contract).shifted(stored(total, "output"), bias, o)-]{+total+}'
            ),
            "the cast of the output of a layer": "found = total.error + [-cast.u * total.largest + -]rounding",
        },
        (
            "gradient_accumulation",
            "layer of two heads, one key, tiny keys, biases, large cotangents, head by head",
            "dv",
        ): {
            "sums of dv over heads": (
                'return {"dv": [-summed_over_group(x, c, dv, x.problem.head_value_dim)-]{+x.over_group(dv.error)+}}'
            ),
        },
        (
            "score_accumulation",
            "layer of two heads, three keys, biases, large cotangents, bias first, flushed",
            "doutput_projection_bias",
        ): {
            "the sum over rows of dO": (
                'found["output_projection_bias"] = '
                "[-A.transposed(A.total(A.transposed(dO)))-]{+A.transposed(A.transposed(dO).chang"
                "ed(lambda part: part.sum(axis=-1, keepdims=True)))+}"
            ),
        },
        ("output", "layer of one head, one key, large inputs, tiny values, delta of P", "output"): {
            "underflow of the output of a layer": 'cast.u * total.largest[- + rounding(c, "output").eta-]',
        },
    },
    "error.operand_bounds": {
        ("operands", "layer of one head, one key", "output"): {
            "the outputs of heads are operands": (
                "return [-replace(c, output=c.operands) if x.problem.projects else -]c"
            ),
        },
        ("several", "layer of one head, two keys, tiny keys, rounded, cotangents too", "dv"): {
            "the format of the cotangent of a layer": (
                'given(c, g.of_output, [-c.format("output")-]{+c.format("operands")+})'
            ),
        },
        ("operands", "layer of one head, one key", "dv"): {
            "errors of cotangents of heads": "cotangent_error=of_heads.error[--]{+ * 0.0+})",
            "the store of cotangents of heads": (
                "of_heads = [-stored(-]outputs.pull(RunningErrors(c), nothing, parameters_given(x, c), dO)[0][-)-]"
            ),
            "the store of the gradient of a value": (
                "x.score.values.pull(RunningErrors(c), v, parameters_given(x, c), [-stored(gradient)-]{+gradient+})"
            ),
        },
        ("scores", "cosine of a vector with itself", "lse"): {
            "what errors of a vector have in common": (
                "np.fmin(moved, [-common * np.abs(x.dot) + -](1 + common) * own)"
            ),
            "what errors of a query have in common": "own = [-of_q + -]of_k",
            "what errors of a key have in common": "of_q + [-of_k + -]of_q * of_k",
        },
        ("stored_scores", "cosine of a right angle", "lse"): {
            "errors of each number of a vector": "np.abs(x.dot)[- + (1 + common) * own-])",
            "errors of each number of a key": "of_q * of_k, [-x.q_size @ b + -]a @",
            "errors of each number of a query": "x.q_size @ b[- + a @ (x.k_size.swapaxes(-1, -2) + b)-]\n",
        },
        ("operands", "layer of one head, one key", "lse"): {
            "errors of keys in a score": "moved = [-x.q_size @ f + -]e @ (x.k",
            "errors of queries in a score": "moved = x.q_size @ f[- + e @ (x.k_size.swapaxes(-1, -2) + f)-]",
            "errors of both operands, multiplied": "x.k_size.swapaxes(-1, -2)[- + f-])\n        if self",
            "errors of queries": "for n, of in zip(lengths, ([-q-]{+replace(q, error=0.0 * q.error)+}, k)",
            "errors of keys": "for n, of in zip(lengths, (q, [-k-]{+replace(k, error=0.0 * k.error)+})",
        },
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): {
            "errors of values": (
                "return np.where(np.any(x.seen, axis=2)[..., None], [-_value_errors(x, c)-]{+0.0 * x.v+}, 0.0)"
            ),
        },
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "dk"): {
            "the store of the gradient of an operand": '{"q": q, "k": k}[name], p, [-stored(gradient)-]{+gradient+})',
        },
    },
    "error.value_spread": {
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): {
            "errors of values carry the output": (
                "return 0.0 if error is None else [-x.dropped(x.P) @ error-]{+0.0 * x.O+}"
            ),
        },
    },
    "error.output_bounds": {
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): {
            "values that are off": "/ e.kappa, np.inf)[- + of.of_each(off)-]\n",
        },
        (
            "multiplicands",
            "layer of one head, one key, tiny queries, large keys, by LSE, rounded",
            "doutput_projection",
        ): {
            "values that are off, by LSE": "(np.abs(o) + slack + off)[- + off-],",
        },
    },
    "error.score_bounds": {
        ("operands", "layer of one head, one key", "lse"): {
            "errors of both operands of a score": "return [-operands.moves(x) + -]rounded",
        },
        ("score_accumulation", "layer of four heads, one key, tiny cotangents", "lse"): {
            "roundings make errors of operands grow": "relative * [-product_sizes(x, c)-]{+x.magnitude+} + under",
        },
    },
    "error.gradient_key_sums": {
        ("operands", "layer of one head, one key", "dv"): {
            "errors of cotangents in dv": "own = own[- + _of_keys(dropped(b.x.P), keys) @ given-]",
        },
    },
    "error.gradient_bounds": {
        ("operands", "layer of one head, one key", "dk"): {
            "errors of dS in the gradient of an operand": "own=[-dS_error @ size + -]dS @ off,",
        },
        ("several", "layer of two heads, three keys, dL, gradient accumulation and partial gradients", "dq"): {
            "sums of dq over heads": ("summed_over_group(b.x, b.c, dq, width) if [-projects-]{+False+} else dq.error"),
        },
        (
            "stored_scores",
            "layer of two heads, three keys, tiny keys, normalized weights, flushed",
            "dquery_projection",
        ): {
            "errors of the other operand": "own=dS_error @ size[- + dS @ off-],",
        },
    },
    "error.option_gradient_bounds": {
        (
            "gradient_accumulation",
            "layer of three heads, one key, small keys, biases, dL, bias first",
            "dvalue_projection_bias",
        ): {
            "sums of a parameter's gradient": ('errors[f"d{name}"] = [-added_up(summed, b.c, terms)-]{+summed+}.error'),
        },
    },
    "error.gradient_sums": {
        (
            "gradient_accumulation",
            "layer of two heads, one key, tiny keys, biases, large cotangents, head by head",
            "dv",
        ): {
            "sums over heads, in any order": "error = x.error + [-G * (x.size + x.error) + -](1 + G) * terms",
        },
    },
    "error.running_error": {
        ("several", "layer of one head, two keys, tiny keys, rounded, cotangents too", "dv"): {
            "errors in the cast of an operand": "cast.u * (itself[- + x.error-])",
        },
        ("operands", "layer of one head, one key", "dv"): {
            "the cast of an operand": "error = x.error + [-cast.u * (itself + x.error) + -]kept.eta",
            "errors of x in a product": "_through(np.abs(x.value), y.error)[- + _through(x.error, y.largest)-]\n",
        },
        ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): {
            "underflow of an operand": "cast.u * (itself + x.error)[- + kept.eta-]",
            "errors of a summand": ("self.value + other.value, self.size + other.size, [-self.error + -]other.error)"),
        },
        ("operands", "cosine of a right angle", "lse"): {
            "the cast of an operand with a part in common": "x.rows.rounded(x.value, [-cast.u-]{+0.0+}, kept.eta)",
        },
        ("operands", "rotary, results stored", "lse"): {
            "a result that is stored before it goes on": 'operands."""\n        return [-stored(x)-]{+x+}',
        },
        ("rotary_tables", "rotary, one pair", "lse"): {
            "the store of a table": "G, tiny = growth((work.u, 1)[-, (stored.u, 1)-])",
            "the size of a cosine": "turned * (G * ([-np.abs(exact) + -]off)",
        },
        ("score_accumulation", "cosine of a vector with itself", "lse"): {
            "the error of a norm, common to a vector": "common = [-of_y + -]of_inverse +",
        },
        ("score_accumulation", "cosine of a right angle", "lse"): {
            "the rounding of each number of a vector": "self.rounded(value, [-r.u-]{+0.0+}, r.eta)",
            "the errors of factors of a vector": "own = [-self.own + -]u * (np.abs(value)",
        },
        ("stored_scores", "cosine of a right angle", "lse"): {
            "gamma in the errors of each number of a vector": "own=[-of_self * -]rows.own)",
        },
        ("score_accumulation", "layer of one head, two keys, tiny inputs, biases", "dvalue_projection_bias"): {
            "sums of a product": "1)[-, *factors-])\n        size = np",
            "roundings of a product": ("error = error + [-G * (size + error) + -](1 + G) * tiny\n        enter ="),
            "sums of rows": "G = growth((work.u, [-added-]{+0+}))",
        },
        ("score_accumulation", "layer, by LSE", "lse"): {
            "the roundings of an operation": "u = float(growth([-(work.u, roundings), -](narrowed",
        },
        ("score_accumulation", "layer of one head, two keys, tiny inputs, biases", "dvalue_projection"): {
            "underflow of a product": "G * (size + error)[- + (1 + G) * tiny-]\n        enter =",
            "underflow of sums of a product": (
                'tiny = tiny + [-2 * terms(c, n) * sum_underflow(c, "score_accumulation")-]{+0.0+}'
            ),
            "several underflows of sums of a product": "tiny = tiny + [-2 * -]terms(c, n) * sum_underflow(c",
            "underflow of every sum of a product": (
                '2 * [-terms(c, n) * -]sum_underflow(c, "score_accumulation")\n        error = error'
            ),
        },
        ("stored_scores", "layer of one head, one key, large outputs, large cotangents", "doutput_projection"): {
            "errors of y in a product": "error = [-_through(np.abs(x.value), y.error) + -]_through(x.error",
            "the store of an operation": "(work.u, roundings)[-, (narrowed, stores)-])",
        },
        ("several", "layer of two heads, three keys, small values, rounded, multiplicands and output", "output"): {
            "entry of x to a product": "G = growth([-(of_x.u, 1), -](of_y",
            "entry of y to a product": "(of_x.u, 1), [-(of_y.u, 1), -](left",
        },
        (
            "multiplicands",
            "layer of one head, one key, tiny queries, large keys, by LSE, rounded",
            "doutput_projection",
        ): {
            "underflow of y on entry": "of_x.eta * columns + [-of_y.eta * rows + -]n * of_x",
        },
        (
            "stored_scores",
            "layer of two heads, three keys, tiny inputs, small queries, large cotangents, flushed",
            "dkey_projection",
        ): {
            "underflow of the store of an operation": "roundings * work.eta[- + stores * stored.eta-])",
        },
        ("score_accumulation", "layer of two heads, three keys, biases, tiny cotangents, bias first, rounded", "lse"): {
            "sums that begin with a bias": "error=b.error + [-G * (b.size + b.error) + -](1 + G) * loaded",
        },
        ("multiplicands", "layer of one head, three keys, tiny keys, tiny cotangents", "dvalue_projection"): {
            "underflow of x on entry": "tiny = [-of_x.eta * columns + -]of_y.eta * rows",
        },
        ("multiplicands", "layer of one head, one key, wide heads, delta of P", "dvalue_projection"): {
            "entry of x and y to a product": "G = growth([-(of_x.u, 1), (of_y.u, 1), -](left",
        },
    },
}
