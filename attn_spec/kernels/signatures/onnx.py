"""Signatures of the operator Attention of ONNX, and of GroupQueryAttention of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import fixed, idle, lengths, mask_or_bias, per_head, same, scale, tensor
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError


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
    limits=Limits(exclusive=(("mask", "bias"), ("causal", "seqused_k"), ("window", "seqused_k")), positive_scale=True),
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
            says="queries and keys are each multiplied by the square root of the scale, so that it must be above 0",
            source="onnx 1.23.2, op_attention.py, _compute_attention: np.sqrt(scale)",
        ),
        Fact(
            says="a query that sees no key has the output 0",
            source="onnx 1.23.2, op_attention.py, row_all_masked",
        ),
    ),
    source="onnx 1.23.2, op_attention.py; operator Attention of opset 25",
)


_ORT = "onnxruntime 1.32.0, schema of com.microsoft GroupQueryAttention"


def _joined(name: str, own: str) -> Argument:
    """Return the parameter of a tensor [B, S, H D]; its heads are told apart once their number is read."""
    return Argument(
        name=name,
        says=(own,),
        spell=lambda given: given[own].reshape(*given[own].shape[:2], -1),
        read=lambda x: {own: x},
        means="[B, S, H D]",
    )


def _heads(name: str, own: str) -> Argument:
    """Return the parameter of a number of heads."""
    return Argument(
        name=name, spell=lambda given: getattr(given, own), read=lambda value: {own: value}, means="a number of heads"
    )


def _apart(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the arguments of a call say, with q, k and v as [B, S, H, D]. Raises :class:`SignatureError`."""
    heads = {name: found.pop(name, None) for name in ("query_heads", "kv_heads")}
    if None in heads.values():
        raise SignatureError("a call needs num_heads and kv_num_heads, which say how wide a head is")
    for own, count in (("q", heads["query_heads"]), ("k", heads["kv_heads"]), ("v", heads["kv_heads"])):
        if (x := found.get(own)) is None:
            continue
        if len(x.shape) != 3 or not count or x.shape[2] % count:
            raise SignatureError(f"{own} must have the axes [B, S, H D] of {count} heads, not {tuple(x.shape)}")
        found[own] = x.reshape(*x.shape[:2], count, -1)
    return found


def _last_positions() -> Argument:
    def spell(given: Given) -> Any:
        lengths = given["seqused_k"].reshape(-1)
        return (lengths + np.zeros(given.length("q", "B"), dtype=np.int64) - 1).astype(np.int32)

    def read(value: Any) -> Mapping[str, Any]:
        return {"seqused_k": value + 1, "seqused_q": value + 1}

    return Argument(
        name="seqlens_k",
        says=("seqused_k", "seqused_q"),
        spell=spell,
        read=read,
        means="int32 [B], the length of each sequence less 1",
    )


def _counted_window() -> Argument:
    def spell(given: Given) -> Any:
        left = (given.get("window") or (None, None))[0]
        return -1 if left is None else left + 1

    def read(value: Any) -> Mapping[str, Any]:
        return {} if value is None or value < 0 else {"window": (value - 1, None)}

    means = "keys on the left, the own one counted; -1 is unbounded"
    return Argument(name="local_window_size", says=("window",), default=-1, spell=spell, read=read, means=means)


def _with_heads(result: Any, passed: Mapping[str, Any]) -> tuple[Any, None]:
    """Return the output [B, S, H, D] of the results of a call."""
    out = result[0] if isinstance(result, tuple | list) else result
    return out.reshape(*out.shape[:2], passed["num_heads"], -1), None


#: The operator at the first call of a generation, which has no past.
ORT_GQA = Signature(
    function="com.microsoft.GroupQueryAttention",
    framework="numpy",
    presentation="BSHD",
    dtypes=("float32", "float16"),
    arguments=(
        _joined("query", "q"),
        _joined("key", "k"),
        _joined("value", "v"),
        fixed("past_key", None),
        fixed("past_value", None),
        _last_positions(),
        idle("total_sequence_length", REQUIRED, value=lambda given: given.length("q", "S")),
        fixed("cos_cache", None),
        fixed("sin_cache", None),
        fixed("position_ids", None),
        fixed("attention_bias", None),
        per_head("head_sink", "sinks"),
        fixed("k_scale", None),
        fixed("v_scale", None),
        fixed("q_norm_weight", None),
        fixed("k_norm_weight", None),
        fixed("query_seqlens", None),
        _heads("num_heads", "query_heads"),
        _heads("kv_num_heads", "kv_heads"),
        scale("scale"),
        same("softcap", default=0.0, means="0 is none"),
        Argument(
            name="causal",
            says=("causal",),
            default=True,
            spell=lambda given: given.get("causal", False),
            read=lambda value: {"causal": bool(value)},
            means="a bool; True by default",
        ),
        _counted_window(),
        fixed("do_rotary", 0),
        idle("rotary_interleaved", 0),
        fixed("smooth_softmax", -1),
        idle("qk_output", 0),
    ),
    limits=Limits(
        equal_lengths=True,
        least_keys=1,
        always=("causal", "seqused_k", "seqused_q"),
        positive_scale=True,
        head_dims=(8, 16, 32, 64, 128, 256),
    ),
    joins_heads=True,
    opened=_apart,
    answer=_with_heads,
    facts=(
        Fact(says="seqlens_k is the length of each sequence less 1", source=f"{_ORT}, input seqlens_k"),
        Fact(says="a scale of 0 is 1 / sqrt(D)", source="onnxruntime 1.32.0, run on a CPU"),
        Fact(
            says="inputs are [B, S, H D], and results are the output and the keys and values of all heads",
            source=f"{_ORT}, input query and its outputs",
        ),
        Fact(says="a call is causal, from the first key of each sequence", source="onnxruntime 1.32.0, run on a CPU"),
        Fact(
            says="the width of a head is a multiple of 8, that of values included",
            source="onnxruntime 1.32.0, run on a CPU: head_size must be a multiple of 8",
        ),
        Fact(
            says="local_window_size counts the own key: 1 is this alone",
            source="onnxruntime 1.32.0, run on a CPU with 1, 2 and 3",
        ),
        Fact(
            says="a call that has a past appends to it and returns the whole; attn-spec asks for the first call alone",
            source=f"{_ORT}, output present_key",
        ),
    ),
    source=_ORT,
)
