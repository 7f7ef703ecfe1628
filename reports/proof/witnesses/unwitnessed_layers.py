"""Terms of the theorems of layers without a witness, by the reason."""

from __future__ import annotations

from .strikes import Strike

LAYERS: dict[str, tuple[Strike, ...]] = {
    "a product of two errors, which the room of the first-order terms hides at the precision of float16": (
        "errors of products of heads in sums before the last",
        "what errors of q and k have in common, multiplied",
        "what errors have in common makes each number's grow",
        "errors of each number of q and k, multiplied",
        "errors of values in their sizes",
        "errors of both in dP",
        "errors of cotangents in the size of delta",
        "errors of cotangents and outputs in delta",
        "errors of values around delta",
        "errors of values in their sizes in dP",
        "errors of the other operand in sizes",
        "errors of the other operand in underflow",
        "errors of the other operand in early underflow",
        "errors in sums of gradients",
        "roundings make underflow of sums of gradients grow",
        "the errors of a norm and of its inverse, multiplied",
        "the errors of what is divided first, multiplied",
        "errors of a cosine in its rounding",
        "roundings make underflow of a cosine grow",
        "errors in the rounding of each number of a vector",
        "roundings make underflow of each number of a vector grow",
        "errors of x and y, multiplied",
        "errors in roundings of a product",
        "roundings make underflow of a product grow",
        "underflow of x and y on entry",
        "errors in underflow of y on entry",
        "errors in underflow of x on entry",
        "roundings make underflow of an operation grow",
        "errors in sums of rows",
        "roundings make underflow of sums of rows grow",
        "errors of a bias in roundings of sums that begin with it",
        "roundings make underflow of a bias grow",
        "errors of what enters an accumulator",
        "errors of values, times those of weights",
        "errors of values in how dP lies around delta",
        "the error of delta in how dP lies around it",
        "errors of values in roundings of the output",
        "errors of values in the size of the output",
        "errors of values in the output that an LSE multiplies",
        "errors of values in the output, by LSE",
        "an output that values carry",
        "errors of values in how they lie around the output",
    ),
    "covers the evaluation of a bound in float64, whose errors are too small to be seen beside any rounding attacked": (
        "the evaluation of errors of weights in the gradient of v",
        "the evaluation of the output of a layer",
    ),
    "a subnormal beside other absolute terms of the same stage, which leave more of their room unused than it takes": (
        "underflow of a cosine",
        "underflow of the inverse of a norm",
        "underflow of each number of a vector",
        "underflow of every operation",
    ),
    "no emulated kernel does what this allows, a norm whose inverse is rounded and inverted once more": (
        "the rounding of an inverse, common to a vector",
        "the inverse of a norm, common to a vector",
    ),
    "the same as of the quotient afterwards, whose error the larger of the two has in any case": (
        "the error of a norm that divides first",
    ),
    "no emulated kernel does what this allows: a quotient of a sum whose terms are divided one by one": (
        "terms that are divided one by one",
    ),
    (
        "counts where the weights of a row may be anything, and no attack of first order moves all of a row's "
        "weight to its largest value"
    ): ("errors of values in their range",),
}
