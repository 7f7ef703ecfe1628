"""Mutants that no test can kill, with reasons: they do what the code does, or another right thing."""

from __future__ import annotations

_ROWS_HAVE_ONE = "the last axis of M, L and top has one element: its first is its last"
_FOUR_AXES = "of four axes the third is the last but one"

#: Reasons by module and change, as ``report`` prints them.
REASONS: dict[tuple[str, str], str] = {
    (
        "bounds.backward.gradient_products",
        (
            "-    kept = np.abs(errors.grad.dS @ k) + (slack / sigma if sigma else 0.0)\n"
            "+    kept = np.abs(errors.grad.dS @ k) + (slack / sigma if sigma else -1.0)"
        ),
    ): "sigma is 0 then, and multiplies the sum",
    (
        "bounds.forward.output_bounds",
        (
            "-    least = 1 - of_output.C.max(axis=-1, keepdims=True, initial=0.0)\n"
            "+    least = 1 - of_output.C.max(axis=-1, keepdims=True, initial= -1.0)"
        ),
    ): "C is at least 0, and a row without keys has no mean",
    (
        "bounds.forward.output_terms",
        (
            "-    G, total_v = np.where(E_L < 700, np.expm1(np.minimum(E_L, 700.0)), np.inf), "
            "forward.raised(forward.seen) @ size_v\n"
            "+    G, total_v = np.where(E_L < 700, np.expm1(np.minimum(E_L, 699.0)), np.inf), "
            "forward.raised(forward.seen) @ size_v"
        ),
    ): "an output that may be off by e^699 times the values is as good as one without a bound",
    (
        "bounds.forward.domain",
        (
            "-    finished = np.abs(forward.s) + shift + np.maximum(error - last * np.abs(forward.s), 0.0)\n"
            "+    finished = np.abs(forward.s) + shift + np.maximum(error - last * np.abs(forward.s), 1.0)"
        ),
    ): "near the largest number a score is off by more than 1, or is a number of the format, farther from the next one",
    (
        "bounds.forward.weight_bounds",
        ("-        return np.zeros((*forward.s.shape[:-1], 1))\n+        return np.zeros((*forward.s.shape[:- 0], 1))"),
    ): "one zero is broadcast as an array of zeros is",
    (
        "bounds.forward.row_sum_bounds",
        (
            '-    wild = forward.visible & guard("weights of which nothing is known", ~(alpha <= WILD), alpha < 0)\n'
            '+    wild = forward.visible & guard("weights of which nothing is known", ~(alpha < WILD), alpha < 0)'
        ),
    ): "of a weight whose error is exactly the limit nothing more is known, and its bound is wider",
    (
        "attention.gradient_enclosure",
        (
            "-    of_v, by_values = score.values.pull(BALLS, exact_table(problem.v[b, 0]), p, of_v)\n"
            "+    of_v, by_values = score.values.pull(BALLS, exact_table(problem.v[b, -1]), p, of_v)"
        ),
    ): "v of a layer has one head",
    (
        "bounds.forward.row_sum_bounds",
        (
            '-        reference = term("the reference in the LSE of base 2", np.abs(forward.M[..., 0]) + moved '
            "+ weights.top[..., 0])\n"
            '+        reference = term("the reference in the LSE of base 2", np.abs(forward.M[..., -1]) + '
            "moved + weights.top[..., 0])"
        ),
    ): _ROWS_HAVE_ONE,
    (
        "bounds.backward.gradient_products",
        (
            "-    evaluated = np.expm1(4 * evaluation_alpha(errors.near))[..., None] + "
            "max(2.0**-40, k.shape[-2] * 2.0**-52)\n"
            "+    evaluated = np.expm1(4 * evaluation_alpha(errors.near))[..., None] + "
            "max(2.0**- 39, k.shape[-2] * 2.0**-52)"
        ),
    ): "a share of 2^-40 or 2^-39 that covers the evaluation of a sum in float64; either is many times what that needs",
    (
        "bounds.backward.score_gradient_bounds",
        (
            "-    return np.where(forward.visible, E_dA, 0.0), np.where(forward.visible, most, 0.0)\n"
            "+    return np.where(forward.visible, E_dA, 1.0), np.where(forward.visible, most, 0.0)"
        ),
    ): "where a key is hidden, dA is at most `most`, which is 0",
    (
        "bounds.forward.domain",
        ("-    return (forward.keys[..., 0] == 0) & guard(\n+    return (forward.keys[..., -1] == 0) & guard("),
    ): _ROWS_HAVE_ONE,
    (
        "bounds.forward.product_bounds",
        (
            '-        <= exact_bits(contract, "score_accumulation") + np.minimum(low_q + low_k, 4000.0) - 1e-9\n'
            '+        <= exact_bits(contract, "score_accumulation") + np.minimum(low_q + low_k, 4001.0) - 1e-9'
        ),
    ): "zeros alone have no bit below 2^4000, and their products, which are 0, fit whatever the limit",
    (
        "bounds.forward.domain",
        ("-        (forward.keys[..., 0] > 0)\n+        (forward.keys[..., -1] > 0)"),
    ): _ROWS_HAVE_ONE,
    (
        "bounds.intermediates",
        (
            "-        of_q, of_k = of_pairs @ keys.k, of_pairs.swapaxes(-1, -2) @ forward.q\n"
            "+        of_q, of_k = of_pairs @ keys.k, of_pairs.swapaxes(-1, 2) @ forward.q"
        ),
    ): _FOUR_AXES,
    (
        "judgement.oracle",
        "-SHARPNESS = 2.0**-20\n+SHARPNESS = 1.0**-20",
    ): "no float64 truth has a radius between 2^-20 and 1 unit of its dtype's last place: it is sharper, or wider",
    (
        "attention.definition",
        (
            "-    return precision + max(product, added, 0) + terms.bit_length() + 16\n"
            "+    return precision + max(product, added, 1) + terms.bit_length() + 16"
        ),
    ): "one more bit than is needed, where no score is as large as 1",
    (
        "bounds.backward.gradient_key_sums",
        ("-    return x.swapaxes(-1, -2)[:, :, keys]\n+    return x.swapaxes(-1, 2)[:, :, keys]"),
    ): _FOUR_AXES,
    (
        "judgement.measure",
        (
            "-    extra = gamma((max(one.u for one in stages), 3)) * size + max(one.eta for one in stages)\n"
            "+    extra = gamma((max(one.u for one in stages), 3)) * size - max(one.eta for one in stages)"
        ),
    ): "half a subnormal, of which the error of the log-sum-exp in base e has several",
    (
        "judgement.oracle",
        (
            "-            self._precision = int(self._precision * 1.6)\n"
            "+            self._precision = int(self._precision * 2.6)"
        ),
    ): "the oracle adds precision until its radius is small enough; in how many steps is a matter of speed",
    (
        "judgement.analysis",
        "-ORACLE_FRACTION = 2.0**-10\n+ORACLE_FRACTION = 2.0**- 9",
    ): "the radius of the truth widens what is allowed by that share of the bound at most: 0.1 % or 0.2 %",
}
