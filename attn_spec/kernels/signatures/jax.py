"""Signature of the attention of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import QUERY_KEY_VALUE, asks_lse, idle, lengths, same, says, scale
from attn_spec.kernels.signatures.signature import Argument, Fact, Given, Signature


def _window() -> Argument:
    def spell(given: Given) -> Any:
        longest = max(given.length("q", "S"), given.length("k", "S"))
        sides = given.get("window")
        return None if sides is None else tuple(longest if side is None else side for side in sides)

    def read(value: Any) -> Mapping[str, Any]:
        return says("window")((value, value) if isinstance(value, int) else value)

    means = "(left, right), both inclusive and bounded, or one number for both"
    return Argument(name="local_window_size", says=("window",), default=None, spell=spell, read=read, means=means)


JAX = Signature(
    function="jax.nn.dot_product_attention",
    framework="jax",
    presentation="BSHD",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        *QUERY_KEY_VALUE,
        same("bias", "bias", None),
        same("mask", "mask", None),
        scale("scale"),
        same("is_causal", "causal", False),
        lengths("query_seq_lengths", "seqused_q"),
        lengths("key_value_seq_lengths", "seqused_k"),
        _window(),
        idle("implementation"),
        asks_lse("return_residual"),
    ),
    conventions={
        "empty_row": "mean_of_v",
        "empty_row_by_bias": "nan",
        "empty_lse": "undeclared",
        "unused_rows": "zero",
    },
    limits=Limits(least_keys=1),
    swapped={"lse": (1, 2)},
    facts=(
        Fact(
            says="True in mask attends; is_causal and local_window_size count from the top left corner",
            source="jax 0.10.2, docstring; jax/_src/nn/functions.py, _get_causal_mask and _get_window_mask",
        ),
        Fact(
            says="a masked key has a large negative score, so that a query that sees no key has the mean of all values",
            source="jax 0.10.2, jax/_src/nn/functions.py, _apply_masks",
        ),
        Fact(
            says="a query whose keys all have a bias of -inf has the output NaN",
            source="jax 0.10.2, jax/_src/nn/functions.py, _dot_product_attention_core: logits + bias",
        ),
        Fact(
            says="a sequence without keys has the mean of what lies behind it, so that none is asked for",
            source="jax 0.10.2, run with key_value_seq_lengths of 0",
        ),
        Fact(
            says="output rows behind query_seq_lengths are 0",
            source="jax 0.10.2, jax/_src/nn/functions.py, _get_padding_mask_encoded",
        ),
        Fact(
            says="the log-sum-exp is [B, S, H], in the dtype of the keys, and carries no gradient",
            source="jax 0.10.2, jax/_src/nn/functions.py, _dot_product_attention_core",
        ),
    ),
    source="jax 0.10.2, docstring",
)
