"""Witnesses of the roundings of layers: projections, their errors in scores, values, cotangents, and sums over heads.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, both, but

LAYERS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("output", "layer, results stored", "output"): ("an output that is stored before its bias is added",),
    ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "output"): (
        "errors of heads in the output of a layer",
        "errors of values",
        "errors of values carry the output",
        "values that are off",
        "underflow of an operand",
        "errors of a summand",
    ),
    ("stored_scores", "layer of one head, one key, large outputs, large cotangents", "doutput_projection"): (
        "errors of heads in the gradient of W_O",
        "errors of y in a product",
        "the store of an operation",
    ),
    ("output", "layer of one head, two keys, tiny queries, tiny keys, biases, large cotangents", "output"): (
        "the bias of the output",
        "the cast of the output of a layer",
    ),
    ("gradient_accumulation", "layer of two heads, one key, tiny keys, biases, large cotangents, head by head", "dv"): (
        "sums of dv over heads",
        "sums over heads, in any order",
    ),
    (
        "score_accumulation",
        "layer of two heads, three keys, biases, large cotangents, bias first, flushed",
        "doutput_projection_bias",
    ): ("the sum over rows of dO",),
    ("output", "layer of one head, one key, large inputs, tiny values, delta of P", "output"): (
        "underflow of the output of a layer",
    ),
    ("operands", "layer of one head, one key", "output"): ("the outputs of heads are operands",),
    ("several", "layer of one head, two keys, tiny keys, rounded, cotangents too", "dv"): (
        "the format of the cotangent of a layer",
        "errors in the cast of an operand",
    ),
    ("operands", "layer of one head, one key", "dv"): (
        "errors of cotangents of heads",
        "the store of cotangents of heads",
        "the store of the gradient of a value",
        "errors of cotangents in dv",
        "the cast of an operand",
        "errors of x in a product",
    ),
    ("scores", "cosine of a vector with itself", "lse"): (
        "what errors of a vector have in common",
        "what errors of a query have in common",
        "what errors of a key have in common",
    ),
    ("stored_scores", "cosine of a right angle", "lse"): (
        "errors of each number of a vector",
        "errors of each number of a key",
        "errors of each number of a query",
        "gamma in the errors of each number of a vector",
    ),
    ("operands", "layer of one head, one key", "lse"): (
        "errors of keys in a score",
        "errors of queries in a score",
        "errors of both operands, multiplied",
        "errors of queries",
        "errors of keys",
        "errors of both operands of a score",
    ),
    ("operands", "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P", "dk"): (
        "the store of the gradient of an operand",
    ),
    ("multiplicands", "layer of one head, one key, tiny queries, large keys, by LSE, rounded", "doutput_projection"): (
        "values that are off, by LSE",
        "underflow of y on entry",
    ),
    ("score_accumulation", "layer of four heads, one key, tiny cotangents", "lse"): (
        "roundings make errors of operands grow",
    ),
    ("operands", "layer of one head, one key", "dk"): ("errors of dS in the gradient of an operand",),
    ("several", "layer of two heads, three keys, dL, gradient accumulation and partial gradients", "dq"): (
        "sums of dq over heads",
    ),
    ("stored_scores", "layer of two heads, three keys, tiny keys, normalized weights, flushed", "dquery_projection"): (
        "errors of the other operand",
    ),
    (
        "gradient_accumulation",
        "layer of three heads, one key, small keys, biases, dL, bias first",
        "dvalue_projection_bias",
    ): ("sums of a parameter's gradient",),
    ("several", "cosine of many columns, divided first", "dq"): ("a quotient before what is linear in it",),
    ("operands", "cosine of a right angle", "lse"): ("the cast of an operand with a part in common",),
    ("operands", "rotary, results stored", "lse"): ("a result that is stored before it goes on",),
    ("rotary_tables", "rotary, one pair", "lse"): (
        "the store of a table",
        "the size of a cosine",
    ),
    ("score_accumulation", "cosine of a vector with itself", "lse"): ("the error of a norm, common to a vector",),
    ("score_accumulation", "cosine of a right angle", "lse"): (
        "the rounding of each number of a vector",
        "the errors of factors of a vector",
    ),
    ("score_accumulation", "layer of one head, two keys, tiny inputs, biases", "dvalue_projection_bias"): (
        "sums of a product",
        "roundings of a product",
        "sums of rows",
    ),
    ("score_accumulation", "layer, by LSE", "lse"): ("the roundings of an operation",),
    ("score_accumulation", "layer of one head, two keys, tiny inputs, biases", "dvalue_projection"): (
        "underflow of a product",
        "underflow of sums of a product",
        but(1, "several underflows of sums of a product"),
        "underflow of every sum of a product",
    ),
    ("several", "layer of two heads, three keys, small values, rounded, multiplicands and output", "output"): (
        "entry of x to a product",
        "entry of y to a product",
    ),
    (
        "stored_scores",
        "layer of two heads, three keys, tiny inputs, small queries, large cotangents, flushed",
        "dkey_projection",
    ): ("underflow of the store of an operation",),
    ("score_accumulation", "layer of two heads, three keys, biases, tiny cotangents, bias first, rounded", "lse"): (
        "sums that begin with a bias",
    ),
    ("multiplicands", "layer of one head, three keys, tiny keys, tiny cotangents", "dvalue_projection"): (
        "underflow of x on entry",
    ),
    ("multiplicands", "layer of one head, one key, wide heads, delta of P", "dvalue_projection"): (
        both("entry of x to a product", "entry of y to a product"),
    ),
}
