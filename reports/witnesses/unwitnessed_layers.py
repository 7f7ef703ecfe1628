"""Terms of the theorems of layers without a witness, by module and by the reason."""

from __future__ import annotations

LAYERS: dict[str, dict[str, dict[str, str]]] = {
    "error.projection_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of products of heads in sums before the last": "held = [-each.largest-]{+np.abs(each.value)+}.sum",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be "
            "seen beside any rounding attacked"
        ): {
            "the evaluation of errors of weights in the gradient of v": (
                "(np.abs(dO @ W)[- + 2.0**-40 * (np.abs(dO) @ np.abs(W))-])"
            ),
            "the evaluation of the output of a layer": 'allowed = {"output": allowed[- * INFLATION-], "lse"',
        },
    },
    "error.operand_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "what errors of q and k have in common, multiplied": "common, own = of_q + of_k[- + of_q * of_k-],",
            "what errors have in common makes each number's grow": "np.abs(x.dot) + [-(1 + common) * -]own)",
            "errors of each number of q and k, multiplied": "a @ (x.k_size.swapaxes(-1, -2)[- + b-])\n",
            "errors of values in their sizes": "return x.v_size if error is None else x.v_size[- + error-]",
            "errors of both in dP": "off + of_g @ [-value_sizes(x, c)-]{+np.abs(x.v)+}.swapaxes",
        },
    },
    "error.score_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of cotangents in the size of delta": (
                "size = stored + (of_g * (np.abs(x.O) + EO)).sum(-1, keepdims=True), size[- + of_g-]"
            ),
            "errors of cotangents and outputs in delta": "stored + (of_g * (np.abs(x.O)[- + EO-])).sum",
            "errors of values around delta": (
                "value_spread.slack(x, c), [-value_spread.around(x, c, row.around, size)-]{+row.around+}"
            ),
        },
    },
    "error.weight_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of values in their sizes in dP": (
                "cotangent_entering(near, g, c), [-value_sizes(x, c)-]{+np.abs(x.v)+}"
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
            "the errors of a norm and of its inverse, multiplied": "of_inverse[- + of_y * of_inverse-]\n",
            "errors of a cosine in its rounding": "turned * (G * (np.abs(exact)[- + off-])",
            "roundings make underflow of a cosine grow": "[-(1 + G) * -]tiny)\n        return Approximation(exact",
            "errors in the rounding of each number of a vector": "u * (np.abs(value)[- + self.own-])",
            "roundings make underflow of each number of a vector grow": "+ [-(1 + u) * -]eta / least",
            "errors of x and y, multiplied": "_through(x.error, [-y.largest-]{+np.abs(y.value)+})",
            "errors in roundings of a product": "G * (size[- + error-]) + (1 + G) * tiny\n        enter =",
            "roundings make underflow of a product grow": "G * (size + error) + [-(1 + G) * -]tiny\n        enter =",
            "underflow of x and y on entry": "of_y.eta * rows[- + n * of_x.eta * of_y.eta-]\n",
            "errors in underflow of y on entry": "[-x.largest-]{+np.abs(x.value)+}.sum(-1",
            "errors in underflow of x on entry": "[-y.largest-]{+np.abs(y.value)+}.sum(-2",
            "roundings make underflow of an operation grow": "rounded + [-(1 + r.u) * -]r.eta",
            "errors in sums of rows": "G * (x.size[- + error-]) + (1 + G) * added",
            "roundings make underflow of sums of rows grow": "+ [-(1 + G) * -]added * work.eta",
            "errors of a bias in roundings of sums that begin with it": "G * (b.size[- + b.error-])",
            "roundings make underflow of a bias grow": "+ [-(1 + G) * -]loaded.eta",
            "errors of what enters an accumulator": "enters.u * (x.size[- + x.error-]) + terms",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of a cosine": "off)[- + (1 + G) * tiny-])\n        return Approximation(exact",
            "underflow of the inverse of a norm": "of_inverse = r.u[- + r.eta * y.largest-]\n",
            "underflow of each number of a vector": "+ self.own)[- + (1 + u) * eta / least-]\n",
            "underflow of every operation": "Rounding(u, [-roundings * -]work.eta + stores",
        },
        "no emulated kernel does what this allows, a norm whose inverse is rounded and inverted once more": {
            "the rounding of an inverse, common to a vector": "of_inverse = [-r.u + -]r.eta",
            "the inverse of a norm, common to a vector": "of_y + [-of_inverse + -]of_y * of",
        },
        "no emulated kernel does what this allows: a quotient of a sum whose terms are divided one by one": {
            "terms that are divided one by one": "roundings=3, stores=2[-, held=size-])",
        },
    },
    "error.value_spread": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of values, times those of weights": (
                "return found[- if of.error is None else found + x.dropped(W) @ of.error-]"
            ),
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
    "error.output_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of values in roundings of the output": "size_v, size_o = [-value_sizes(x, c)-]{+np.abs(x.v)+}, np",
            "errors of values in the size of the output": (
                "np.abs(o) + slack[- + value_spread.slack(x, c)-]\n    total_v"
            ),
            "errors of values in the output that an LSE multiplies": "G * (np.abs(o) + slack[- + off-]) + off",
            "errors of values in the output, by LSE": "size_v = [-value_sizes(x, c)-]{+np.abs(x.v)+}\n    G, total_v",
            "an output that values carry": "around = of.of_each(e.slack[- + off-])",
            "errors of values in how they lie around the output": (
                "value_spread.spread(x, w.PA, of)[- + w.PA.sum(-1, keepdims=True) * around-]"
            ),
        },
    },
}
