"""ONNX Runtime: models of one operator on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from attn_spec import kernel

_INPUTS = ("query", "key", "value", "", "", "seqlens_k", "total_sequence_length", "", "", "", "", "head_sink")


@lru_cache(maxsize=256)
def _session(attributes: tuple[tuple[str, Any], ...], with_sinks: bool) -> Any:
    """Return a session of the operator with these attributes."""
    names = _INPUTS if with_sinks else _INPUTS[:7]
    dtypes = {name: TensorProto.FLOAT for name in names if name}
    dtypes |= {"seqlens_k": TensorProto.INT32, "total_sequence_length": TensorProto.INT32}
    ranks = {"query": 3, "key": 3, "value": 3, "seqlens_k": 1, "total_sequence_length": 1, "head_sink": 1}
    outputs = ["output", "present_key", "present_value"]
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **dict(attributes))
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, dtype, [None] * ranks[name]) for name, dtype in dtypes.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@kernel(signature="ort_gqa", dtypes=("float32",), contract="fused", supports=("gqa",))
def group_query_attention(  # noqa: PLR0917 -- the operator's inputs
    query: Any,
    key: Any,
    value: Any,
    seqlens_k: Any,
    total_sequence_length: int,
    num_heads: int,
    kv_num_heads: int,
    head_sink: Any = None,
    scale: float | None = None,
    softcap: float = 0.0,
    local_window_size: int = -1,
) -> Any:
    """Run GroupQueryAttention as at the first call of a generation."""
    said = {"num_heads": num_heads, "kv_num_heads": kv_num_heads, "softcap": softcap}
    said |= {"local_window_size": local_window_size} | ({} if scale is None else {"scale": float(scale)})
    given = {"query": query, "key": key, "value": value, "seqlens_k": seqlens_k}
    given["total_sequence_length"] = np.array([total_sequence_length], np.int32)
    given |= {} if head_sink is None else {"head_sink": head_sink}
    return _session(tuple(said.items()), head_sink is not None).run(None, given)[0]
