"""The table of signatures: functions of libraries, by the name that a declaration or a call gives."""

from __future__ import annotations

from dataclasses import replace

from attn_spec.kernels.signatures import (
    engines,
    flash_attention,
    flashinfer,
    huggingface,
    jax,
    kvcache,
    merges,
    mlx,
    nvidia,
    onnx,
    pytorch,
    xformers,
)
from attn_spec.kernels.signatures.signature import Signature, named_in

_ROWS = {
    "torch_sdpa": pytorch.TORCH_SDPA,
    "torch_varlen": pytorch.TORCH_VARLEN,
    "flex_attention": pytorch.FLEX_ATTENTION,
    "hf": huggingface.HF_EAGER,
    "hf_sdpa": huggingface.HF_SDPA,
    "jax": jax.JAX,
    "onnx_attention": onnx.ONNX_ATTENTION,
    "ort_gqa": onnx.ORT_GQA,
    "flash_attn": flash_attention.FLASH_ATTN,
    "flash_attn_varlen": flash_attention.FLASH_ATTN_VARLEN,
    "flash_attn_3": flash_attention.FLASH_ATTN_3,
    "flash_attn_3_varlen": flash_attention.FLASH_ATTN_3_VARLEN,
    "flash_attn_3_fp8": flash_attention.FLASH_ATTN_3_FP8,
    "flash_attn_3_varlen_fp8": flash_attention.FLASH_ATTN_3_VARLEN_FP8,
    "fa4": flash_attention.FA4,
    "fa4_varlen": flash_attention.FA4_VARLEN,
    "flash_attn_kvcache": kvcache.FLASH_ATTN_KVCACHE,
    "flash_attn_kvcache_indexed": kvcache.FLASH_ATTN_KVCACHE_INDEXED,
    "flash_attn_kvcache_paged": kvcache.FLASH_ATTN_KVCACHE_PAGED,
    "fa3_kvcache": kvcache.FA3_KVCACHE,
    "fa3_kvcache_paged": kvcache.FA3_KVCACHE_PAGED,
    "fa3_kvcache_fp8": kvcache.FA3_KVCACHE_FP8,
    "fa3_kvcache_paged_fp8": kvcache.FA3_KVCACHE_PAGED_FP8,
    "xformers": xformers.XFORMERS,
    "te": nvidia.TE,
    "cudnn": nvidia.CUDNN,
    "cudnn_varlen": nvidia.CUDNN_VARLEN,
    "mlx": mlx.MLX,
    "flashinfer_decode": flashinfer.FLASHINFER_DECODE,
    "flashinfer_prefill": flashinfer.FLASHINFER_PREFILL,
    "flashinfer_mla": flashinfer.FLASHINFER_MLA,
    "flashinfer_merge": merges.FLASHINFER_MERGE,
    "flashinfer_merge_states": merges.FLASHINFER_MERGE_STATES,
    "trtllm_decode": flashinfer.TRTLLM_DECODE,
    "vllm_unified": engines.VLLM_UNIFIED,
    "vllm_unified_fp8": engines.VLLM_UNIFIED_FP8,
    "vllm_unified_scale_caches": engines.VLLM_UNIFIED_SCALE_CACHES,
    "vllm_merge": merges.VLLM_MERGE,
    "sglang_decode": engines.SGLANG_DECODE,
    "sglang_extend": engines.SGLANG_EXTEND,
}

#: Every signature by its name.
SIGNATURES: dict[str, Signature] = {name: replace(row, name=name) for name, row in _ROWS.items()}


def signature(name: str) -> Signature:
    """Return the row of a name. Raises :class:`SignatureError`."""
    return named_in(SIGNATURES, name)
