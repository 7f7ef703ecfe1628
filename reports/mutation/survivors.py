"""Mutants that no test can kill, and why: they do what the code does, or what it may do as well."""

from __future__ import annotations

_ROWS_HAVE_ONE = "the last axis of M, L and top has one element: its first is its last"
_SLACK = "2^-30 of a bound, which covers its evaluation in float64 many times over"

#: Reasons by module and change, as ``report`` prints them.
REASONS: dict[tuple[str, str], str] = {
    (
        "error.row_sum_bounds",
        (
            "-        X = X + growth((work, 4)) * (np.abs(x.M[..., 0]) + w.top[..., 0] + log_sum + X)\n"
            "+        X = X + growth((work, 4)) * (np.abs(x.M[..., -1]) + w.top[..., 0] + log_sum + X)"
        ),
    ): _ROWS_HAVE_ONE,
    (
        "error.bounds",
        (
            "-    return (X + out.u * (np.abs(o) + slack + X) + out.eta) * INFLATION\n"
            "+    return (X + out.u * (np.abs(o) + slack + X) + out.eta) / INFLATION"
        ),
    ): _SLACK,
    (
        "error.bounds",
        "-ELEMENTWISE_LIMIT = 2**19\n+ELEMENTWISE_LIMIT = 2** 18",
    ): "above the limit the same sum is bounded by its parts, to spare memory; where it lies is a matter of speed",
    (
        "judgement.oracle",
        "-        precision = int(precision * 1.6)\n+        precision = int(precision * 2.6)",
    ): "the oracle adds precision until its radius is small enough; in how many steps is a matter of speed",
    (
        "judgement.measure",
        "-ORACLE_FRACTION = 2.0**-10\n+ORACLE_FRACTION = 2.0**- 9",
    ): "the radius of the truth widens what is allowed by that share of the bound at most: 0.1 % or 0.2 %",
    (
        "error.domain",
        (
            '-        inside &= 2 * top < c.largest("probabilities", "multiplicands")\n'
            '+        inside &= 2 * top <= c.largest("probabilities", "multiplicands")'
        ),
    ): "weights may reach half the largest number of a format; a row that just does overflows no more than others",
}
