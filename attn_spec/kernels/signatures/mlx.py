"""Signature of the attention of MLX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import idle, per_head, scale, tensor
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError

_RUN = "mlx 0.32.4, run on a CPU"


def _mask() -> Argument:
    def spell(given: Given) -> Any:
        return "causal" if given.get("causal") else given.get("mask", given.get("bias"))

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, str):
            if value != "causal":
                raise SignatureError(f"mask must be 'causal' or an array, not {value!r}")
            return {"causal": True}
        if str(value.dtype).endswith("bool"):
            return {"mask": value}
        return {"bias": value}

    return Argument(
        name="mask",
        says=("causal", "mask", "bias"),
        default=None,
        spell=spell,
        read=read,
        means="'causal', a bool array, True = attend, or numbers that are added",
    )


MLX = Signature(
    function="mlx.core.fast.scaled_dot_product_attention",
    framework="mlx",
    presentation="BHSD",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        tensor("q"),
        tensor("k"),
        tensor("v"),
        scale("scale", REQUIRED),
        _mask(),
        per_head("sinks", "sinks"),
        idle("force_fused", False),
        idle("stream"),
    ),
    conventions={"causal_alignment": "bottom_right", "empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    limits=Limits(exclusive=(("causal", "mask"), ("causal", "bias"), ("mask", "bias"))),
    facts=(
        Fact(says="the mask 'causal' ends in the bottom right corner", source="mlx 0.32.4, docstring"),
        Fact(says="True in a bool mask attends; other numbers are added", source="mlx 0.32.4, docstring"),
        Fact(
            says="a query that sees no key has the mean of all values by 'causal' or a bool mask, and NaN by "
            "numbers of -inf",
            source=_RUN,
        ),
    ),
    source="mlx 0.32.4, docstring",
)
