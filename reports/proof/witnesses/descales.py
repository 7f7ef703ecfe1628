"""Witnesses of the roundings of descales, and of what they multiply.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike

DESCALES: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("score_accumulation", "a descale that multiplies the scale", "lse"): (
        "a descale that is rounded as it is loaded",
        "a descale's product with a score or with a constant",
    ),
    ("stored_scores", "a descale of keys", "lse"): ("the store of a score that a descale multiplies",),
    ("score_accumulation", "a descale of keys that is 8", "lse"): ("the descale of a score's error",),
    ("stored_scores", "tiny descaled queries", "lse"): ("underflows of a score that a descale multiplies",),
    ("operands", "tiny descaled queries", "lse"): (
        "underflow of an operand that a descale multiplies",
        "underflow of descaled queries",
    ),
    ("operands", "tiny descaled keys", "lse"): ("underflow of descaled keys",),
    ("score_accumulation", "descaled operands", "lse"): (
        "a descale of operands, as it is loaded",
        "the product of an operand and its descale",
    ),
    ("operands", "descaled operands", "lse"): ("the store of an operand that a descale multiplies",),
    ("score_accumulation", "tiny descaled products", "lse"): ("underflow of sums of descaled operands",),
    ("score_accumulation", "a descale of values on the operands", "output"): (
        "a descale of values as it is loaded, and its product",
    ),
    ("score_accumulation", "a descale of values that is 4, on the operands", "output"): (
        "the product of a value and a power of 2",
    ),
    ("operands", "a descale of values on the operands", "output"): ("the store of a value that a descale multiplies",),
    ("operands", "a tiny value with a descale, on the operands", "output"): (
        "underflow of a product with a descale of values",
    ),
}
