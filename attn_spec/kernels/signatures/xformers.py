"""Signature of the memory-efficient attention of xFormers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.signatures.arguments import QUERY_KEY_VALUE, fixed, idle, scale
from attn_spec.kernels.signatures.signature import Argument, Fact, Given, Signature, SignatureError


def _bias() -> Argument:
    def spell(given: Given) -> Any:
        bias = given.get("bias")
        if bias is None:
            return None
        lengths = (given.length("q", "S"), given.length("k", "S"))
        return bias.expand(given.length("q", "B"), given.query_heads, *lengths)

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if type(value).__name__ == "LowerTriangularMask":
            return {"causal": True}
        if not hasattr(value, "shape"):
            raise SignatureError(f"attn-spec does not read an attn_bias of the type {type(value).__name__}")
        return {"bias": value}

    return Argument(
        name="attn_bias",
        says=("bias",),
        default=None,
        spell=spell,
        read=read,
        means="numbers [B, H, Mq, Mkv] that are added; assertions read LowerTriangularMask too",
    )


XFORMERS = Signature(
    function="xformers.ops.memory_efficient_attention",
    framework="torch",
    presentation="BSHD",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        *QUERY_KEY_VALUE,
        _bias(),
        fixed("p", 0.0),
        scale("scale"),
        idle("op"),
        fixed("output_dtype", None),
    ),
    facts=(
        Fact(
            says="tensors are [B, M, H, K]; grouped heads need five axes, and k and v of every group",
            source="xformers 0.0.35, docstring of memory_efficient_attention",
        ),
        Fact(
            says="LowerTriangularMask starts the diagonal in the top left corner",
            source="xformers 0.0.35, xformers/ops/fmha/attn_bias.py, LowerTriangularMask",
        ),
    ),
    source="xformers 0.0.35, xformers/ops/fmha/__init__.py",
)
