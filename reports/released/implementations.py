"""Implementations that are certified: how each is called, what it declares, and where that can be read."""

from __future__ import annotations

from typing import Any

from attn_spec.kernels.signatures.signature import Fact

from .implementation import Implementation


def by_name() -> dict[str, Implementation]:
    """Return the implementations by name."""
    return {one.name: one for one in IMPLEMENTATIONS}


def _adapted(name: str, kernel: str, *facts: tuple[str, str], **words: Any) -> Implementation:
    """Return the row of an adapter; a fact is what it says and where that can be read."""
    return Implementation(name=name, kernel=kernel, facts=tuple(Fact(says=a, source=b) for a, b in facts), **words)


_PYTORCH: dict[str, Any] = {"project": "PyTorch", "package": "torch", "environment": "torch"}
_TRANSFORMERS: dict[str, Any] = {"project": "Transformers", "package": "transformers", "environment": "torch"}
_X_TRANSFORMERS: dict[str, Any] = {
    "project": "x-transformers",
    "package": "x-transformers",
    "environment": "torch",
    "shape": "H=16,S=1024,D=64",  # its heads have 64 columns by default
}
_MEMORY_EFFICIENT: dict[str, Any] = {
    "project": "memory-efficient-attention-pytorch",
    "package": "memory-efficient-attention-pytorch",
    "environment": "torch",
    "shape": "H=16,S=1024,D=64",  # its heads have 64 columns by default
}
_FLASH_JAX: dict[str, Any] = {
    "project": "flash-attention-jax",
    "package": "flash-attention-jax",
    "environment": "jax",
}
_EJKERNEL: dict[str, Any] = {"project": "ejkernel", "package": "ejkernel", "environment": "jax"}
_FLA: dict[str, Any] = {"project": "flash-linear-attention", "package": "fla-core", "environment": "interpreted"}
_X_SOURCE = "x-transformers 2.31.10, attend.py, Attend.forward"
_LINEN = "flax 0.12.8, linen/attention.py, dot_product_attention_weights"
_EAGER = "transformers 5.24, modeling_gpt2.py and modeling_bert.py, eager_attention_forward"
_CURATED = "curated-transformers 2.0.1, layers/attention.py"
_KERAS_TORCH = "keras 3.15.1, src/backend/torch/nn.py, dot_product_attention"
_KERAS_TENSORFLOW: dict[str, Any] = {"project": "Keras", "package": "keras", "environment": "tensorflow"}
_KERAS_MASKS = "keras 3.15.1, src/backend/tensorflow/nn.py, _apply_masks"
_KERAS_MQA = "keras 3.15.1, docstring of key: if K==1, multi-query attention (MQA) is performed"
_TILED = "ejkernel 0.0.80.3, kernels/_xla/flash_attention/_xla_impl_fwd.py"
_WIDTH_OF_V = "ejkernel 0.0.80.3, kernels/_xla/flash_attention/_interface.py: the output has head_dim columns"
_PADDLE = "paddlepaddle 3.3.1, nn/functional/flash_attention.py, scaled_dot_product_attention"
_MEAN_OF_V = "a query whose keys a mask hides has the mean of all values, one whose keys all have a bias of -inf NaN"

IMPLEMENTATIONS = (
    Implementation(
        name="torch-sdpa",
        function="scaled_dot_product_attention",
        kernel="torch.nn.functional:scaled_dot_product_attention",
        signature="torch_sdpa",
        contract="fused",
        **_PYTORCH,
    ),
    Implementation(
        name="torch-flex",
        function="flex_attention, not compiled",
        kernel="torch.nn.attention.flex_attention:flex_attention",
        signature="flex_attention",
        contract="eager",
        shape="Hq=32,Hkv=8,S=512,D=128",  # it declares many options, each of which is a problem
        **_PYTORCH,
    ),
    Implementation(
        name="transformers-eager",
        function="eager_attention_forward of Llama",
        kernel="transformers.models.llama.modeling_llama:eager_attention_forward",
        signature="hf",
        contract="eager",
        supports="gqa",
        **_TRANSFORMERS,
    ),
    Implementation(
        name="transformers-sdpa",
        function="sdpa_attention_forward",
        kernel="transformers.integrations.sdpa_attention:sdpa_attention_forward",
        signature="hf_sdpa",
        contract="fused",
        **_TRANSFORMERS,
    ),
    _adapted(
        "transformers-gemma2",
        "of_transformers.py:gemma2",
        (
            "softcap comes after the scale and before the mask",
            "transformers 5.24, modeling_gemma2.py, eager_attention_forward",
        ),
        ("a query whose keys all have -inf in the mask has the output NaN", "torch 2.13, run: softmax of -inf alone"),
        function="eager_attention_forward of Gemma 2",
        **_TRANSFORMERS,
    ),
    _adapted(
        "transformers-gpt-oss",
        "of_transformers.py:gpt_oss",
        (
            "a sink of each head is one more score, whose weight is dropped",
            "transformers 5.24, modeling_gpt_oss.py, eager_attention_forward",
        ),
        ("a query without keys, and with a sink of -inf, has the output NaN", "torch 2.13, run: softmax of -inf alone"),
        function="eager_attention_forward of GPT-OSS",
        **_TRANSFORMERS,
    ),
    _adapted(
        "transformers-gpt2",
        "of_transformers.py:gpt2",
        ("the function is called as that of Llama, but heads have no groups", _EAGER),
        function="eager_attention_forward of GPT-2",
        **_TRANSFORMERS,
    ),
    _adapted(
        "transformers-bert",
        "of_transformers.py:bert",
        ("the function is called as that of Llama, but heads have no groups", _EAGER),
        function="eager_attention_forward of BERT",
        **_TRANSFORMERS,
    ),
    _adapted(
        "transformers-paged",
        "of_transformers.py:paged",
        (
            "the function is called as that of Llama; sequences of a batch are told apart by the mask alone",
            "transformers 5.24, integrations/eager_paged.py",
        ),
        function="eager_paged_attention_forward of continuous batching",
        **_TRANSFORMERS,
    ),
    _adapted(
        "diffusers",
        "of_diffusers.py:attention",
        (
            "causal calls take no mask",
            "diffusers 0.42.1, attention_dispatch.py: the call goes to scaled_dot_product_attention",
        ),
        (
            "a scale of 0 or less beside is_causal gives NaN on a CPU",
            "torch 2.13, run: its flash kernel masks scores before it multiplies them by the scale",
        ),
        project="Diffusers",
        package="diffusers",
        environment="torch",
        function="dispatch_attention_fn, native backend",
    ),
    _adapted(
        "x-transformers",
        "of_x_transformers.py:attend",
        ("the diagonal ends in the bottom right corner", f"{_X_SOURCE}: create_causal_mask"),
        ("a query whose keys a mask hides has the output 0", f"{_X_SOURCE}: row_is_entirely_masked"),
        ("a query that causality alone leaves without keys has a mean, so that no call asks for it", _X_SOURCE),
        (
            "query head h reads kv head h mod Hkv, which no other library does, so that no call has groups",
            f"{_X_SOURCE}: repeat of (r kvh)",
        ),
        function="Attend",
        **_X_TRANSFORMERS,
    ),
    _adapted(
        "x-transformers-flash",
        "of_x_transformers.py:attend_flash",
        ("the diagonal ends in the bottom right corner", "x-transformers 2.31.10, attend.py, Attend.flash_attn"),
        ("a query whose keys a mask hides has the output 0", "x-transformers 2.31.10, attend.py, Attend.flash_attn"),
        function="Attend with flash",
        **_X_TRANSFORMERS,
    ),
    Implementation(
        name="onnx-reference",
        project="ONNX",
        package="onnx",
        environment="torch",
        function="reference of the operator Attention",
        kernel="onnx.reference.ops.op_attention:_compute_attention",
        signature="onnx_attention",
        contract="eager",
        supports="gqa",
    ),
    _adapted(
        "onnxruntime-gqa",
        "of_onnxruntime.py:group_query_attention",
        ("the operator is called as in the first call of a generation", "onnxruntime 1.32.0, GroupQueryAttention"),
        project="ONNX Runtime",
        package="onnxruntime",
        environment="torch",
        function="GroupQueryAttention on a CPU",
        shape="Hq=32,Hkv=8,S=1024,D=128,seqused_q=1024,seqused_k=1024",
    ),
    _adapted(
        "openvino",
        "of_openvino.py:attention",
        ("causal calls ignore the mask", "OpenVINO 2026.4, operator ScaledDotProductAttention-13, attribute causal"),
        ("a query whose keys all have a bias of -inf has the output NaN", "OpenVINO 2026.4, run on a CPU"),
        project="OpenVINO",
        package="openvino",
        environment="torch",
        function="ScaledDotProductAttention on a CPU, float32",
    ),
    _adapted(
        "memory-efficient-attention-pytorch",
        "of_memory_efficient_attention_pytorch.py:chunked",
        (
            "the diagonal starts in the top left corner",
            "memory-efficient-attention-pytorch 0.1.6, memory_efficient_attention.py, summarize_qkv_chunk",
        ),
        function="memory_efficient_attention, chunks of 32",
        **_MEMORY_EFFICIENT,
    ),
    _adapted(
        "memory-efficient-attention-pytorch-flash",
        "of_memory_efficient_attention_pytorch.py:flash",
        (
            "the diagonal ends in the bottom right corner",
            "memory-efficient-attention-pytorch 0.1.6, memory_efficient_attention.py, attention: triu(j - i + 1)",
        ),
        function="FlashAttentionFunction, tiles of 32",
        **_MEMORY_EFFICIENT,
    ),
    _adapted(
        "ring-attention-pytorch",
        "of_ring_attention_pytorch.py:attention",
        (
            "the diagonal ends in the bottom right corner; no call has a query without keys, which would have a mean",
            "ring-attention-pytorch 0.5.20, ring_attention.py, default_attention: triu(j - i + 1)",
        ),
        project="ring-attention-pytorch",
        package="ring-attention-pytorch",
        environment="torch",
        function="default_attention",
    ),
    _adapted(
        "local-attention",
        "of_local_attention.py:attention",
        (
            "beside its own key a query sees as many on each side as a block has, times look_backward or look_forward",
            "local-attention 1.11.2, local_attention.py, exact_windowsize; the README counts one key less",
        ),
        ("queries and keys have one length", "local-attention 1.11.2, local_attention.py, forward"),
        project="local-attention",
        package="local-attention",
        environment="torch",
        function="LocalAttention of exact windows, padded by itself",
    ),
    _adapted(
        "curated-transformers",
        "of_curated_transformers.py:attention",
        ("the diagonal ends in the bottom right corner", f"{_CURATED}, create_causal_mask: rows of the last queries"),
        (
            "a masked score is the least number, so that a query without keys has the mean of all values",
            f"{_CURATED}, AttentionMask.apply_logit_mask",
        ),
        project="Curated Transformers",
        package="curated-transformers",
        environment="torch",
        function="ScaledDotProductAttention in its own arithmetic",
    ),
    _adapted(
        "whisper",
        "of_whisper.py:attention",
        (
            "the mask is one of the decoder, a square with -inf above the diagonal",
            "openai-whisper 20250625, model.py, qkv_attention and TextDecoder",
        ),
        project="Whisper",
        package="openai-whisper",
        environment="torch",
        function="MultiHeadAttention.qkv_attention without SDPA",
    ),
    _adapted(
        "executorch",
        "of_executorch.py:attention",
        (
            "queries start at start_pos of the cache, so that the diagonal ends in the bottom right corner",
            "executorch, extension/llm/custom_ops/op_sdpa.cpp, note on start_pos",
        ),
        (
            "a scale of 0 or less beside is_causal gives NaN",
            "executorch 1.5.1, run: scores of -inf are multiplied by the scale",
        ),
        project="ExecuTorch",
        package="executorch",
        environment="torch",
        function="llama::custom_sdpa",
    ),
    _adapted(
        "keras-torch",
        "of_keras_torch.py:attention",
        (
            "a mask becomes a finite bias, so that a query without keys has the mean of all values",
            f"{_KERAS_TORCH}: _get_large_negative",
        ),
        ("a mask or a bias is taken, and no bias beside is_causal", f"{_KERAS_TORCH}, and torch's own refusal"),
        ("values are as wide as keys", "keras 3.15.1, docstring: the value array with the same shape of key"),
        project="Keras",
        package="keras",
        environment="torch",
        function="ops.dot_product_attention on PyTorch",
    ),
    Implementation(
        name="jax",
        project="JAX",
        package="jax",
        environment="jax",
        function="jax.nn.dot_product_attention",
        kernel="jax.nn:dot_product_attention",
        signature="jax",
        contract="eager",
    ),
    _adapted(
        "flax",
        "of_flax.py:attention",
        (_MEAN_OF_V, "flax 0.12.8, nnx/nn/attention.py: the call goes to jax.nn.dot_product_attention"),
        (
            "values are as wide as keys; the docstring has v_depth_per_head, and jax.nn refuses another one",
            "flax 0.12.8, run: ValueError, value shape should be ..",
        ),
        project="Flax",
        package="flax",
        environment="jax",
        function="nnx.dot_product_attention",
    ),
    _adapted(
        "flax-linen",
        "of_flax.py:of_linen",
        ("a masked score is the least number, so that a query without keys has the mean of all values", _LINEN),
        ("a bias is added before the mask, and one of -inf alone gives NaN", f"{_LINEN}, run"),
        project="Flax",
        package="flax",
        environment="jax",
        function="linen.dot_product_attention",
    ),
    _adapted(
        "keras",
        "of_keras.py:attention",
        (_MEAN_OF_V, "keras 3.15.1, src/backend/jax/nn.py: the call goes to jax.nn.dot_product_attention"),
        project="Keras",
        package="keras",
        environment="jax",
        function="ops.dot_product_attention on JAX",
    ),
    _adapted(
        "equinox",
        "of_equinox.py:attention",
        (
            "a masked score is the least number, so that a query without keys has the mean of all values",
            "equinox 0.13.8, nn/_attention.py, dot_product_attention_weights",
        ),
        project="Equinox",
        package="equinox",
        environment="jax",
        function="the attention of one head of nn.MultiheadAttention",
    ),
    _adapted(
        "ejkernel",
        "of_ejkernel.py:attention",
        (
            "a masked score is the least number, so that a query without keys has the mean of all values",
            "ejkernel 0.0.80.3, kernels/_xla/attention/_xla_impl_fwd.py",
        ),
        ("a bias takes precedence over a mask", "ejkernel 0.0.80.3, attention, docstring of bias"),
        function="attention on XLA",
        **_EJKERNEL,
    ),
    _adapted(
        "ejkernel-flash",
        "of_ejkernel.py:tiled",
        ("values are as wide as keys", _WIDTH_OF_V),
        ("a bias is added before the softcap", f"{_TILED}, _apply_logits_transforms"),
        ("a bias has no gradient", "ejkernel 0.0.80.3, kernels/_xla/flash_attention/_interface.py, _bwd"),
        function="flash_attention on XLA, tiles of 16",
        **_EJKERNEL,
    ),
    _adapted(
        "ejkernel-flash-sinks",
        "of_ejkernel.py:tiled_with_sinks",
        (
            "all sinks are those of each head, so that calls have one head",
            "ejkernel 0.0.80.3, flash_attention: softmax_aux is checked to be of one axis, and is not split by heads",
        ),
        ("values are as wide as keys", _WIDTH_OF_V),
        ("sinks have no gradient", "ejkernel 0.0.80.3, kernels/_xla/flash_attention/_interface.py, _bwd"),
        function="flash_attention on XLA with sinks, tiles of 16",
        shape="H=1,S=1024,D=128",
        **_EJKERNEL,
    ),
    _adapted(
        "paddle",
        "of_paddle.py:attention",
        ("a call is causal or has a mask, of booleans or of numbers that are added", f"{_PADDLE}, docstring"),
        (
            "a query without keys has NaN, but the mean of all values where the number of keys divides by 8",
            "paddlepaddle 3.3.1, run: softmax of -inf alone",
        ),
        project="PaddlePaddle",
        package="paddlepaddle",
        environment="paddle",
        function="nn.functional.scaled_dot_product_attention on a CPU",
    ),
    _adapted(
        "keras-tensorflow",
        "of_keras_tensorflow.py:attention",
        ("a masked score is a finite number, so that a query without keys has the mean of all values", _KERAS_MASKS),
        ("values are as wide as keys", "keras 3.15.1, docstring: the value array with the same shape of key"),
        ("several query heads share one of several kv heads; a single one is a row of its own", _KERAS_MQA),
        function="ops.dot_product_attention on TensorFlow",
        **_KERAS_TENSORFLOW,
    ),
    _adapted(
        "keras-tensorflow-mqa",
        "of_keras_tensorflow.py:of_one_kv_head",
        ("multi-query attention is performed if the keys have one head", _KERAS_MQA),
        function="ops.dot_product_attention on TensorFlow, one kv head",
        shape="Hq=32,Hkv=1,S=1024,D=128",
        **_KERAS_TENSORFLOW,
    ),
    Implementation(
        name="mlx",
        project="MLX",
        package="mlx",
        environment="mlx",
        function="fast.scaled_dot_product_attention on a CPU",
        kernel="mlx.core.fast:scaled_dot_product_attention",
        signature="mlx",
        contract="fused",
    ),
    _adapted(
        "memory-efficient-attention-jax",
        "of_memory_efficient_attention.py:attention",
        (
            "no mask is passed, since the code reads the bias's shape beside a mask",
            "memory-efficient-attention 0.1.3, attention_jax.py",
        ),
        project="memory-efficient-attention",
        package="memory-efficient-attention",
        environment="jax",
        function="efficient_dot_product_attention",
    ),
    _adapted(
        "flash-attention-jax",
        "of_flash_attention_jax.py:attention",
        ("values are as wide as keys", "flash-attention-jax 0.3.1, flash_attention.py"),
        function="flash_attention",
        **_FLASH_JAX,
    ),
    _adapted(
        "flash-attention-jax-causal",
        "of_flash_attention_jax.py:causal_attention",
        ("queries and keys have one length", "flash-attention-jax 0.3.1, causal_flash_attention.py"),
        function="causal_flash_attention",
        **_FLASH_JAX,
    ),
    _adapted(
        "fla-naive",
        "of_fla.py:naive",
        ("queries and keys have one length", "fla-core 0.6.0, ops/attn/naive.py, docstring: [B, T, HQ, K]"),
        function="naive_parallel_attn",
        **_FLA,
    ),
    _adapted(
        "fla-parallel",
        "of_fla.py:parallel",
        ("every call is causal", "fla-core 0.6.0, ops/attn/parallel.py, docstring"),
        ("keys have at most 256 columns", "fla-core 0.6.0, ops/attn/parallel.py: an assertion"),
        function="parallel_attn in Triton's interpreter",
        **_FLA,
    ),
)
