"""Signatures of functions that merge attention states: outputs of parts of the keys, and their log-sum-exps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.kernels.signatures.arguments import fixed, idle, tensor
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature

_VLLM = "vllm 0.33.0, vllm/v1/attention/ops/merge_attn_states.py"


def _output(given: Given) -> Any:
    """Return a tensor for the output, NaN wherever nothing is written."""
    return given["v_a"].new_full(tuple(given["v_a"].shape), float("nan"))


def _log_sum_exp() -> Argument:
    def spell(given: Given) -> Any:
        return given["s_a"].new_full(tuple(given["s_a"].shape), float("nan")) if given.get("lse") else None

    return Argument(
        name="output_lse",
        says=("lse",),
        default=None,
        spell=spell,
        read=lambda value: {},
        means="a tensor [heads, tokens] that the log-sum-exp is written into, or None",
    )


def _beside_one_another(name: str, own: str) -> Argument:
    """Return the parameter of an output of a state, which is copied unless its heads lie where the function reads."""

    def spell(given: Given) -> Any:
        x = given[own]
        is_read = _are_heads_in_a_row(x) and given["v_a"].stride(1) == given["v_b"].stride(1)
        return x if is_read else x.new_empty(tuple(x.shape)).copy_(x)

    return replace(tensor(name, own), spell=spell)


def _are_heads_in_a_row(x: Any) -> bool:
    """Return whether heads of a tensor [tokens, heads, dimension] are equally far apart, from one token to the next."""
    tokens, heads, _ = x.shape
    return x.stride(2) == 1 and (tokens <= 1 or x.stride(0) == heads * x.stride(1))


VLLM_MERGE = Signature(
    function="vllm.v1.attention.ops.merge_attn_states.merge_attn_states",
    framework="torch",
    presentation="states_pair_ht",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        idle("output", REQUIRED, value=_output),
        _beside_one_another("prefix_output", "v_a"),
        tensor("prefix_lse", "s_a"),
        _beside_one_another("suffix_output", "v_b"),
        tensor("suffix_lse", "s_b"),
        _log_sum_exp(),
        fixed("prefill_tokens_with_context", None),
        fixed("output_scale", None),
    ),
    conventions={"empty_state": "either_inf", "empty_row": "zero", "empty_lse": "-inf"},
    answer=lambda result, passed: (passed["output"], passed["output_lse"]),
    facts=(
        Fact(
            says="log-sum-exps are natural, float32 [heads, tokens]; outputs are [tokens, heads, dimension]",
            source=f"{_VLLM}, docstring of merge_attn_states; _merge_attn_states_torch: torch.log(out_se)",
        ),
        Fact(
            says="a log-sum-exp of plus infinity is taken for minus infinity",
            source=f"{_VLLM}, _merge_attn_states_torch",
        ),
        Fact(
            says="where both states are empty the output is 0, and the log-sum-exp minus infinity",
            source=f"{_VLLM}, _merge_attn_states_torch: both_empty",
        ),
        Fact(
            says="the output of an empty state is multiplied by 0, so that it must be finite",
            source=f"{_VLLM}, _merge_attn_states_torch: suffix_output * suffix_scale",
        ),
        Fact(
            says="heads of both outputs must be equally far apart, from one token to the next too, so that others are "
            "copied",
            source="vllm 0.33.0, vllm/v1/attention/ops/triton_merge_attn_states.py, merge_attn_states_kernel: "
            "token_idx * num_heads * prefix_head_stride",
        ),
        Fact(
            says="results are written into output and output_lse, and nothing is returned",
            source=f"{_VLLM}, merge_attn_states",
        ),
    ),
    source=_VLLM,
)

_FLASHINFER = "flashinfer-python 0.7.4, flashinfer/cascade.py"
_CUDA = "flashinfer-python 0.7.4, include/flashinfer/attention/cascade.cuh"
_BASE = Fact(
    says="log-sum-exps are float32, of base 2, as those that FlashInfer's attention returns",
    source=f"{_CUDA}: both s_a and s_b are logsumexp values with base 2",
)

_CONVENTIONS = {"lse_base": "2", "empty_row": "zero", "empty_lse": "-inf"}

FLASHINFER_MERGE = Signature(
    function="flashinfer.cascade.merge_state",
    framework="torch",
    presentation="states_pair",
    dtypes=("float16", "bfloat16"),
    arguments=(tensor("v_a"), tensor("s_a"), tensor("v_b"), tensor("s_b")),
    conventions=_CONVENTIONS,
    always_lse=True,
    facts=(
        _BASE,
        Fact(
            says="where both states are empty the output is 0, and the log-sum-exp minus infinity",
            source=f"{_CUDA}, MergeStateKernel",
        ),
    ),
    source=f"{_FLASHINFER}, merge_state",
)
FLASHINFER_MERGE_STATES = Signature(
    function="flashinfer.cascade.merge_states",
    framework="torch",
    presentation="states",
    dtypes=("float16", "bfloat16"),
    arguments=(tensor("v"), tensor("s")),
    conventions=_CONVENTIONS,
    always_lse=True,
    facts=(
        _BASE,
        Fact(
            says="where all states are empty the output is 0, and the log-sum-exp minus infinity",
            source="flashinfer-python 0.7.4, include/flashinfer/attention/state.cuh: normalize and get_lse",
        ),
    ),
    source=f"{_FLASHINFER}, merge_states",
)
