"""Signatures of the attention functions of Hugging Face's transformers 5.24."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import QUERY_KEY_VALUE, fixed, idle, mask_or_bias, scale
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError

_SWAPPED = Fact(
    says="inputs are [B, H, S, D], and the output is [B, S, H, D]",
    source="transformers 5.24, both functions: attn_output.transpose(1, 2)",
)


def _module(given: Given) -> SimpleNamespace:
    """Return what the functions read of a module of a model."""
    return SimpleNamespace(
        num_key_value_groups=given.query_heads // given.kv_heads, training=False, is_causal=False, layer_idx=0
    )


_MODULE: Argument = idle("module", REQUIRED, value=_module)


def _causality_of(module: Any) -> dict[str, bool]:
    """Return what a module says of causality, where a call leaves is_causal to it."""
    return {"causal": True} if getattr(module, "is_causal", True) else {}


def _is_causal(value: bool | None) -> dict[str, bool]:
    """Return what is_causal says; None leaves it to the module. Raises :class:`SignatureError` for True."""
    if value:
        raise SignatureError("attn-spec judges no call with this is_causal; it must be None or False")
    return {} if value is None else {"causal": False}


def _causal_where_it_acts(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a call says without causality where it has no effect: beside a mask, and for a single query."""
    idle_here = "mask" in found or "bias" in found or ("q" in found and found["q"].shape[2] < 2)
    return {name: x for name, x in found.items() if name != "causal"} if idle_here else found


HF_EAGER = Signature(
    function="transformers.models.llama.modeling_llama.eager_attention_forward",
    framework="torch",
    presentation="BHSD",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        _MODULE,
        *QUERY_KEY_VALUE,
        mask_or_bias("attention_mask", REQUIRED, takes=("bias",)),
        scale("scaling", REQUIRED),
        fixed("dropout", 0.0),
    ),
    conventions={"empty_row": "nan"},
    limits=Limits(least_keys=1),
    swapped={"output": (1, 2)},
    answer=lambda result, passed: (result[0], None),
    ignores_others=True,
    facts=(
        _SWAPPED,
        Fact(
            says="further keyword arguments, such as position_ids, are taken and change no answer",
            source="transformers 5.24, modeling_llama.py, eager_attention_forward: **kwargs",
        ),
        Fact(
            says="a query whose keys all have -inf in attention_mask gives NaN; those of transformers are finite",
            source="torch 2.13, run: softmax of -inf alone",
        ),
        Fact(
            says="without any key the output is 0, and not NaN as for keys that are all masked, so that attn-spec asks "
            "for one",
            source="torch 2.13, run: a product over no keys",
        ),
        Fact(
            says="attention_mask is added to the scores; None adds nothing",
            source="transformers 5.24, modeling_llama.py: attn_weights + attention_mask",
        ),
    ),
    source="transformers 5.24, modeling_llama.py, eager_attention_forward",
)

HF_SDPA = Signature(
    function="transformers.integrations.sdpa_attention.sdpa_attention_forward",
    framework="torch",
    presentation="BHSD",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        replace(_MODULE, read=_causality_of),
        *QUERY_KEY_VALUE,
        mask_or_bias("attention_mask", REQUIRED),
        fixed("dropout", 0.0),
        scale("scaling"),
        replace(fixed("is_causal", None, value=False), read=_is_causal),
        fixed("position_bias", None),
    ),
    limits=Limits(exclusive=(("mask", "bias"),), least_keys=1),
    swapped={"output": (1, 2)},
    answer=lambda result, passed: (result[0], None),
    opened=_causal_where_it_acts,
    facts=(
        _SWAPPED,
        Fact(
            says="a module with is_causal makes a call without a mask and with several queries causal, unless the call "
            "says is_causal",
            source="transformers 5.24, sdpa_attention.py: getattr(module, 'is_causal', True)",
        ),
        Fact(
            says="tensors without queries and keys cannot be reshaped for groups of heads, so that attn-spec asks "
            "for a key",
            source="transformers 5.24, run: repeat_kv",
        ),
        Fact(
            says="is_causal is no option here: it has no effect on a single query, whatever the number of keys",
            source="transformers 5.24, sdpa_attention.py: q_length > 1 and attention_mask is None and is_causal",
        ),
    ),
    source="transformers 5.24, sdpa_attention.py",
)
