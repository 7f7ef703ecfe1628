"""Terms without a witness, by module and by the reason why no attack shows that they are needed."""

from __future__ import annotations

SCORES: dict[str, dict[str, dict[str, str]]] = {
    "error.products": {
        (
            "superfluous: what the first piece leaves of a number that underflows is below the grid, so "
            "that all pieces lose what one does"
        ): {
            "underflow of a second piece": "[-4 * -]{+1 * +}one.eta",
        },
        "no emulated kernel does what this allows: pieces of one number that all have the other's sign": {
            "sizes of pieces": "tuple((u, [-pieces * -]m)",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "a product of pieces is one of rounded pieces": "[- * (1 + u) * (1 + w)-]",
            "both roundings of a probability, multiplied": "enters.u[- + own.u * enters.u-], ",
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of a probability's entry": "own.eta[- + enters.eta-])",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "the largest off the grid": "else n[- + passed-])",
        },
        "decides where sums or differences count as exact; no attack has numbers for which it decides alone": {
            "bits that a matrix unit loses": '"inner_accumulation"))[- + lost-]',
            "an inner accumulator's bits": 'for form in c.formats(stage[-, "inner_accumulation"-]))',
        },
    },
    "error.score_bounds": {
        "no emulated kernel does what this allows: it stores what it need not scale": {
            "storing operands of scale 1": 'return [-conversion(c, "stored_scores", dtype)-]{+EXACT+}\n    stored',
        },
        "decides where sums or differences count as exact; no attack has numbers for which it decides alone": {
            "storing a scaled operand that has more bits": (
                'sigma)[- and conversion(c, "stored_scores", dtype).u == 0-]'
            ),
            "underflow on entry of an operand moved by a power of 4": (
                '[-max(enters.eta, rounding(c, "multiplicands").eta)-]{+enters.eta+}'
            ),
            "exact scores have all products of pieces": "operand_scaling(x, c).u[- or left_out(c, form, form)-]:",
            "exact scores have normal products": "fits[- & (products >= summed)-] &",
            "exact scores have normal operands": ("(products >= summed)[- & (operands >= _smallest_operand(x, c))-]"),
        },
        "no emulated kernel does what this allows: a folded constant on both operands": {
            "one rounding of the operand's factor": "3 if folds else [-2-]{+1+}",
            "the rounding of a folded factor": "[-3 if folds else -]2)",
        },
        "a product of two errors, which the room of the first-order terms hides at the precision of float16": {
            "roundings of errors that two scores share": "of_pairs - again[- - moved * of_pairs-], 0.0)",
            "both operands underflow": "(sizes[- + d * eta-])",
            "roundings make underflow grow": "(sizes + d * eta))[- * (1 + relative)-]",
        },
        "what errors of operands have moved counts as rounded again in full, which leaves as much room": {
            "roundings that two scores of a pair do not share": "of_pairs[- - again-] - moved",
        },
        "perhaps superfluous: a distance is 0 or a normal number, so slope and product alone underflow, once each": {
            "one of two underflows of a term of ALiBi": "loaded.eta + [-2 * -]made.eta",
        },
        "the kernel holds the softcap in one constant, whose error the quotient and the product cancel": {
            "one rounding of the softcap's inverse": (
                "growth((work.u, [-2-]{+1+}), (stored.u, 1)) * (np.abs(x.scaled) + delta) + cap"
            ),
            "the softcap's inverse": "growth([-(work.u, 2), -](stored.u, 1)) * (np.abs(x.scaled) + delta) + cap",
        },
        "stands behind one underflow of tanh more than kernels commit, which takes its place": {
            "underflow of the score over the softcap": "+ delta)[- + cap * stored.eta-]",
        },
        ("perhaps superfluous: the quotient by the softcap has its underflow elsewhere, and tanh is stored once"): {
            "one of two underflows of tanh": '"tanh_error") + [-2 * -]stored.eta)',
        },
        (
            "a subnormal beside other absolute terms of the same stage, which leave more of their room "
            "unused than it takes"
        ): {
            "underflow of the capped score": "(np.abs(x.capped) + delta)[- + stored.eta-]\n\n\ndef may",
            "underflow of the sum with a bias": "(np.abs(x.s) + delta)[- + stored.eta-] + work.eta",
            "underflow of a bias as it is loaded": "stored.eta[- + work.eta-]",
            "underflow of a bias that is rounded": "np.where(held, 0.0, loaded.u * size[- + loaded.eta-])",
            "underflow of the product as it is stored": "max(1.0, sigma)[- + stored.eta-]\n    if c.base2",
            "underflow of the sum with ALiBi": "shift + delta)[- + of_sum-]",
            "underflow of the sum of two": "size + delta)[- + of_sum-]",
            "underflow of what a log-sum-exp is moved by": (
                "product + [-_farthest_key(x) * (loaded.eta + work.eta) + -]softmax.eta"
            ),
            "underflow of a log-sum-exp that is moved": "* largest[- + softmax.eta + final.eta-]",
        },
        (
            "other roundings of the same stage accompany it in every kernel, and leave more of their room "
            "unused than it takes"
        ): {
            "a slope that is rounded as a log-sum-exp is moved": "product = growth([-(loaded.u, 1), -](work.u, 3)",
            "the product that a log-sum-exp is moved by": "growth((loaded.u, 1)[-, (work.u, 3)-]) * shift",
            "the log-sum-exp before it is moved": "largest = L + [-shift + -]product",
            "underflow of a slope, times the distance": "error + [-(1 + far) * -](loaded.eta + 2",
        },
        (
            "with base 2 the terms of score, maximum and LSE leave room for one another: no attack fills "
            "the room of all of them"
        ): {
            "one of base 2's roundings before a bias": "delta + [-3-]{+2+} * work.u",
            "two of base 2's roundings before a bias": "delta + [-3-]{+1+} * work.u",
            "base 2 before a bias": "delta + [-3-]{+0+} * work.u",
            "base 2 of the bias alone": "(np.abs(x.capped) + delta[- + size-])",
            "base 2 before ALiBi": "delta + [-work.u * 3-]{+0.0+} * (size",
        },
        ("with base 2 a product underflows only where the relative roundings of larger scores of its row weigh more"): {
            "base 2's underflow before a bias": "+ size)[- + 2 * work.eta-]",
        },
    },
}
