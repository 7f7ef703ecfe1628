"""Witnesses of the roundings of gradients of linear attention.

Terms by the attack that exceeds a bound without them: stage, way and quantity.
"""

from __future__ import annotations

from .strikes import Strike

LINEAR_GRADIENTS: dict[tuple[str, str, str], tuple[Strike, ...]] = {
    ("weight_gradients", "linear gradients of three keys, delta of P", "dk"): ("sums of P dP in linear delta",),
    ("stored_scores", "linear gradients of large sum of small values, delta of P, a quotient", "dq"): (
        "underflow of linear delta over N",
        "underflow of products of dP and w in linear delta",
    ),
    ("softmax", "linear gradients of large sum of large values, delta of P, a quotient", "dq"): (
        "underflow of quotients of w in linear delta",
    ),
    ("operands", "linear gradients of tiny keys", "dv"): ("errors of features in dv",),
    ("weight_gradients", "linear gradients of tiny queries, tiny cotangents, flushed", "dq"): (
        "underflow of stores in linear dq",
    ),
    ("weight_gradients", "linear gradients of small sum", "dk"): ("the store of linear dP",),
    ("weight_gradients", "linear gradients of small sum, tiny cotangents, flushed", "dk"): (
        "underflow of linear dP that is stored",
    ),
    ("lse", "linear gradients of two keys, dL alone", "dq"): ("dL in linear dw",),
    ("score_accumulation", "linear gradients of many keys, delta of P", "dq"): (
        "sums of linear delta over keys",
        "linear delta in its sums over keys",
    ),
    ("lse", "linear gradients of light key, delta of P", "dk"): (
        "errors of P in linear delta",
        "delta in linear dw",
        "dP in linear dw",
        "the error of dw in linear dk",
    ),
    ("output", "linear gradients of tiny values", "dq"): ("the error of o in linear dw",),
    ("lse", "linear gradients of tiny queries, dL alone", "dq"): (
        "the error of 1 / N in dw",
        "the largest 1 / N in dw",
        "the error of dw in linear dq",
    ),
    ("lse", "linear gradients of tiny keys", "dv"): (
        "the error of 1 / N in dv",
        "the largest 1 / N in dv",
        "1 / N as exp(-LSE)",
        "the LSE in 1 / N",
        "the error of P in linear dv",
    ),
    ("gradients", "linear gradients of two keys, error of exp", "dv"): ("the exponential of -LSE",),
    ("score_accumulation", "linear gradients of one key", "dv"): (
        "sums over columns of the linear backward pass",
        "sums over columns in the format of scores",
    ),
    ("partial_gradients", "linear gradients of small sum", "dv"): (
        "sums over rows of the linear backward pass",
        "sums over rows in the format of gradients",
        "roundings in linear dv",
    ),
    ("score_gradients", "linear gradients of small sum", "dq"): (
        "casts of the linear backward pass",
        "the cast of dw",
        "stores of the linear backward pass",
        "roundings in linear dq",
    ),
    ("stored_scores", "linear gradients of two keys", "dv"): ("the store of linear weights and of dw",),
    ("score_accumulation", "linear gradients of two keys, tiny cotangents, flushed", "dk"): (
        "underflow in the format of scores in the linear backward pass",
    ),
    ("gradient_accumulation", "linear gradients of large queries, tiny cotangents, flushed", "dq"): (
        "underflow in the format of gradients in the linear backward pass",
    ),
    ("gradient_accumulation", "linear gradients of tiny queries, tiny cotangents, flushed", "dq"): (
        "underflow of linear sums over columns",
        "underflow of sums over columns in linear dq",
        "underflow that 1 / N multiplies in linear dq",
    ),
    ("stored_scores", "linear gradients of light key, tiny cotangents, flushed", "dk"): (
        "underflow of what the linear backward pass stores",
        "underflow of linear weights and of dw that are stored",
        "all underflow in linear dk",
    ),
    ("softmax", "linear gradients of light key, flushed", "dv"): (
        "underflow of products with 1 / N",
        "underflow of stores in linear dv",
        "underflow that 1 / N does not multiply in linear dv",
    ),
    ("score_gradients", "linear gradients of light key, tiny cotangents", "dk"): ("underflow of the cast of dw",),
    ("probabilities", "linear gradients of light key, flushed", "dv"): ("underflow of the cast of P in linear dv",),
    ("partial_gradients", "linear gradients of exponentials, tiny cotangents, flushed", "dq"): (
        "underflow of sums over rows in linear dq",
    ),
    ("operands", "linear gradients of exponentials, dL alone", "dq"): ("errors of features in linear dq",),
    ("stored_scores", "linear gradients of large queries, tiny cotangents, flushed", "dq"): (
        "all underflow in linear dq",
    ),
    ("gradient_accumulation", "linear gradients of tiny keys, tiny cotangents, flushed", "dk"): (
        "underflow of sums over columns and stores in linear dk",
        "underflow of what 1 / N has multiplied in linear dk",
    ),
    ("operands", "linear gradients of exponentials, dL alone", "dk"): ("errors of features in linear dk",),
    ("score_gradients", "linear gradients of tiny values, dL alone", "dk"): ("roundings in linear dk",),
    ("stored_scores", "linear gradients of tiny queries, tiny cotangents", "dv"): (
        "underflow that 1 / N multiplies in linear dv",
    ),
    ("partial_gradients", "linear gradients of two keys, tiny cotangents, flushed", "dv"): (
        "underflow of sums over rows in linear dv",
        "all underflow in linear dv",
    ),
    ("gradients", "linear gradients of small sum", "dq"): ("the cast of linear gradients",),
    ("gradients", "linear gradients of two keys, tiny cotangents, flushed", "dv"): (
        "underflow of the cast of linear gradients",
    ),
}
