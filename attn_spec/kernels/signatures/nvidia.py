"""Signatures of TransformerEngine's attention module, and of the attention of cuDNN's front end for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    QUERY_KEY_VALUE,
    asks_lse,
    fixed,
    idle,
    left_window,
    lengths,
    per_head,
    same,
    scale,
    tensor,
)
from attn_spec.kernels.signatures.signature import Argument, Fact, Given, Signature, SignatureError

_TE = "transformer-engine 2.20.2, dot_product_attention.py, DotProductAttention"
_CUDNN = "nvidia-cudnn-frontend 1.32.0, cudnn/sdpa/fwd/torch_op.py"
#: Masks of TransformerEngine that attn-spec reads, with what they say.
_MASKS = {
    "padding": {},
    "padding_causal": {"causal": True, "causal_alignment": "top_left"},
    "padding_causal_bottom_right": {"causal": True, "causal_alignment": "bottom_right"},
}


def _mask_type() -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        if value not in _MASKS:
            raise SignatureError(f"attn-spec reads attn_mask_type as one of {', '.join(_MASKS)}, not {value!r}")
        return _MASKS[value]

    return Argument(
        name="attn_mask_type",
        says=("causal",),
        default=None,
        spell=lambda given: "padding_causal_bottom_right" if given.get("causal") else "padding",
        read=read,
        means="padding, padding_causal or padding_causal_bottom_right in every call",
    )


def _format() -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        if value != "thd":
            raise SignatureError(f"attn-spec reads calls of qkv_format='thd', not of {value!r}")
        return {}

    return Argument(name="qkv_format", default=None, spell=lambda given: "thd", read=read, means="'thd' in every call")


def _two_sides() -> Argument:
    def spell(given: Given) -> Any:
        longest = max(int(given[f"max_seqlen_{side}"]) for side in "qk")
        sides = given.get("window")
        if sides is None:
            return None
        left, right = (longest if side is None else side for side in sides)
        return (left, 0) if given.get("causal") else (left, right)

    def read(value: Any) -> Mapping[str, Any]:
        found = (None, None) if value is None else tuple(None if side == -1 else side for side in value)
        return {} if found == (None, None) else {"window": found}

    means = "(left, right), both inclusive, both bounded or both -1; right is 0 of a causal mask"
    return Argument(name="window_size", says=("window",), default=None, spell=spell, read=read, means=means)


def _with_heads(result: Any, passed: Mapping[str, Any]) -> tuple[Any, None]:
    """Return the output [T, H, D] of the result [T, H D] of a call."""
    tokens, heads, _ = passed["query_layer"].shape
    return result.reshape(tokens, heads, -1), None


#: Parameters of the method; those of a single backend, and of its callbacks, are left out.
_FORWARD = (
    same("query_layer", "q", default=None),
    same("key_layer", "k", default=None),
    same("value_layer", "v", default=None),
    fixed("attention_mask", None),
    _format(),
    same("cu_seqlens_q", default=None),
    same("cu_seqlens_kv", "cu_seqlens_k", default=None),
    same("cu_seqlens_q_padded", default=None),
    same("cu_seqlens_kv_padded", "cu_seqlens_k_padded", default=None),
    same("max_seqlen_q", default=None),
    same("max_seqlen_kv", "max_seqlen_k", default=None),
    _mask_type(),
    _two_sides(),
    fixed("bottom_right_diagonal", None),
    same("softcap", default=None, means="None or 0 is none"),
    idle("checkpoint_core_attention", False),
    fixed("core_attention_bias_type", "no_bias"),
    fixed("core_attention_bias", None),
    fixed("alibi_slopes", None),
    idle("fast_zero_fill", True),
    fixed("inference_params", None),
    idle("pad_between_seqs"),
    fixed("fp8_output", False),
    idle("num_splits", 1),
    fixed("score_mod", None),
    fixed("qkv_layer", None),
    fixed("kv_layer", None),
    fixed("thd_attention_policies", None),
)
TE = Signature(
    function="transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention.DotProductAttention",
    methods=("forward",),
    framework="torch",
    presentation="THD_gaps",
    dtypes=("float16", "bfloat16"),
    arguments=tuple(replace(one, of="forward") for one in _FORWARD),
    conventions={"causal_alignment": "bottom_right"},
    limits=Limits(keys_reach_queries=True),
    joins_heads=True,
    answer=_with_heads,
    facts=(
        Fact(says="the output is [tokens, heads times dimension]", source=f"{_TE}.forward"),
        Fact(
            says="attn_mask_type names the corner: padding_causal starts top left, with bottom_right it ends there",
            source=f"{_TE}.forward, docstring",
        ),
        Fact(
            says="cu_seqlens count queries and keys without gaps, cu_seqlens_padded say where each sequence begins",
            source=f"{_TE}.forward, docstring",
        ),
        Fact(
            says="window_size of a causal mask has 0 on the right, of another one two bounds or none",
            source="transformer-engine 2.20.2, dot_product_attention/utils.py, check_set_window_size",
        ),
        Fact(
            says="the module fixes the numbers of heads, their width and the scale, so that a function of this "
            "signature makes a module for each",
            source=f"{_TE}.__init__",
        ),
    ),
    source=f"{_TE}.forward",
)


def _corner() -> Argument:
    def spell(given: Given) -> bool:
        return bool(given.get("causal")) or any(side is not None for side in given.get("window") or ())

    return Argument(
        name="causal_bottom_right",
        default=False,
        spell=spell,
        read=lambda value: {"causal_alignment": "bottom_right" if value else "top_left"},
        means="True if the diagonal ends in the bottom right corner, as in every causal call or call with a window",
    )


def _right_window() -> Argument:
    def spell(given: Given) -> int:
        right = (given.get("window") or (None, None))[1]
        return -1 if right is None or given.get("causal") else right

    def read(value: Any) -> Mapping[str, Any]:
        return {} if value is None or value < 0 else {"window": (None, value)}

    return Argument(
        name="window_right", says=("window",), default=-1, spell=spell, read=read, means="inclusive, -1 is unbounded"
    )


def _both_lengths(name: str, own: str, side: str) -> Argument:
    """Return the parameter of lengths of one side, which are passed for both sides or for none."""
    plain = lengths(name, own)

    def spell(given: Given) -> Any:
        if given.get("seqused_q") is None and given.get("seqused_k") is None:
            return None
        found = plain.spell(given)
        return (
            found
            if found is not None
            else given["q"].new_full((given.length("q", "B"),), given.length(side, "S")).int()
        )

    return Argument(
        name=name, says=(own,), default=None, spell=spell, read=plain.read, means="int32 [B], of both sides or of none"
    )


def _last_axis(result: Any, passed: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the output and the log-sum-exp, without its last axis of length 1."""
    return (result[0], result[1][..., 0]) if passed["return_lse"] else (result, None)


_BANDS = (
    same("is_causal", "causal", False),
    _corner(),
    left_window("window_left", inclusive=False),
    _right_window(),
    per_head("sinks", "sinks"),
)
_FACTS = (
    Fact(
        says="window_left counts the own key: it is the left bound of cuDNN's band, which must be above 0",
        source=f"{_CUDNN}, _build_graph; cudnn/sdpa/graph_analyzer.py: window_left = left_bound - 1",
    ),
    Fact(
        says="causal_bottom_right moves the corner of a causal call, or of one with a window, and is refused in others",
        source=f"{_CUDNN}, _sdpa_fwd_impl",
    ),
)
_OF_CUDNN: dict[str, Any] = {
    "function": "cudnn.sdpa.fwd.torch_op.sdpa",
    "framework": "torch",
    "dtypes": ("float16", "bfloat16"),
    "option_dtypes": {"sinks": "float32"},
    "conventions": {"causal_alignment": "bottom_right"},
    "limits": Limits(keys_reach_queries=True, least_keys=1),
    "answer": _last_axis,
    "source": f"{_CUDNN}, sdpa, which cudnn.sdpa_torch is",
}

CUDNN = Signature(
    presentation="BHSD",
    arguments=(
        *QUERY_KEY_VALUE,
        scale("scale"),
        *_BANDS,
        _both_lengths("seq_len_q", "seqused_q", "q"),
        _both_lengths("seq_len_kv", "seqused_k", "k"),
        fixed("cu_seqlens_q", None),
        fixed("cu_seqlens_kv", None),
        idle("max_seqlen_q", 0),
        idle("max_seqlen_kv", 0),
        asks_lse("return_lse"),
    ),
    facts=(*_FACTS, Fact(says="the log-sum-exp is [B, H, S, 1], float32", source=f"{_CUDNN}, _sdpa_fwd_impl")),
    **_OF_CUDNN,
)
CUDNN_VARLEN = Signature(
    presentation="THD",
    arguments=(
        tensor("query", "q"),
        tensor("key", "k"),
        tensor("value", "v"),
        scale("scale"),
        *_BANDS,
        fixed("seq_len_q", None),
        fixed("seq_len_kv", None),
        same("cu_seqlens_q", default=None),
        same("cu_seqlens_kv", "cu_seqlens_k", default=None),
        same("max_seqlen_q", default=0),
        same("max_seqlen_kv", "max_seqlen_k", default=0),
        asks_lse("return_lse"),
    ),
    swapped={"lse": (0, 1)},
    facts=(*_FACTS, Fact(says="the log-sum-exp is [T, H, 1], float32", source=f"{_CUDNN}, _sdpa_fwd_impl")),
    **_OF_CUDNN,
)
