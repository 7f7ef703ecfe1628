"""How layers sum and store: heads, rows and biases, in which formats, and what of cotangents and values meets them.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

_ROUNDED = "layer of one head, two keys, large values, delta of P, rounded, cotangents too"
_EIGHT = "layer of eight heads, two keys, tiny values, small outputs, tiny biases, in one sum, rounded"
_FIVE = "layer of five heads, one key, tiny outputs, head by head"
_TINY_ROWS = "layer of one head, five queries, biases, tiny cotangents, rounded"
_DL = "layer of four wide heads, one key, shared, dL alone, in one sum"
_HALF = "layer of one head, two keys, half, wide operands"
_LIGHT = "layer of one head, two keys, small queries, large values"

LAYER_SUMS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.projection_bounds": {
        (
            "output",
            "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too",
            "output",
        ): {
            "errors in the cast of the output of a layer": "cast.u * [-total.largest-]{+np.abs(total.value)+}",
        },
        ("stored_scores", _FIVE, "output"): {
            "products of heads apart": "for total in (_at_once(x, o),[- _one_by_one(x, o)-])",
            "stores of sums over heads": "stores=[-added-]{+0+}, held",
            "stores of sums over heads, after each": "stores=[-added-]{+min(added, 1)+}, held",
        },
        ("score_accumulation", "layer of two wide heads, one key", "output"): {
            "one product of all heads": "for total in ([-_at_once(x, o), -]_one_by_one(x, o)[-)-]{+,)+}",
        },
        ("stored_scores", "layer of five heads, one key, large outputs, head by head", "output"): {
            "sums of heads before the last": "stores=added[-, held=held-])",
            "heads in sums before the last": "held = [-each.largest.sum(axis=1, keepdims=True) + -](total.size",
        },
        ("stored_scores", "layer of three heads, one key, large bias of the output, head by head", "output"): {
            "a bias in sums before the last": (
                "sum(axis=1, keepdims=True)[- + (total.size - each.size.sum(axis=1, keepdims=True))-]\n    return"
            ),
        },
        ("lse", "layer, dL", "dv"): {
            "errors of weights in the gradient of v": (
                "apart[- - e @ (np.abs(dO @ W) + 2.0**-40 * (np.abs(dO) @ np.abs(W)))-], 0.0)"
            ),
        },
        ("operands", "layer of one head, one key, tiny queries, large keys, by LSE, rounded", "output"): {
            "what a projection makes of errors": "error @ W[- - np.where(x.keys == 0, 0.0, heads.projected)-]",
        },
        ("score_accumulation", "layer of sixteen heads, one key, matrix unit, head by head", "output"): {
            "roundings of sums over heads": "roundings=[-added-]{+0+}, stores",
            "every rounding of sums over heads": "roundings=[-added-]{+min(added, 1)+}, stores",
        },
        ("multiplicands", _HALF, "output"): {
            "the format of outputs of heads": (
                'o = Approximation(x.O, np.abs(x.O), error, [-c.format("operands")-]{+c.format("multiplicands")+}, c)'
            ),
        },
        (
            "several",
            "layer of two wide heads, three keys, biases, rounded, multiplicands and output",
            "doutput_projection",
        ): {
            "the format of outputs of heads in the gradient of W_O": (
                'x.O, np.abs(x.O), o, [-c.format("operands")-]{+c.format("multiplicands")+}, c)'
            ),
        },
        (
            "multiplicands",
            "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too",
            "doutput_projection",
        ): {
            "the format of the cotangent in the gradient of W_O": (
                'given(c, b.g.of_output, [-contract-]{+c+}.format("output"))'
            ),
        },
        (
            "several",
            "layer of one head, two queries, biases, delta of P, rounded, multiplicands and output",
            "output",
        ): {
            "the format of sums over heads": (
                'conversion(c, "output", [-c.format("stored_scores")-]{+c.format("output")+}), np.zeros'
            ),
        },
        ("several", "layer of two wide heads, four keys, large queries, biases, in one sum", "dv"): {
            "widths of heads in sums of dv": "summed_over_group(x, c, dv[-, x.problem.head_value_dim-])",
        },
    },
    "error.operand_bounds": {
        ("multiplicands", _HALF, "output"): {
            "the format of values": (
                'return [-c.format("operands") if x.problem.projects else -]FORMATS[x.problem.dtype]\n\n\n@kept\n'
                '@np.errstate(all="ignore")\ndef value_error'
            ),
        },
        ("multiplicands", _HALF, "lse"): {
            "the format of operands": (
                'return FORMATS[x.problem.dtype][- if x.score.plain else c.format("operands")-]\n\n\n@kept'
            ),
        },
        ("multiplicands", _ROUNDED, "dk"): {
            "errors of cotangents in dP": "off = off + [-of_g @ value_sizes(x, c).swapaxes(-1, -2)-]{+0.0+}",
            "errors of values in dP": "off = off + [-np.abs(g.cotangent) @ of_v.swapaxes(-1, -2)-]{+0.0+}",
            "the format of v": (
                'given(c, _repeated_values(x), [-FORMATS[x.problem.dtype]-]{+c.format("multiplicands")+})'
            ),
        },
        ("multiplicands", _ROUNDED, "dvalue_projection"): {
            "the format of v in the gradient of W_V": (
                'finite(_repeated_values(x)), [-FORMATS[x.problem.dtype]-]{+c.format("multiplicands")+})'
            ),
        },
        ("multiplicands", _ROUNDED, "lse"): {
            "the format of q and k": (
                'form = x.problem, [-FORMATS[x.problem.dtype]-]{+c.format("multiplicands")+}\n    q, k'
            ),
            "the formats of parameters": (
                'given(c, tensor, [-FORMATS[problem.dtype_of(name)]-]{+c.format("multiplicands")+})'
            ),
        },
    },
    "error.weight_gradient_bounds": {
        (
            "stored_scores",
            "layer of two heads, one key, tiny cotangents, by LSE, bias first, rounded",
            "dvalue_projection_bias",
        ): {
            "errors of cotangents in their sizes": "size = size[- + error-]\n",
        },
        ("multiplicands", _ROUNDED, "dk"): {
            "errors of the factors of dP": "dP = x.dropped([-given + -]relative * (size_g",
            "the format of values in dP": 'form, Dv = [-value_format(x, c)-]{+c.format("multiplicands")+}, x',
        },
    },
    "error.score_gradient_bounds": {
        ("operands", _LIGHT, "dk"): {
            "errors of cotangents in delta": (
                "stored, size = stored[- + (of_g * (np.abs(x.O) + EO)).sum(-1, keepdims=True)-], size"
            ),
            "errors of values in delta": "through[- + (size * off).sum(-1, keepdims=True)-] + last",
        },
    },
    "error.output_bounds": {
        ("operands", "layer of one head, one key, coarse exponentials", "output"): {
            "errors of values in a mean": "r = r[- if of.error is None else r + of.error[head][some][None]-]\n",
        },
        ("softmax", "layer, tiny values, tiny cotangents, kept", "output"): {
            "last roundings of an output that is projected": (
                "(_mean_error(x, c, w, e, through)[- + through.of_each(last)-])"
            ),
        },
    },
    "error.value_spread": {
        ("operands", "layer of one wide row, one key, small inputs, large biases, bias first", "output"): {
            "errors of values that are projected": "None if error is None else [-error @ sizes-]{+0.0 * v @ T+}",
        },
        ("score_accumulation", "layer, by LSE", "output"): {
            "sizes of values that are projected": "[-size @ sizes-]{+0.0 * v @ T+}, o @ T",
        },
        ("output_accumulation", "layer of one head, one key, large outputs, large cotangents", "output"): {
            "an error that all columns share, projected": "errors[- * W.sum(axis=-2, keepdims=True)-] if",
        },
        ("lse", "layer, by LSE", "output"): {
            "errors of columns, projected": "else [-errors @ W-]{+0.0 * errors @ W+}",
        },
    },
    "error.gradient_bounds": {
        ("gradient_accumulation", _DL, "dq"): {
            "widths of heads in sums of dq": "summed_over_group(b.x, b.c, dq[-, width-]) if projects",
        },
        ("gradient_accumulation", _DL, "dk"): {
            "sums of dk over heads": (
                '"dk": [-summed_over_group(b.x, b.c, dk, width if projects else 1)-]{+b.x.over_group(dk.error)+}'
            ),
            "widths of heads in sums of dk": "summed_over_group(b.x, b.c, dk, [-width if projects else -]1)",
        },
    },
    "error.option_gradient_bounds": {
        ("gradient_accumulation", _EIGHT, "doutput_projection"): {
            "rows in sums of a parameter's gradient": "terms = [-rows * -]math.prod",
            "all rows in sums of a parameter's gradient": ("if b.x.score.pairs else [-max(lengths[2:])-]{+1+}, {}"),
        },
        ("several", "layer of eight heads, four keys, shared, large queries, in one sum", "dvalue_projection"): {
            "heads in sums of a parameter's gradient": (
                "terms = rows[- * math.prod(of.value.shape[axis] for axis in axes)-]"
            ),
        },
    },
    "error.gradient_sums": {
        ("gradient_accumulation", _EIGHT, "dv"): {
            "heads in sums over heads": "over_group), c, [-x.problem.group * -]width",
            "underflow of sums of gradients": (
                "G * (x.size + x.error)[- + (1 + G) * terms * (2 * sum_eta(c) + stored_sum(c).eta)-]"
            ),
            "underflow of every term of sums of gradients": "(1 + G) * [-terms * -](2",
            "underflow of accumulators of gradients": "([-2 * sum_eta(c) + -]stored_sum(c).eta)",
            "underflow of a product and of its addition": "([-2 * -]sum_eta(c) + stored_sum(c).eta)",
        },
        ("gradient_accumulation", _DL, "dq"): {"widths in sums over heads": "x.problem.group[- * width-])"},
        (
            "partial_gradients",
            "layer of two heads, one key, tiny cotangents, in one sum, flushed",
            "doutput_projection",
        ): {
            "underflow of stores of sums of gradients": "(2 * sum_eta(c)[- + stored_sum(c).eta-])",
        },
    },
    "error.running_error": {
        ("stored_scores", "layer of one head, two queries, rounded, two pieces", "dv"): {
            "errors in the roundings of an operation": "if held is None else held)[- + error-]",
        },
        ("multiplicands", "layer of one head, two queries, rounded, two pieces", "lse"): {
            "pieces left out of a product": "(of_y.u, 1), [-(left_out(c, x.form, y.form), 1), -]*factors",
        },
        ("score_accumulation", "rotary, tiny queries, flushed", "lse"): {
            "underflow of an operation": "Rounding(u, [-roundings * work.eta + -]stores",
        },
        ("score_accumulation", _TINY_ROWS, "doutput_projection_bias"): {
            "underflow of sums of rows": "G * (x.size + error)[- + (1 + G) * added * work.eta-]",
            "underflow of every sum of rows": "(1 + G) * [-added * -]work.eta",
            "underflow of terms that enter an accumulator": "enters.u * (x.size + x.error)[- + terms * enters.eta-]",
            "underflow of every term that enters an accumulator": "+ [-terms * -]enters.eta",
        },
        (
            "score_accumulation",
            "layer of one head, two queries, biases, cotangents rounded",
            "doutput_projection_bias",
        ): {
            "terms that enter an accumulator": "error = x.error + [-enters.u * (x.size + x.error) + -]terms",
        },
        (
            "score_accumulation",
            "layer of two heads, four keys, tiny values, tiny biases, rounded",
            "dvalue_projection_bias",
        ): {
            "several roundings of sums of rows": "G = growth((work.u, [-added-]{+min(added, 1)+}))",
        },
        ("stored_scores", _FIVE, "output"): {
            "underflow of every store": "work.eta + [-stores * -]stored.eta)",
        },
        ("stored_scores", "layer of one head, one key, large biases, rounded first, small outputs", "output"): {
            "a bias that is rounded first": "G = growth([-(loaded.u, 1), -]*sums",
        },
        (
            "stored_scores",
            "layer of one head, two keys, tiny inputs, tiny biases, rounded first, head by head",
            "output",
        ): {
            "underflow of a bias that is rounded first": "G * (b.size + b.error)[- + (1 + G) * loaded.eta-])",
        },
        ("score_accumulation", "layer, biases first", "lse"): {
            "roundings of sums that begin with a bias": (
                'growth((loaded.u, 1)[-, *sums(c, "score_accumulation", n, blocks=math.ceil(n / c.matrix_block))-])\n'
                "        return y"
            ),
        },
    },
}
