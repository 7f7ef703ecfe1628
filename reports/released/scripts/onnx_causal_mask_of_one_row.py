# /// script
# dependencies = ["onnx==1.23.2"]
# ///
"""onnx 1.23.2: the reference of the operator Attention, with is_causal beside a mask of one row, sees future keys.

The operator says that a mask is broadcast to [B, H, Sq, Sk], so that one row is the same as equal rows. Exit status 3:
the two differ.
"""

import sys

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

SHAPES = {"Q": (1, 1, 2, 1), "K": (1, 1, 2, 1), "V": (1, 1, 2, 1)}
node = helper.make_node("Attention", [*SHAPES, "attn_mask"], ["Y"], is_causal=1)
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
inputs.append(helper.make_tensor_value_info("attn_mask", TensorProto.BOOL, None))
outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
model = helper.make_model(
    helper.make_graph([node], "attention", inputs, outputs), opset_imports=[helper.make_opsetid("", 23)]
)
reference = ReferenceEvaluator(model)

zeros, v = np.zeros((1, 1, 2, 1), np.float32), np.array([1.0, 3.0], np.float32).reshape(1, 1, 2, 1)
given = {"Q": zeros, "K": zeros, "V": v}
(one_row,) = reference.run(None, {**given, "attn_mask": np.ones((1, 2), bool)})
(rows,) = reference.run(None, {**given, "attn_mask": np.ones((2, 2), bool)})
print("causal, under a mask of True of one row:", one_row.ravel())
print("causal, under a mask of True of two rows:", rows.ravel())
sys.exit(0 if np.allclose(one_row, rows) else 3)
