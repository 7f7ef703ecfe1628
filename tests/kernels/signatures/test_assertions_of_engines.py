"""Assertions take the arguments of calls that merge states or append to a cache, as an engine has them."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import assert_attention
from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention
from tests.kernels.signatures.own_caches import flash_attn_with_kvcache, rotated
from tests.kernels.signatures.own_merges import merge_attn_states, merge_states
from tests.kernels.signatures.own_operators import extend_attention_fwd, group_query_attention


@pytest.fixture
def merge():
    """Return the arguments of a merge of two states, whose results are written into them; some states are empty."""
    torch.manual_seed(0)
    prefix_lse, suffix_lse = torch.randn(3, 5) * 3, torch.randn(3, 5) * 3
    prefix_lse[0, 0] = prefix_lse[1, 1] = torch.inf
    suffix_lse[1, 1] = -torch.inf
    call = {
        "output": torch.empty(5, 3, 8),
        "prefix_output": torch.randn(5, 3, 8),
        "prefix_lse": prefix_lse,
        "suffix_output": torch.randn(5, 3, 8),
        "suffix_lse": suffix_lse,
        "output_lse": torch.empty(3, 5),
    }
    merge_attn_states(**call)
    return call


def test_a_merged_output_is_judged_with_the_states_that_it_was_merged_from(merge):
    judged = {"lse": merge["output_lse"], "signature": "vllm_merge", "contract": "fp32", **merge}

    assert assert_attention(merge["output"], **judged).rows == 15
    wrong = merge["output"].clone()
    wrong[3, 2, 5] += 1e-3
    with pytest.raises(NotAttention, match=r"output\[3, 2, 5\]; 1 of 120 .*\n  place     token 3, head 2, column 5"):
        assert_attention(wrong, **judged)
    wrong = merge["output_lse"].clone()
    wrong[2, 4] += 1e-3
    with pytest.raises(NotAttention, match=r"lse\[2, 4\]; 1 of 15 .*\n  place     token 4, head 2"):
        assert_attention(merge["output"], **{**judged, "lse": wrong})


def test_a_failure_of_a_merge_names_the_tensors_of_the_caller(merge):
    with pytest.raises(
        NotAttention, match=r"prefix_output \(5, 3, 8\), prefix_lse \(3, 5\), suffix_output .*, suffix_lse"
    ):
        assert_attention(merge["output"] + 1, signature="vllm_merge", **merge)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"suffix_lse": None}, "a call of the signature vllm_merge needs suffix_lse"),
        ({"prefill_tokens_with_context": 3}, "judges no call with this prefill_tokens_with_context; it must be None"),
        ({"prefix_lse": torch.zeros(5, 3)}, r"outputs .T, H, D. and log-sum-exps .H, T. .*prefix_lse .5, 3., suffix"),
        ({"suffix_output": torch.zeros(5, 2, 8)}, r"do not go together here: .*suffix_output .5, 2, 8."),
        ({"suffix_output": torch.zeros(5, 24)}, r"do not go together here: .*suffix_output .5, 24."),
    ],
)
def test_what_is_no_merge_is_refused(merge, change, text):
    with pytest.raises(CallError, match=text):
        assert_attention(merge["output"], signature="vllm_merge", **{**merge, **change})


def test_states_of_base_2_are_read():
    torch.manual_seed(0)
    v, s = torch.randn(4, 3, 2, 8).half(), torch.randn(4, 3, 2) * 5
    out, lse = merge_states(v, s)
    judged = {"lse": lse, "v": v, "s": s, "contract": "fp32", "signature": "flashinfer_merge_states"}

    assert assert_attention(out, **judged).rows == 8
    with pytest.raises(NotAttention, match=r"v \(4, 3, 2, 8\), s \(4, 3, 2\)"):
        assert_attention(out, **{**judged, "s": s / math.log(2), "lse": None})
    with pytest.raises(NotAttention, match=r"(?s)lse\[.* this row is right .* with lse_base='e'"):
        assert_attention(out, **{**judged, "lse": lse * math.log(2)})


def test_heads_may_be_joined():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 5, width) for width in (16, 8, 8))
    last = torch.tensor([4, 2], dtype=torch.int32)
    call = {"query": q, "key": k, "value": v, "seqlens_k": last, "total_sequence_length": 5, "local_window_size": 3}
    call |= {"num_heads": 4, "kv_num_heads": 2}
    tensors = {name: x.numpy() if hasattr(x, "numpy") else x for name, x in call.items()}
    out = torch.from_numpy(group_query_attention(**tensors)[0])

    assert_attention(out, signature="ort_gqa", **call)
    out[1, 2, 13] += 1
    with pytest.raises(NotAttention, match=r"output\[1, 2, 13\]; 1 of"):
        assert_attention(out, signature="ort_gqa", **call)
    with pytest.raises(CallError, match=r"output must have 16 columns here, of 4 heads, not \(2, 5, 8\)"):
        assert_attention(out[..., :8], signature="ort_gqa", **call)
    with pytest.raises(CallError, match=r"a call needs num_heads and kv_num_heads"):
        assert_attention(out, signature="ort_gqa", **{name: x for name, x in call.items() if name != "num_heads"})


def test_new_keys_beside_a_pool_are_read_as_the_last_ones():
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 4, 8), torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    pools = {"k_buffer": torch.randn(9, 2, 8), "v_buffer": torch.randn(9, 2, 8)}
    bounds = {"qo_indptr": torch.tensor([0, 3, 5]), "kv_indptr": torch.tensor([0, 2, 6])}
    call = {"q_extend": q, "k_extend": k, "v_extend": v, "o_extend": torch.empty_like(q), **pools, **bounds}
    call |= {"kv_indices": torch.tensor([7, 3, 0, 8, 1, 4]), "custom_mask": None, "is_causal": True}
    call |= {"mask_indptr": None, "max_len_extend": 3, "k_scale": 1.0, "v_scale": 1.0, "sliding_window_size": 2}
    lse = torch.empty(5, 4)
    extend_attention_fwd(**call, lse_extend=lse)
    judged = {"signature": "sglang_extend", "lse": lse, **call}

    assert assert_attention(call["o_extend"], **judged).rows == 20
    with pytest.raises(NotAttention):
        assert_attention(call["o_extend"], **{**judged, "sliding_window_size": -1})
    with pytest.raises(NotAttention, match=r"lse\[4, 3\]; 1 of"):
        assert_attention(call["o_extend"], **{**judged, "lse": lse + (torch.arange(20) == 19).reshape(5, 4)})


def test_a_parameter_names_the_corner_of_a_call():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 8) for length in (3, 5, 5))
    call = {"query": q, "key": k, "value": v, "is_causal": True, "signature": "cudnn"}
    top, bottom = (scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(3, 5).tril(n).bool()) for n in (0, 2))

    assert_attention(top, **call)
    assert_attention(bottom, causal_bottom_right=True, **call)
    with pytest.raises(NotAttention):
        assert_attention(bottom, **call)


def test_an_output_of_other_axes_is_refused(merge):
    with pytest.raises(CallError, match=r"output must have the axes of .*merge_attn_states, not the shape \(5, 24\)"):
        assert_attention(merge["output"].flatten(1), signature="vllm_merge", **merge)


@pytest.fixture
def append():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2, 8)
    caches = {"k_cache": torch.randn(4, 9, 2, 8), "v_cache": torch.randn(4, 9, 2, 8)}
    before, rows = torch.tensor([4, 0], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    return {"q": q, **caches, "k": k, "v": v, "cache_seqlens": before, "cache_batch_idx": rows, "causal": True}


def test_a_call_that_appends_is_judged_with_its_caches_before_it_or_after(append):
    judged = {"signature": "flash_attn_kvcache_indexed", **append}
    untouched = {name: append[name].clone() for name in ("k_cache", "v_cache")}
    out = flash_attn_with_kvcache(**append)

    assert not torch.equal(untouched["k_cache"], append["k_cache"])
    assert assert_attention(out, **judged).rows == 24
    kept = {name: x.clone() for name, x in untouched.items()}
    assert assert_attention(out, **{**judged, **untouched}).rows == 24
    assert all(torch.equal(x, kept[name]) for name, x in untouched.items())
    with pytest.raises(NotAttention, match=r"cache_batch_idx="):
        assert_attention(out, **{**judged, "cache_batch_idx": append["cache_batch_idx"].flip(0)})


def test_a_call_that_has_rotated_is_judged_with_its_queries_rotated(append):
    turn = torch.outer(torch.arange(12), torch.tensor([1.0, 0.1]))
    cos, sin = turn.cos(), turn.sin()
    out = flash_attn_with_kvcache(**append, rotary_cos=cos, rotary_sin=sin)
    before, count = append["cache_seqlens"], append["q"].shape[1]
    call = {**append, "k": None, "v": None, "cache_seqlens": before + count, "rotary_interleaved": False}

    q = rotated(append["q"], before, cos, sin, pairs=True)
    assert_attention(out, signature="flash_attn_kvcache_indexed", **{**call, "q": q})
    with pytest.raises(NotAttention):
        assert_attention(out, signature="flash_attn_kvcache_indexed", **call)


def test_a_call_that_appends_nothing_attends_to_the_cache(append):
    call = {**append, "k": append["k"][:, :0], "v": append["v"][:, :0], "causal": False}
    call["cache_seqlens"] = call["cache_seqlens"] + 2
    out = flash_attn_with_kvcache(**call)

    assert_attention(out, signature="flash_attn_kvcache_indexed", **{**call, "k": None, "v": None})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rotary_cos": torch.ones(9, 4)}, "pass q rotated, the caches and lengths after the call, and leave k"),
        ({"cache_seqlens": 4}, "reads cache_seqlens as a tensor"),
        ({"v": None}, "a call of the signature flash_attn_kvcache_indexed needs v"),
    ],
)
def test_what_is_no_call_that_appends_here_is_refused(append, change, text):
    with pytest.raises(CallError, match=text):
        assert_attention(append["q"], signature="flash_attn_kvcache_indexed", **{**append, **change})
