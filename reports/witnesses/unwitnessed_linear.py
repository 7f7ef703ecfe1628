"""Terms of the theorems of linear attention without a witness, by module and by the reason."""

from __future__ import annotations

LINEAR: dict[str, dict[str, dict[str, str]]] = {
    "error.linear_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "errors of both features": "dw, w = of_pairs(of_a, b[- + of_b-])",
            "errors of features in the largest linear weight": (
                "of_pairs(a, of_b), of_pairs([-a + of_a, b + of_b-]{+a, b+})"
            ),
            "the error of N in its last roundings": "* (x.N[- + dN-]) + 3",
            "entries and sums of linear weights": "G = entered + summed[- + entered * summed-]",
            "roundings make the underflow of linear sums grow": "G * (e.w @ size) + [-(1 + G) * -](of_scores",
            "sums over columns and over keys": "return G + over_d[- + G * over_d-]\n",
            "underflow of both features on entry": "(widest[- + D * operand.eta-]) * total)\n",
            "the error of N in that of its logarithm": '"log_error") * (1 + L[- + X-])',
            "errors of both sums, rounded at last": "finish * (size[- + X-]) + tiny)",
        },
        "room for several underflows of one number, where the kernels commit fewer": {
            "underflow of N": "(x.N + dN)[- + 3 * softmax.eta-]",
            "several underflows of N": "(x.N + dN) + [-3 * -]softmax.eta",
            "several underflows of sums of states": "widest * ([-4 * -]terms(c, n) * tiny",
            "underflow of sums of states for each key": "widest * (4[- * terms(c, n)-] * tiny",
            "several underflows of last sums over linear weights": "last = [-4 * -]terms(c, n",
            "underflow of a last sum over keys": "terms(c, [-n + -]chained(x, c, D)) * tiny",
            "underflow of a last sum over columns": "terms(c, n[- + chained(x, c, D)-]) * tiny",
            "several underflows of a quotient by N": "tiny = [-3 * -]softmax.eta * (1 + e.inverse) + out.eta",
            "several underflows of a linear weight that is divided by N": (
                "tiny + [-2 * -](softmax.eta + probability_cast"
            ),
        },
        "no emulated kernel does what this allows: features that are divided by N": {
            "underflow of features that are divided by N": (
                "tiny = tiny[- + (softmax.eta + operand.eta) * (x.visible @ (features * e.v))-]"
            ),
            "a third rounding of a quotient by N": '"output_accumulation", divisions=[-3-]{+2+})',
        },
        "no emulated kernel does what this allows: one state that waits once for each tile": {
            "states that wait once for each tile": "(state_rounding(c).u, [-c.tiles(x.problem.key_length)-]{+1+})",
            "underflow of states for each tile": (
                "4 * terms(c, n) * tiny + [-c.tiles(x.problem.key_length) * -]state.eta)"
            ),
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their "
            "room unused than it takes"
        ): {
            "roundings of a quotient by N": '"output_accumulation", divisions=[-3-]{+0+})',
            "two of three roundings of a quotient by N": '"output_accumulation", divisions=[-3-]{+1+})',
            "a sum over linear weights narrowed to the softmax's format": "finish = growth([-(narrowed, 1), -](out",
            "one rounding of ln 2 in the logarithm of N": "(softmax.u, 3), (work.u, [-2-]{+1+}), (final",
            "additions within the state of the first tile": "x.keys))[- + columns-]\n",
        },
        (
            "of two bounds the larger holds, or the smaller is enough, and the other one covers for this to first order"
        ): {
            "sums of linear scores over columns": (
                '        [-*sums(c, "score_accumulation", D), -](stored.u, 1), (kept'
            ),
            "sums of linear scores over keys": "*missing[-, *last-]\n    )",
            "sums of states over keys": (
                "G = growth([-*sums(c, stage, chained(x, c, x.problem.head_dim)), -]*of_state)"
            ),
            "sums of states over columns": "return G[- + over_d + G * over_d-]\n",
            "sums of states over columns, as of scores": (
                'x.problem.head_dim)) for one in (stage, [-"score_accumulation"-]{+stage+}))'
            ),
            "sums of states over columns, as over keys": (
                'x.problem.head_dim)) for one in ([-stage-]{+"score_accumulation"+}, "score_accumulation"))'
            ),
            "pieces left out of linear scores": "missing = ([-left_out(c, form, form)-]{+0.0+}, 1), (left_out",
            "pieces left out of products with linear scores": (
                '(left_out(c, form, form), 1), [-(left_out(c, c.format("probabilities"), dtype), 1)-]\n'
            ),
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of the logarithm of N": "(L + X)[- + 3 * softmax.eta-] + final",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside "
            "any rounding attacked"
        ): {
            "the evaluation of a linear output in float64": "+ tiny)[- * INFLATION-]\n",
            "the evaluation of the logarithm of N in float64": "np.inf, X)[- * INFLATION-])",
        },
    },
    "error.linear_gradient_bounds": {
        ("a product of two errors, which the room of the first-order terms hides at the precision of float16"): {
            "the error of o in the size of linear delta": "(np.abs(x.O)[- + of_o-])",
            "the error of linear delta in its sums over keys": "x.keys)) * (D[- + of_D-])",
            "the error of the LSE in roundings of -LSE": "(np.abs(x.L)[- + of_L-])",
            "roundings make underflow grow in linear dq": "G * (dw @ b) + [-(1 + G) * -]under",
            "the error of dw in its size in linear dq": "_underflow(e, n), r.dw[- + r.of_dw-]\n    seen, values",
            "roundings make underflow grow in linear dk": "G * (dw @ e.a) + [-(1 + G) * -]under",
            "roundings make underflow grow in linear dv": "G * (P @ size) + [-(1 + G) * -]under",
            "the error of P in its size in linear dv": "P, size = (r.P[- + r.of_P-]).swap",
            "errors of linear gradients in their cast": "out.u * (size[- + error-]) + out.eta",
        },
        "no emulated kernel does what this allows: N that the forward pass kept for the backward pass": {
            "the error of N in the backward pass": "lost = [-e.dN / x.N-]{+0.0 * e.dN+}",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their "
            "room unused than it takes"
        ): {
            "roundings of -LSE": (
                'in_exponent = of_L[- + growth((rounding(c, "softmax").u, 3)) * (np.abs(x.L) + of_L)-]'
            ),
            "two of three roundings of -LSE": 'growth((rounding(c, "softmax").u, [-3-]{+1+})) * (np.abs(x.L)',
            "one of three roundings of -LSE": 'growth((rounding(c, "softmax").u, [-3-]{+2+})) * (np.abs(x.L)',
            "entry of values to linear dP": "for each in ([-dtype, -]form, form, out",
            "entry of one feature to the linear backward pass": "for each in (dtype, [-form, -]form, out",
            "entry of both features to the linear backward pass": "for each in (dtype, [-form, form, -]out",
            "entry of dO to the linear backward pass": 'form, form, [-out, -]c.format("score_gradients"))]',
            "entry of dw": 'form, form, out[-, c.format("score_gradients")-])]',
            "the cast of P in linear dv": "u, 1)[-, (probability_cast(c).u, 1)-]]\n",
            "pieces left out of the linear backward pass": "rest = growth(*entries, [-missing, -](state",
            "pieces left out of two products of the linear backward pass": "missing = ([-2 * -]max(",
            "the sums of delta and dL with dP": "columns[- + 2-])) for stage",
            "sums over columns in the format of gradients": (
                'for stage in ("score_accumulation", [-"gradient_accumulation"-]{+"score_accumulation"+})]'
            ),
            "products with 1 / N in the backward pass": '[-(rounding(c, "softmax").u, 6), -]*narrowed)',
            "five of six products with 1 / N in the backward pass": (
                '(rounding(c, "softmax").u, [-6-]{+1+}), *narrowed)'
            ),
            "four of six products with 1 / N in the backward pass": (
                '(rounding(c, "softmax").u, [-6-]{+2+}), *narrowed)'
            ),
            "sums of linear dk over heads": '"dk": [-summed_over_group(x, contract, dk)-]{+x.over_group(dk.error)+}',
        },
        "no emulated kernel does what this allows: one number that is stored twice in one format": {
            "two stores of one number of the linear backward pass": "summed).u, [-2-]{+1+}) for stage",
        },
        "no emulated kernel does what this allows: states in the backward pass": {
            "entry of states of gradients": 'entries += [[-(entry(c, c.format("partial_outputs")).u, 1), -](prob',
            "states of gradients for each tile": (
                "columns, [-e.c.tiles(problem.key_length) + -]e.c.tiles(problem.query_length)"
            ),
            "states of gradients that are added to one accumulator": (
                "passed = [-np.maximum(n, columns * np.minimum(tiles, n))-]{+n+} + columns"
            ),
            "additions within the state of gradients of the first tile": (
                "passed = np.maximum(n, columns * np.minimum(tiles, n))[- + columns-]"
            ),
            "sums over rows in the format of outputs": (
                'accumulated(c, passed)), [-growth(*sums(c, "output_accumulation", passed))-]{+0.0+})'
            ),
            "states of gradients that wait": "missing, [-(state_rounding(c).u, tiles), -](rounding",
            "underflow in the format of outputs in the linear backward pass": (
                '"score_accumulation"), [-sum_underflow(c, "output_accumulation"), -]sum_eta(c))'
            ),
            "underflow of states of gradients in one accumulator": (
                "rows=4 * terms(c, [-np.maximum(n, columns * np.minimum(tiles, n))-]{+n+} + columns)"
            ),
            "underflow of products that are states in linear dq": (
                "keepdims=True)[- + (tiny.stored + tiny.entry) * (seen + values)-]"
            ),
            "underflow of products that are states in linear dk": (
                "keepdims=True)[- + (tiny.stored + tiny.entry) * unscaled * (1 + values)-]"
            ),
            "underflow of dO / N on entry in linear dv": (
                "under = under[- + tiny.entry * (of_keys @ (inverse * size * e.a.sum(axis=-1, keepdims=True)))-]"
            ),
            "underflow of w before its product with dO in linear dv": (
                "under = under[- + (tiny.stored + tiny.entry) * e.w.sum(axis=-2)[..., None]-]"
            ),
        },
        "room for several underflows of one number, where the kernels commit fewer": {
            "several underflows of linear sums over columns": "columns=[-4 * -]terms(c, columns) * least,",
            "several underflows of linear sums over rows": "rows=[-4 * -]terms(c, np.max",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of linear delta's sum over keys": (
                'of_D = of_D[- + 4 * terms(e.c, x.keys) * sum_underflow(e.c, "score_accumulation")-]\n'
            ),
            "underflow of linear delta for each key": "of_D + 4 * [-terms(e.c, x.keys) * -]sum_underflow",
            "several underflows of linear delta": "of_D + [-4 * -]terms(e.c, x.keys)",
            "underflow on entry in the linear backward pass": (
                "entry=[-max(entry(c, form).eta for form in formats)-]{+0.0+},"
            ),
            "underflow that 1 / N does not multiply in linear dq": "under = ([-1 + -]inverse) * (tiny.columns",
            "underflow of a quotient by N that dO multiplies in linear dq": (
                "tiny.stored * (1[- + cotangents-])) * seen"
            ),
            "underflow on entry that 1 / N multiplies in linear dq": (
                "under = under[- + inverse * tiny.entry * (values + cotangents * seen)-]"
            ),
            "underflow of dO on entry in linear dq": "inverse * tiny.entry * ([-values + -]cotangents * seen)",
            "underflow of values on entry in linear dq": "inverse * tiny.entry * (values[- + cotangents * seen-])",
            "underflow of the other feature on entry in linear dq": (
                "under = under + [-tiny.entry * dw.sum(axis=-1, keepdims=True) + -](tiny.stored + "
                "tiny.entry) * (seen + values)"
            ),
            "underflow of sums over rows that 1 / N multiplies in linear dq": (
                "tiny.rows * (1[- + inverse * (cotangents + r.D)-]) + tiny.columns"
            ),
            "a last underflow of sums over columns in linear dq": "(cotangents + r.D))[- + tiny.columns-]\n",
            "underflow of what 1 / N multiplies last in linear dk": (
                "(tiny.columns + tiny.stored) * (seen[- + unscaled-])"
            ),
            "underflow of stores that dO multiplies in linear dk": "(seen + unscaled)[- + tiny.stored * both-]",
            "underflow on entry in linear dk": "under = under[- + tiny.entry * (values * seen + cotangents)-]\n",
            "underflow of dO on entry in linear dk": "tiny.entry * ([-values * seen + -]cotangents)\n",
            "underflow of values on entry in linear dk": "tiny.entry * (values * seen[- + cotangents-])\n",
            "underflow of the other feature on entry in linear dk": (
                "under = under + [-tiny.entry * dw.sum(axis=-1, keepdims=True) + -](tiny.stored + "
                "tiny.entry) * unscaled"
            ),
            "underflow of sums over rows in linear dk": "under = under + [-tiny.rows * (2 + values) + -]tiny.columns",
            "underflow of sums over rows that values multiply in linear dk": (
                "tiny.rows * (2[- + values-]) + tiny.columns"
            ),
            "a last underflow of sums over columns in linear dk": "tiny.rows * (2 + values)[- + tiny.columns-]",
            "underflow of sums over rows that features multiply in linear dv": "tiny.rows * (1[- + features-])\n",
            "underflow on entry in linear dv": (
                "under = under[- + tiny.entry * (P.sum(axis=-1, keepdims=True) + of_keys @ size * (1 "
                "+ features) + tiny.columns)-]"
            ),
            "underflow of dO on entry in linear dv": "tiny.entry * ([-P.sum(axis=-1, keepdims=True) + -]of_keys",
            "underflow of P on entry in linear dv": (
                "P.sum(axis=-1, keepdims=True) + [-of_keys @ size * (1 + features) + -]tiny.columns)"
            ),
            "underflow of features on entry in linear dv": (
                "under = under[- + tiny.entry * (of_keys @ (inverse * size)) * (1 + features)-] + tiny"
            ),
            "underflow of sums over columns in linear dv": "(1 + features)[- + tiny.columns-]\n",
        },
        (
            "covers the evaluation of a bound in float64, whose errors are too small to be seen beside "
            "any rounding attacked"
        ): {
            "the evaluation of linear gradients in float64": "out.eta)[- * INFLATION-]",
        },
    },
}
