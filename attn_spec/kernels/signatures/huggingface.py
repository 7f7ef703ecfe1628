"""Signatures of the attention functions of Hugging Face's transformers 5.24."""

from __future__ import annotations

from types import SimpleNamespace

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import QUERY_KEY_VALUE, fixed, idle, mask_or_bias, scale
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature

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
        _MODULE,
        *QUERY_KEY_VALUE,
        mask_or_bias("attention_mask", REQUIRED),
        fixed("dropout", 0.0),
        scale("scaling"),
        fixed("is_causal", None, value=False),
        fixed("position_bias", None),
    ),
    limits=Limits(exclusive=(("mask", "bias"),), least_keys=1),
    swapped={"output": (1, 2)},
    answer=lambda result, passed: (result[0], None),
    facts=(
        _SWAPPED,
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
