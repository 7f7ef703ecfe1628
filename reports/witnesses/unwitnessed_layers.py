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
            "errors of values in their sizes": "return np.abs(x.v) if error is None else np.abs(x.v)[- + error-]",
            "errors of both in dP": "off = of_g @ [-value_sizes(x, c)-]{+np.abs(x.v)+}.swapaxes",
        },
    },
    "error.score_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of cotangents in the size of delta": (
                "size = stored + (of_g * (np.abs(x.O) + EO)).sum(-1, keepdims=True), size[- + of_g-]"
            ),
            "errors of cotangents and outputs in delta": "stored + (of_g * (np.abs(x.O)[- + EO-])).sum",
        },
    },
    "error.gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of the other operand in sizes": "total=dS @ (size[- + off-]),",
            "errors of the other operand in underflow": "seen=seen @ (size[- + off-]),",
            "errors of the other operand in early underflow": "early=early @ (size[- + off-]),",
        },
    },
    "error.option_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors in sums of gradients": "error = x.error + G * (x.size[- + x.error-]) + 2 * (n",
        },
        ("room for several underflows of one number, where the kernels commit fewer"): {
            "several underflows in sums of gradients": "+ [-2 * -](n + stores) * (sum_eta(c)",
        },
    },
    "error.gradient_sums": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors in sums over heads": "error = error + G * (size[- + error-]) + 2",
        },
        ("room for several underflows of one number, where the kernels commit fewer"): {
            "several underflows of sums over heads": "+ [-2 * -]terms * (sum_eta(c) + stored_sum",
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
        },
        ("room for several underflows of one number, where the kernels commit fewer"): {
            "several underflows of sums that begin with a bias": (
                'tiny = [-2 * -]sum_underflow(c, "score_accumulation")\n        return replace'
            ),
        },
    },
}
