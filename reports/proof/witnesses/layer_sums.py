"""Witnesses of the sums and stores of layers: heads, rows and biases, their formats, cotangents and values.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike, but

_ROUNDED = "layer of one head, two keys, large values, delta of P, rounded, cotangents too"
_EIGHT = "layer of eight heads, two keys, tiny values, small outputs, tiny biases, in one sum, rounded"
_FIVE = "layer of five heads, one key, tiny outputs, head by head"
_TINY_ROWS = "layer of one head, five queries, biases, tiny cotangents, rounded"
_DL = "layer of four wide heads, one key, shared, dL alone, in one sum"
_HALF = "layer of one head, two keys, half, wide operands"
_LIGHT = "layer of one head, two keys, small queries, large values"
LAYER_SUMS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    (
        "output",
        "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too",
        "output",
    ): ("errors in the cast of the output of a layer",),
    ("stored_scores", _FIVE, "output"): (
        "products of heads apart",
        "stores of sums over heads",
        "stores of sums over heads, after each",
        "underflow of every store",
    ),
    ("score_accumulation", "layer of two wide heads, one key", "output"): ("one product of all heads",),
    ("stored_scores", "layer of five heads, one key, large outputs, head by head", "output"): (
        "sums of heads before the last",
        "heads in sums before the last",
    ),
    ("stored_scores", "layer of three heads, one key, large bias of the output, head by head", "output"): (
        "a bias in sums before the last",
    ),
    ("lse", "layer, dL", "dv"): ("errors of weights in the gradient of v",),
    ("operands", "layer of one head, one key, tiny queries, large keys, by LSE, rounded", "output"): (
        "what a projection makes of errors",
    ),
    ("score_accumulation", "layer of sixteen heads, one key, matrix unit, head by head", "output"): (
        "roundings of sums over heads",
        "every rounding of sums over heads",
    ),
    ("multiplicands", _HALF, "output"): (
        "the format of outputs of heads",
        "the format of values",
    ),
    (
        "several",
        "layer of two wide heads, three keys, biases, rounded, multiplicands and output",
        "doutput_projection",
    ): ("the format of outputs of heads in the gradient of W_O",),
    (
        "multiplicands",
        "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too",
        "doutput_projection",
    ): ("the format of the cotangent in the gradient of W_O",),
    ("several", "layer of one head, two queries, biases, delta of P, rounded, multiplicands and output", "output"): (
        "the format of sums over heads",
    ),
    ("several", "layer of two wide heads, four keys, large queries, biases, in one sum", "dv"): (
        "widths of heads in sums of dv",
    ),
    ("multiplicands", _HALF, "lse"): ("the format of operands",),
    ("multiplicands", _ROUNDED, "dk"): (
        "errors of cotangents in dP",
        "errors of values in dP",
        "the format of v",
        "errors of the factors of dP",
        "the format of values in dP",
    ),
    ("multiplicands", _ROUNDED, "dvalue_projection"): ("the format of v in the gradient of W_V",),
    ("multiplicands", _ROUNDED, "lse"): (
        "the format of q and k",
        "the formats of parameters",
    ),
    (
        "stored_scores",
        "layer of two heads, one key, tiny cotangents, by LSE, bias first, rounded",
        "dvalue_projection_bias",
    ): ("errors of cotangents in their sizes",),
    ("operands", _LIGHT, "dk"): (
        "errors of cotangents in delta",
        "errors of values in delta",
    ),
    ("operands", "layer of one head, one key, coarse exponentials", "output"): ("errors of values in a mean",),
    ("softmax", "layer, tiny values, tiny cotangents, kept", "output"): (
        "last roundings of an output that is projected",
    ),
    ("operands", "layer of one wide row, one key, small inputs, large biases, bias first", "output"): (
        "errors of values that are projected",
    ),
    ("score_accumulation", "layer, by LSE", "output"): ("sizes of values that are projected",),
    ("output_accumulation", "layer of one head, one key, large outputs, large cotangents", "output"): (
        "an error that all columns share, projected",
    ),
    ("lse", "layer, by LSE", "output"): ("errors of columns, projected",),
    ("gradient_accumulation", _DL, "dq"): (
        "widths of heads in sums of dq",
        "widths in sums over heads",
    ),
    ("gradient_accumulation", _DL, "dk"): (
        "sums of dk over heads",
        "widths of heads in sums of dk",
    ),
    ("gradient_accumulation", _EIGHT, "doutput_projection"): (
        "rows in sums of a parameter's gradient",
        "all rows in sums of a parameter's gradient",
    ),
    ("several", "layer of eight heads, four keys, shared, large queries, in one sum", "dvalue_projection"): (
        "heads in sums of a parameter's gradient",
    ),
    ("gradient_accumulation", _EIGHT, "dv"): (
        "heads in sums over heads",
        "underflow of sums of gradients",
        "underflow of every term of sums of gradients",
        "underflow of accumulators of gradients",
        but(1, "underflow of a product and of its addition"),
    ),
    ("partial_gradients", "layer of two heads, one key, tiny cotangents, in one sum, flushed", "doutput_projection"): (
        "underflow of stores of sums of gradients",
    ),
    ("stored_scores", "layer of one head, two queries, rounded, two pieces", "dv"): (
        "errors in the roundings of an operation",
    ),
    ("multiplicands", "layer of one head, two queries, rounded, two pieces", "lse"): ("pieces left out of a product",),
    ("score_accumulation", "rotary, tiny queries, flushed", "lse"): ("underflow of an operation",),
    ("score_accumulation", _TINY_ROWS, "doutput_projection_bias"): (
        "underflow of sums of rows",
        "underflow of every sum of rows",
        "underflow of terms that enter an accumulator",
        "underflow of every term that enters an accumulator",
    ),
    ("score_accumulation", "layer of one head, two queries, biases, cotangents rounded", "doutput_projection_bias"): (
        "terms that enter an accumulator",
    ),
    (
        "score_accumulation",
        "layer of two heads, four keys, tiny values, tiny biases, rounded",
        "dvalue_projection_bias",
    ): ("several roundings of sums of rows",),
    ("stored_scores", "layer of one head, one key, large biases, rounded first, small outputs", "output"): (
        "a bias that is rounded first",
    ),
    ("stored_scores", "layer of one head, two keys, tiny inputs, tiny biases, rounded first, head by head", "output"): (
        "underflow of a bias that is rounded first",
    ),
    ("score_accumulation", "layer, biases first", "lse"): ("roundings of sums that begin with a bias",),
}
