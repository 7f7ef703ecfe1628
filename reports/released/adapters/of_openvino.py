"""OpenVINO: a model of one operator ScaledDotProductAttention, compiled for the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from attn_spec import kernel


@lru_cache(maxsize=64)
def _compiled(causal: bool, with_bias: bool) -> Any:
    """Return the model of the operator for tensors of any shape."""
    inputs = [opset13.parameter([-1, -1, -1, -1], ov.Type.f32) for _ in range(4 if with_bias else 3)]
    model = ov.Model([opset13.scaled_dot_product_attention(*inputs, causal=causal)], inputs)
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


@kernel(
    framework="numpy",
    dtypes=("float32",),
    contract="fused",
    supports=("causal", "bias", "cross", "dv"),
    conventions={"empty_row_by_bias": "nan"},
    exclusive=(("causal", "bias"),),
    least_keys=1,
    signatures=4,
)
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, bias: Any = None) -> Any:
    """Run the model."""
    given = (q, k, v) if bias is None else (q, k, v, np.broadcast_to(bias, (*q.shape[:3], k.shape[2])))
    return _compiled(causal, bias is not None)(given)[0]
