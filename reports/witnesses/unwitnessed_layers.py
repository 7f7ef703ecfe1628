"""Terms of the theorems of layers without a witness, by module and by the reason."""

from __future__ import annotations

LAYERS: dict[str, dict[str, dict[str, str]]] = {
    "error.projection_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors in the cast of the output of a layer": "(total.size[- + total.error-]) + rounding",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be "
            "seen beside any rounding attacked"
        ): {
            "the evaluation of outputs of heads": "size = np.abs(x.O)[- + np.where(x.keys == 0, 0.0, slack)-]",
            "the evaluation of the output of a layer": 'allowed = {"output": allowed[- * INFLATION-], "lse"',
        },
    },
    "error.operand_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors in the cast of an operand": "(x.size[- + x.error-]) + kept",
            "errors of values in their sizes": "return x.v_size if error is None else x.v_size[- + error-]",
            "errors of both in dP": "off = of_g @ [-value_sizes(x, c)-]{+np.abs(x.v)+}.swapaxes",
        },
    },
    "error.score_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of cotangents in the size of delta": (
                "size = stored + (of_g * (np.abs(x.O) + EO)).sum(-1, keepdims=True), size[- + of_g-]"
            ),
            "errors of cotangents and outputs in delta": "stored + (of_g * (np.abs(x.O)[- + EO-])).sum",
            "errors of values in roundings of the output in delta": (
                "numerator_error(x, c, w, x.O, [-off-]{+0.0 * off+})"
            ),
            "errors of values around delta": (
                "value_spread.slack(x, c), [-value_spread.around(x, c, row.around, size)-]{+row.around+}"
            ),
            "errors of the factors of dP in their sizes": (
                "size_g, size_v = [-cotangent_sizes(g), value_sizes(x, c)-]{+np.abs(g.cotangent), np.abs(x.v)+}"
            ),
        },
    },
    "error.gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of the other operand in sizes": "total=dS @ (size[- + off-]),",
            "errors of the other operand in underflow": "seen=seen @ (size[- + off-]),",
            "errors of the other operand in early underflow": "early=early @ (size[- + off-]),",
        },
    },
    "error.gradient_sums": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors in sums of gradients": "error = x.error + G * (x.size[- + x.error-]) + (1 + G) * terms",
            "roundings make underflow of sums of gradients grow": "+ [-(1 + G) * -]terms * (2",
        },
    },
    "error.running_error": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of x and y, multiplied": "x.error @ y.size[- + x.error @ y.error-]\n",
            "errors in roundings of a product": "G * (size[- + error-]) + (1 + G) * tiny\n        enter =",
            "roundings make underflow of a product grow": "G * (size + error) + [-(1 + G) * -]tiny\n        enter =",
            "underflow of x and y on entry": "of_y.eta * rows[- + n * of_x.eta * of_y.eta-]\n",
            "errors in underflow of y on entry": "(x.size[- + x.error-]).sum(-1",
            "errors in underflow of x on entry": "(y.size[- + y.error-]).sum(-2",
            "errors in the roundings of an operation": "error = error + G * (size[- + error-]) + (1 + G) * (round",
            "roundings make underflow of an operation grow": "+ [-(1 + G) * -](roundings * work.eta",
            "errors of a bias in roundings of sums that begin with it": "G * (b.size[- + b.error-])",
            "roundings make underflow of a bias grow": "+ [-(1 + G) * -]loaded.eta",
            "errors of what enters an accumulator": "enters.u * (x.size[- + x.error-]) + terms",
        },
    },
    "error.value_spread": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of values, times those of weights": "return _of_values(x, W, o)[- + x.dropped(W) @ error-]",
            "errors of values in how dP lies around delta": (
                "np.where(x.visible, [-x.dropped(size @ error.swapaxes(-1, -2)) + -]moved, 0.0)"
            ),
            "the error of delta in how dP lies around it": "swapaxes(-1, -2))[- + moved-], 0.0)",
        },
        (
            "counts where the weights of a row may be anything, and no attack of first order moves all of a row's "
            "weight to its largest value"
        ): {
            "errors of values in their range": (
                "(x.v, x.v) if error is None else [-(x.v + error, x.v - error)-]{+(x.v, x.v)+}"
            ),
        },
    },
    "error.bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of values in roundings of the output": "size_v, size_o = [-value_sizes(x, c)-]{+np.abs(x.v)+}, np",
            "errors of values in the output, by LSE": "size_v = [-value_sizes(x, c)-]{+np.abs(x.v)+}\n    G, total_v",
            "errors of values in how they lie around the output": (
                "value_spread.spread(x, c, w.PA, o)[- + w.PA.sum(-1, keepdims=True) * slack-]"
            ),
        },
    },
}
