"""Signature of the operator Attention of ONNX, as its reference evaluator computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import fixed, idle, lengths, mask_or_bias, same, scale, tensor
from attn_spec.kernels.signatures.signature import Argument, Fact, Given, Signature


def _side(name: str, place: int) -> Argument:
    """Return the parameter of one length of a window."""

    def spell(given: Given) -> Any:
        return (given.get("window") or (None, None))[place]

    def read(value: Any) -> Mapping[str, Any]:
        if value is None or value == -1:
            return {}
        return {"window": (value, None) if place == 0 else (None, value)}

    return Argument(name=name, says=("window",), default=None, spell=spell, read=read, means="-1 or None is unbounded")


ONNX_ATTENTION = Signature(
    function="onnx.reference.ops.op_attention._compute_attention",
    framework="numpy",
    presentation="BHSD",
    dtypes=("float64", "float32", "float16"),
    arguments=(
        tensor("Q", "q"),
        tensor("K", "k"),
        tensor("V", "v"),
        mask_or_bias("attn_mask", broadcasts=False),
        fixed("past_key", None),
        fixed("past_value", None),
        lengths("nonpad_kv_seqlen", "seqused_k"),
        scale("scale"),
        same("is_causal", "causal", False),
        fixed("q_num_heads", None),
        fixed("kv_num_heads", None),
        fixed("softmax_precision", None),
        same("softcap", default=None),
        fixed("qk_matmul_output_mode", None, 0),
        _side("left_window_size", 0),
        _side("right_window_size", 1),
        idle("_validate_attention25", True),
    ),
    limits=Limits(exclusive=(("mask", "bias"), ("causal", "seqused_k"), ("window", "seqused_k"))),
    answer=lambda result, passed: (result[0], None),
    facts=(
        Fact(
            says="True in a bool attn_mask attends; softcap comes before attn_mask",
            source="onnx 1.23.2, op_attention.py, _compute_attention",
        ),
        Fact(
            says="an attn_mask of fewer keys is padded with masked ones, and one of a single key is not broadcast",
            source="onnx 1.23.2, op_attention.py, _compute_attention: np.pad",
        ),
        Fact(
            says="the diagonal starts in the top left corner, but beside nonpad_kv_seqlen it ends in the bottom right "
            "one of each sequence, so that attn-spec asks for either alone",
            source="onnx 1.23.2, op_attention.py, _apply_causal",
        ),
        Fact(
            says="a query that sees no key has the output 0",
            source="onnx 1.23.2, op_attention.py, row_all_masked",
        ),
    ),
    source="onnx 1.23.2, op_attention.py; operator Attention of opset 25",
)
