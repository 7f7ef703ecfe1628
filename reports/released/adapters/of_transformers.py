"""Transformers: the attention functions of models, and of continuous batching."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers.integrations.eager_paged import eager_paged_attention_forward
from transformers.models.bert.modeling_bert import eager_attention_forward as of_bert
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as of_gemma2
from transformers.models.gpt2.modeling_gpt2 import eager_attention_forward as of_gpt2
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as of_gpt_oss

from attn_spec import kernel

gpt2 = kernel(signature="hf", dtypes=("float32", "float16", "bfloat16"), contract="eager")(of_gpt2)
bert = kernel(signature="hf", dtypes=("float32", "float16", "bfloat16"), contract="eager")(of_bert)
paged = kernel(signature="hf", dtypes=("float32",), contract="eager", supports=("gqa",))(eager_paged_attention_forward)


def _model(q: Any, k: Any, **more: Any) -> SimpleNamespace:
    """Return what the functions read of a module."""
    groups = q.shape[1] // k.shape[1]
    return SimpleNamespace(num_key_value_groups=groups, training=False, head_dim=q.shape[-1], **more)


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    supports=("scale", "bias", "softcap", "gqa", "cross", "dv", "backward"),
    conventions={"empty_row": "nan"},
    least_keys=1,
)
def gemma2(q: Any, k: Any, v: Any, *, scale: Any = None, bias: Any = None, softcap: Any = None) -> Any:
    """Call the function of Gemma 2, whose output is [B, S, H, D]."""
    return of_gemma2(_model(q, k), q, k, v, bias, scaling=scale, softcap=softcap)[0].transpose(1, 2)


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    supports=("scale", "bias", "sinks", "gqa", "cross", "dv", "backward"),
    conventions={"empty_row": "nan"},
    always=("sinks",),
    least_keys=1,
)
def gpt_oss(q: Any, k: Any, v: Any, *, sinks: Any, scale: Any = None, bias: Any = None) -> Any:
    """Call the function of GPT-OSS, whose output is [B, S, H, D]."""
    scaling = q.shape[-1] ** -0.5 if scale is None else scale
    of_heads = sinks.expand(1, q.shape[1], 1, 1).reshape(-1)
    return of_gpt_oss(_model(q, k, sinks=of_heads), q, k, v, bias, scaling)[0].transpose(1, 2)
