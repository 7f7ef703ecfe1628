"""How gradients of linear attention are rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

LINEAR_GRADIENTS: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.linear_gradient_bounds": {
        ("weight_gradients", "linear gradients of three keys, delta of P", "dk"): {
            "sums of P dP in linear delta": "D = np.maximum(D, [-(P * dP).sum(axis=-1, keepdims=True)-]{+0.0+})",
        },
        ("operands", "linear gradients of tiny keys", "dv"): {
            "errors of features in dv": "of_P = [-e.dw * inverse + -]np.where",
        },
        ("weight_gradients", "linear gradients of tiny queries, tiny cotangents, flushed", "dq"): {
            "underflow of stores in linear dq": (
                "under = (1 + inverse) * (tiny.columns[- + tiny.stored * (1 + cotangents)-]) * seen"
            ),
        },
        ("weight_gradients", "linear gradients of small sum", "dk"): {
            "the store of linear dP": '("stored_scores", [-"weight_gradients", -]"score_gradients")\n    narrowed',
        },
        ("weight_gradients", "linear gradients of small sum, tiny cotangents, flushed", "dk"): {
            "underflow of linear dP that is stored": (
                '"stored_scores", "stored_scores", [-"weight_gradients", -]"score_gradients")'
            ),
        },
        ("lse", "linear gradients of two keys, dL alone", "dq"): {
            "dL in linear dw": "dP + D[- + dL-], 0.0) * inverse",
        },
        ("score_accumulation", "linear gradients of many keys, delta of P", "dq"): {
            "sums of linear delta over keys": (
                'of_D = of_D[- + growth(*sums(e.c, "score_accumulation", x.keys)) * (D + of_D)-]\n'
            ),
            "linear delta in its sums over keys": "x.keys)) * ([-D + -]of_D)",
        },
        ("lse", "linear gradients of light key, delta of P", "dk"): {
            "errors of P in linear delta": (
                "of_D = np.maximum(of_D, [-(of_P * dP).sum(axis=-1, keepdims=True)-]{+0.0+})"
            ),
            "delta in linear dw": "dP[- + D-] + dL, 0.0) * inverse",
            "dP in linear dw": "size = np.where(x.visible, [-dP + -]D + dL",
            "the error of dw in linear dk": "error = [-r.of_dw.swapaxes(-1, -2) @ e.a + -]dw @ e.of_a",
        },
        ("output", "linear gradients of tiny values", "dq"): {
            "the error of o in linear dw": "of_dw = np.where(x.visible, [-of_D * inverse-]{+0.0 * of_D+}, 0.0)",
        },
        ("lse", "linear gradients of tiny queries, dL alone", "dq"): {
            "the error of 1 / N in dw": "of_D * inverse, 0.0)[- + size * lost-]\n",
            "the largest 1 / N in dw": "np.where(lost < 1, 1 / (x.N[- * (1 - lost)-]), np.inf)",
            "the error of dw in linear dq": "error = [-r.of_dw @ b + -]dw @ e.of_b",
        },
        ("lse", "linear gradients of tiny keys", "dv"): {
            "the error of 1 / N in dv": (
                "of_P = e.dw * inverse[- + np.where(x.visible, x.P, 0.0) * lost / (1 - lost)-]"
            ),
            "the largest 1 / N in dv": "* lost[- / (1 - lost)-]\n",
            "1 / N as exp(-LSE)": (
                'lost = np.maximum(lost, [--np.expm1(-in_exponent - elementary_error(c, "exp_error"))-]{+0.0 * of_L+})'
            ),
            "the LSE in 1 / N": "in_exponent = [-of_L + -]growth",
            "the error of P in linear dv": "error = [-r.of_P.swapaxes(-1, -2) @ size + -]G",
        },
        ("gradients", "linear gradients of two keys, error of exp", "dv"): {
            "the exponential of -LSE": 'np.expm1(-in_exponent[- - elementary_error(c, "exp_error")-])',
        },
        ("score_accumulation", "linear gradients of one key", "dv"): {
            "sums over columns of the linear backward pass": "return [-(1 + short) * -](1 + long) * (1 + rest) - 1",
            "sums over columns in the format of scores": (
                'for stage in ([-"score_accumulation"-]{+"gradient_accumulation"+}, "gradient_accumulation")]'
            ),
        },
        ("partial_gradients", "linear gradients of small sum", "dv"): {
            "sums over rows of the linear backward pass": "short) * [-(1 + long) * -]{+(1 + 0 * long) * +}(1 + rest)",
            "sums over rows in the format of gradients": (
                "long = np.maximum([-growth(*accumulated(c, passed))-]{+0.0+}, growth"
            ),
            "roundings in linear dv": "@ size[- + G * (P @ size)-] + (1",
        },
        ("score_gradients", "linear gradients of small sum", "dq"): {
            "casts of the linear backward pass": "(1 + long)[- * (1 + rest)-] - 1",
            "the cast of dw": '("stored_scores", "weight_gradients", [-"score_gradients"-])\n    narrowed',
            "stores of the linear backward pass": '(rounding(c, "softmax").u, 6)[-, *narrowed-])',
            "roundings in linear dq": "dw @ e.of_b[- + G * (dw @ b)-] + (1",
        },
        ("stored_scores", "linear gradients of two keys", "dv"): {
            "the store of linear weights and of dw": (
                'stages = c.format("score_accumulation"), ([-"stored_scores", -]"weight_gradients"'
            ),
        },
        ("score_accumulation", "linear gradients of two keys, tiny cotangents, flushed", "dk"): {
            "underflow in the format of scores in the linear backward pass": (
                'least = max([-sum_underflow(c, "score_accumulation"), -]sum_underflow(c, "output'
            ),
        },
        ("gradient_accumulation", "linear gradients of large queries, tiny cotangents, flushed", "dq"): {
            "underflow in the format of gradients in the linear backward pass": (
                'sum_underflow(c, "output_accumulation")[-, sum_eta(c)-])'
            ),
        },
        ("gradient_accumulation", "linear gradients of tiny queries, tiny cotangents, flushed", "dq"): {
            "underflow of linear sums over columns": "columns=[-4 * terms(c, columns) * least-]{+0.0+},",
            "underflow of sums over columns in linear dq": "under = (1 + inverse) * ([-tiny.columns + -]tiny.stored",
            "underflow that 1 / N multiplies in linear dq": "under = (1[- + inverse-]) * (tiny.columns",
        },
        ("stored_scores", "linear gradients of light key, tiny cotangents, flushed", "dk"): {
            "underflow of what the linear backward pass stores": (
                "stored=[-sum(rounding(c, stage).eta for stage in stages) + -]probability_cast(c).eta,"
            ),
            "underflow of linear weights and of dw that are stored": (
                '"softmax", "softmax", [-"stored_scores", "stored_scores", -]"weight_gradients", "score_gradients")'
            ),
            "all underflow in linear dk": "G * (dw @ e.a)[- + (1 + G) * under-]",
        },
        ("softmax", "linear gradients of light key, flushed", "dv"): {
            "underflow of products with 1 / N": (
                'stages = ([-"softmax", "softmax", -]"stored_scores", "stored_scores", "weight_gradients"'
            ),
            "underflow of stores in linear dv": (
                "under = [-(tiny.stored + tiny.columns) * (of_keys @ ((1 + inverse) * size)) + -]tiny.rows"
            ),
            "underflow that 1 / N does not multiply in linear dv": "(of_keys @ (([-1 + -]inverse) * size))",
        },
        ("score_gradients", "linear gradients of light key, tiny cotangents", "dk"): {
            "underflow of the cast of dw": '"stored_scores", "weight_gradients"[-, "score_gradients"-])\n    return',
        },
        ("probabilities", "linear gradients of light key, flushed", "dv"): {
            "underflow of the cast of P in linear dv": "for stage in stages)[- + probability_cast(c).eta-],",
        },
        ("partial_gradients", "linear gradients of exponentials, tiny cotangents, flushed", "dq"): {
            "underflow of sums over rows in linear dq": (
                "under = under + [-tiny.rows * (1 + inverse * (cotangents + r.D)) + -]tiny.columns\n  "
                "  error = r.of_dw @ b"
            ),
        },
        ("operands", "linear gradients of exponentials, dL alone", "dq"): {
            "errors of features in linear dq": "error = r.of_dw @ b[- + dw @ e.of_b-]",
        },
        ("stored_scores", "linear gradients of large queries, tiny cotangents, flushed", "dq"): {
            "all underflow in linear dq": "G * (dw @ b)[- + (1 + G) * under-]",
        },
        ("gradient_accumulation", "linear gradients of tiny keys, tiny cotangents, flushed", "dk"): {
            "underflow of sums over columns and stores in linear dk": (
                "under = [-(tiny.columns + tiny.stored) * (seen + unscaled) + -]tiny.stored * both"
            ),
            "underflow of what 1 / N has multiplied in linear dk": (
                "(tiny.columns + tiny.stored) * ([-seen + -]unscaled)"
            ),
        },
        ("operands", "linear gradients of exponentials, dL alone", "dk"): {
            "errors of features in linear dk": "@ e.a[- + dw @ e.of_a-] + G",
        },
        ("score_gradients", "linear gradients of tiny values, dL alone", "dk"): {
            "roundings in linear dk": "dw @ e.of_a[- + G * (dw @ e.a)-]",
        },
        ("stored_scores", "linear gradients of tiny queries, tiny cotangents", "dv"): {
            "underflow that 1 / N multiplies in linear dv": "(of_keys @ ((1[- + inverse-]) * size))",
        },
        ("partial_gradients", "linear gradients of two keys, tiny cotangents, flushed", "dv"): {
            "underflow of sums over rows in linear dv": "* size)) + [-tiny.rows * (1 + features)-]{+0.0+}\n",
            "all underflow in linear dv": "G * (P @ size)[- + (1 + G) * under-]",
        },
        ("gradients", "linear gradients of small sum", "dq"): {
            "the cast of linear gradients": "total = (error + [-out.u * (size + error) + -]out.eta)",
        },
        ("gradients", "linear gradients of two keys, tiny cotangents, flushed", "dv"): {
            "underflow of the cast of linear gradients": "(size + error)[- + out.eta-]) * INFLATION",
        },
    },
}
