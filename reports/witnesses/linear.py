"""How linear attention is rounded.

Terms by module and by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

LINEAR: dict[str, dict[tuple[str, str, str], dict[str, str]]] = {
    "error.linear_bounds": {
        ("operands", "linear exponentials", "lse"): {
            "features of queries": "dw, w = [-of_pairs(of_a, b + of_b) + -]of_pairs(a, of_b)",
            "features of keys": "of_pairs(of_a, b + of_b)[- + of_pairs(a, of_b)-], of_pairs",
        },
        ("operands", "linear", "lse"): {
            "N in the log-sum-exp": "X = -np.log1p([--e.dN-]{+0.0 * e.dN+} / e.x.N)",
        },
        ("operands", "linear light key, flushed", "output"): {
            "features in sums over linear weights": "return [-e.dw @ size + -]G * (e.w",
        },
        ("softmax", "linear tiny LSE, base 2", "lse"): {
            "epsilon and the sum with it": "growth([-(softmax.u, 2), -](row_sum_store",
            "one rounding of epsilon and the sum with it": "growth((softmax.u, [-2-]{+1+}), (row_sum_store",
            "the store of N": "growth((softmax.u, 2)[-, (row_sum_store(c), 1)-]) * (x.N + dN)",
            "a linear weight in the softmax's format": "(stored.u, 1), [-(kept.u, 1), -](probability",
        },
        ("multiplicands", "linear keys", "lse"): {
            "entry of features": "entered = growth([-(operand.u, 2), -](of_v",
            "entry of one feature": "entered = growth((operand.u, [-2-]{+1+}), (of_v",
        },
        ("multiplicands", "linear keys", "output"): {
            "entry of values to states": "(operand.u, 2), [-(of_v.u, 1), -](rounding",
            "all entries to sums over linear weights": "G = [-entered + -]summed",
            "the least N": "1 / (x.N[- - dN-])",
        },
        ("stored_scores", "linear", "lse"): {
            "scores before sums over keys": "np.maximum([-_scores_first(e, stage), -]{+0.0, +}_keys_first",
            "a linear score that is stored": "D), [-(stored.u, 1), -](kept.u, 1)",
        },
        ("partial_outputs", "linear keys", "output"): {
            "states before sums over columns": (
                "np.maximum(_scores_first(e, stage), [-_keys_first(e, stage)-]{+0.0+})"
            ),
            "the rounding of a state that waits": "return Rounding([-waits.u-]{+0.0+}, rounding",
            "states that wait": "        [-(state_rounding(c).u, c.tiles(x.problem.key_length)),\n        -](entry",
        },
        ("score_accumulation", "linear large values", "output"): {
            "two underflows of linear scores' products and sums": "total * ([-2 * -]terms(c, D)",
            "underflow of linear scores' sums": "total * ([-2 * terms(c, D) * tiny + -]stored.eta",
        },
        ("score_accumulation", "linear light key, flushed", "output"): {
            "underflow in the format of linear scores' sums": (
                'max(sum_underflow(c, one) for one in (stage, [-"score_accumulation"-]))'
            ),
        },
        ("stored_scores", "linear light key, flushed", "output"): {
            "underflow of linear scores that are stored": "terms(c, D) * tiny + [-stored.eta + -]cast.eta",
            "the numerator of linear attention": "X = ([-dS + -]size * e.dN)",
        },
        ("probabilities", "linear light key, flushed", "output"): {
            "underflow of the cast of linear weights": 'stored.eta + [-cast.eta + -]rounding(c, "softmax").eta)',
        },
        ("softmax", "linear large values", "output"): {
            "underflow of linear weights": '+ cast.eta[- + rounding(c, "softmax").eta-])\n    widest',
        },
        ("multiplicands", "linear tiny queries", "lse"): {
            "underflow of features of queries on entry": (
                "entering = operand.eta * ([-x.visible @ (e.b.sum(axis=-1, keepdims=True) * size) + -](widest"
            ),
        },
        ("multiplicands", "linear tiny keys", "lse"): {
            "underflow of features of keys on entry": "([-widest + -]D * operand.eta) * total)\n",
        },
        ("multiplicands", "linear tiny values", "output"): {
            "underflow of values on entry to states": (
                "entering = entering[- + of_v.eta * e.w.sum(axis=-1, keepdims=True)-]"
            ),
        },
        ("output", "linear", "output"): {
            "last roundings of a linear output": "found = (X + [-finish * (size + X) + -]tiny)",
            "the cast of a linear output": "finish = growth((narrowed, 1)[-, (out.u, 1)-])",
        },
        ("output", "linear large sum, flushed", "output"): {
            "underflow of the cast of a linear output": "softmax.eta * (1 + e.inverse)[- + out.eta-]",
            "underflow of last operations on a linear output": "(size + X)[- + tiny-]) * INFLATION",
        },
        ("partial_outputs", "linear tiny states, flushed", "output"): {
            "underflow of states": "4 * terms(c, n) * tiny[- + c.tiles(x.problem.key_length) * state.eta-])",
            "underflow of a state that waits": 'Rounding(waits.u, [-rounding(c, "partial_outputs").eta + -]entry',
        },
        ("multiplicands", "linear tiny states, flushed", "output"): {
            "underflow of a state on entry": 'rounding(c, "partial_outputs").eta[- + entry(c, form).eta-])',
        },
        ("partial_outputs", "linear, states, pieces", "lse"): {
            "pieces left out of states": (
                '        [-(left_out(c, c.format("operands"), FORMATS[x.problem.dtype]), 1),\n        -](left_out'
            ),
            "pieces left out of products with states": (
                'FORMATS[x.problem.dtype]), 1),[-\n        (left_out(c, c.format("partial_outputs"), '
                'c.format("operands")), 1),-]\n'
            ),
            "entry of states": '        [-(entry(c, c.format("partial_outputs")).u, 1),-]\n        (left_out',
        },
        ("probabilities", "linear exponentials", "output"): {
            "the cast of linear weights": "(kept.u, 1), [-(probability_cast(c).u, 1), -]*missing, *last",
        },
        ("multiplicands", "linear", "output"): {
            "errors of both sums of a linear output": "found = ([-X + -]finish",
        },
        ("lse", "linear, states, pieces", "output"): {
            "roundings of sums over linear weights": "e.dw @ size + [-G * (e.w @ size) + -](1 + G)",
        },
        ("output_accumulation", "linear large queries", "output"): {
            "underflow of sums of states": "widest * ([-4 * terms(c, n) * tiny + -]c.tiles",
        },
        ("output_accumulation", "linear tiny states, flushed", "output"): {
            "underflow in the format of states' sums": 'for one in ([-stage, -]"score_accumulation"[-)-]{+,)+})\n\n',
        },
        ("output_accumulation", "linear small products", "output"): {
            "underflow of last sums over linear weights": "of_scores + of_state + entering[- + last-])",
        },
        ("row_sum", "linear loud key, by key", "output"): {
            "the denominator of linear attention": "X = (dS[- + size * e.dN-]) * e.inverse",
            "states that are added to one accumulator": (
                "return [-np.maximum(x.keys, columns * np.minimum(c.tiles(x.problem.key_length), "
                "x.keys))-]{+x.keys+} + columns"
            ),
        },
        ("row_sum", "linear loud key, by key", "lse"): {
            "N in the format of row sums": '([-"row_sum"-]{+"output_accumulation"+}, "output_accumulation")',
        },
        ("row_sum", "linear keys", "output"): {
            "keys of a long tile in one accumulator": "return np.maximum([-x.keys-]{+1+}, columns",
        },
        ("output_accumulation", "linear loud key, N a column", "lse"): {
            "N as a column of the values": '("row_sum", [-"output_accumulation"-]{+"row_sum"+})',
        },
        ("softmax", "linear large sum, flushed", "output"): {
            "underflow of a quotient by N": "tiny = [-3 * softmax.eta * (1 + e.inverse) + -]out.eta",
            "underflow of a sum that is divided by N": "softmax.eta * ([-1 + -]e.inverse) + out.eta",
        },
        ("softmax", "linear tiny states, flushed", "output"): {
            "underflow of a quotient by a small N": "softmax.eta * (1[- + e.inverse-]) + out.eta",
        },
        ("softmax", "linear light key, normalized first", "output"): {
            "underflow of a linear weight that is divided by N": (
                "2 * ([-softmax.eta + -]probability_cast(c).eta) * (x.visible @ e.v)"
            ),
        },
        ("probabilities", "linear light key, normalized first", "output"): {
            "underflow of the cast of a quotient by N": (
                "2 * (softmax.eta[- + probability_cast(c).eta-]) * (x.visible @ e.v)"
            ),
        },
        ("output", "linear LSE of some size, log", "lse"): {
            "the logarithm of N": 'X = X[- + elementary_error(c, "log_error") * (1 + L + X)-]',
            "an error of the logarithm near N = 1": '"log_error") * ([-1 + -]L + X)',
        },
        ("output", "linear exponentials, log", "lse"): {
            "an error of the logarithm that grows with it": '"log_error") * (1[- + L-] + X)',
        },
        ("softmax", "linear tiny epsilon", "lse"): {
            "roundings of the logarithm of N": "X = X + growth([-(softmax.u, 3), -](work",
            "two of three roundings of the logarithm of N": "X = X + growth((softmax.u, [-3-]{+1+}), (work",
        },
        ("softmax", "linear exponentials, base 2", "lse"): {
            "one of three roundings of the logarithm of N": "X = X + growth((softmax.u, [-3-]{+2+}), (work",
        },
        ("score_accumulation", "linear, base 2", "lse"): {
            "ln 2 in the logarithm of N": "(softmax.u, 3), [-(work.u, 2), -](final",
        },
        ("lse", "linear", "lse"): {
            "the cast of the logarithm of N": "(work.u, 2)[-, (final.u, 1)-])",
        },
        ("lse", "linear tiny LSE, flushed", "lse"): {
            "underflow of the cast of the logarithm of N": "3 * softmax.eta[- + final.eta-]\n",
        },
        ("partial_outputs", "linear keys", "lse"): {
            "the logarithm's slope at the least N": "X = [--np.log1p(-e.dN / e.x.N)-]{+e.dN / e.x.N+}",
        },
        ("lse", "linear LSE of some size, log", "lse"): {
            "the error of N in the cast of its logarithm": "(final.u, 1)) * (L[- + X-])",
        },
    },
}
