"""How layers sum and store: heads, rows and biases, in which formats, and what of cotangents and values meets them.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

_ROUNDED = "layer of one head, two keys, large values, large keys, delta of P, rounded, cotangents too"
_EIGHT = "layer of eight heads, two keys, tiny values, small outputs, tiny biases, in one sum, rounded"
_FIVE = "layer of five heads, one key, tiny outputs, head by head"
_TINY_ROWS = "layer of one head, five queries, biases, tiny cotangents, rounded"
_DL = "layer of four wide heads, one key, shared, dL alone, in one sum"
_HALF = "layer of one head, two keys, half, wide operands"
_LIGHT = "layer of one head, two keys, small queries, large values"

LAYER_SUMS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.projection_bounds": {
        ("stored_scores", _FIVE, "output"): {
            "underflow of products of heads apart": "total.error[- + flushed-], roundings",
            "underflow of the product of each head apart": "flushed = [-added * -]rounding",
            "stores of sums over heads": "stores=[-added-]{+0+})",
            "stores of sums over heads, after each": "stores=[-added-]{+min(added, 1)+})",
        },
        ("score_accumulation", "layer of sixteen heads, one key, matrix unit, head by head", "output"): {
            "roundings of sums over heads": "roundings=[-added-]{+0+}, stores",
            "every rounding of sums over heads": "roundings=[-added-]{+min(added, 1)+}, stores",
        },
        ("multiplicands", _HALF, "output"): {
            "the format of outputs of heads": (
                'o = Approximation(x.O, size, error, [-c.format("operands")-]{+c.format("multiplicands")+}, c)'
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
            "the format of sums over heads": 'cast = conversion(c, "output", [-total.form-]{+c.format("output")+})',
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
                'return FORMATS[x.problem.dtype][- if score_of(x.problem).plain else c.format("operands")-]\n\n\n@kept'
            ),
        },
        ("multiplicands", _ROUNDED, "dk"): {
            "errors of cotangents in dP": "off = [-of_g @ value_sizes(x, c).swapaxes(-1, -2) + -]np.abs",
            "errors of values in dP": "swapaxes(-1, -2)[- + np.abs(g.cotangent) @ of_v.swapaxes(-1, -2)-]\n",
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
    "error.score_gradient_bounds": {
        ("multiplicands", _ROUNDED, "dk"): {
            "errors of the factors of dP": "dP = x.dropped([-given + -]relative * (size_g",
            "the format of values in dP": 'form, Dv = [-value_format(x, c)-]{+c.format("multiplicands")+}, x',
        },
        ("operands", _LIGHT, "dk"): {
            "errors of cotangents in delta": (
                "stored, size = stored[- + (of_g * (np.abs(x.O) + EO)).sum(-1, keepdims=True)-], size"
            ),
            "errors of values in delta": "(size * ([-off + -]e.finish",
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
            "all rows in sums of a parameter's gradient": (
                "if score_of(problem).pairs else [-max(lengths[2:])-]{+1+}, {}"
            ),
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
        ("multiplicands", "layer of one head, two queries, rounded, two pieces", "lse"): {
            "pieces left out of a product": "(of_y.u, 1), [-(left_out(c, x.form, y.form), 1), -]*factors",
        },
        ("score_accumulation", _TINY_ROWS, "doutput_projection_bias"): {
            "underflow of an operation": "(1 + G) * ([-roundings * work.eta + -]stores",
            "underflow of every operation": "(1 + G) * ([-roundings * -]work.eta + stores",
            "underflow of terms that enter an accumulator": "(x.size + x.error)[- + terms * enters.eta-]",
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
            "several roundings of sums of rows": "roundings=[-max(terms - 1, 0)-]{+min(terms - 1, 1)+})",
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
        (
            "score_accumulation",
            "layer of one wide row, one key, small inputs, large biases, bias first",
            "dvalue_projection_bias",
        ): {
            "roundings of sums that begin with a bias": (
                'growth((loaded.u, 1)[-, *sums(c, "score_accumulation", n, blocks=math.ceil(n / c.matrix_block))-])\n'
                "        return y"
            ),
        },
    },
}
