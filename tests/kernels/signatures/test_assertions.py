"""Assertions take the arguments of a library's call as they stand, and name them in their messages."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import assert_attention, assert_attention_gradients
from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention
from tests.kernels.signatures import own_functions as own

SDPA = {"signature": "torch_sdpa", "contract": "fused"}


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)


def lengths_first(tensors):
    return tuple(x.transpose(1, 2).contiguous() for x in tensors)


def test_tensors_and_options_have_the_names_of_the_library(qkv):
    call = {**dict(zip(("query", "key", "value"), qkv, strict=True)), "enable_gqa": True, "scale": 0.5}
    seen = torch.rand(2, 1, 5, 7) < 0.7
    seen[..., 0] = True
    for further in ({"is_causal": True}, {"attn_mask": seen}, {"attn_mask": torch.randn(5, 7)}):
        assert_attention(scaled_dot_product_attention(**call, **further), **call, **further, **SDPA)


def test_tensors_may_stand_at_their_places(qkv):
    out = scaled_dot_product_attention(*qkv, enable_gqa=True)

    assert assert_attention(out, *qkv, enable_gqa=True, **SDPA).rows == 40


def test_a_failure_names_the_parameters_of_the_caller(qkv):
    out = scaled_dot_product_attention(*qkv, enable_gqa=True)

    with pytest.raises(NotAttention, match=r"query \(2, 4, 5, 8\), key .*, value .*, float32; is_causal=True"):
        assert_attention(out, *qkv, enable_gqa=True, is_causal=True, **SDPA)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"is_causl": True}, "the signature torch_sdpa has no parameter is_causl; did you mean 'is_causal'"),
        ({"softcap": 3.0}, "the signature torch_sdpa has no parameter softcap"),
        ({"dropout_p": 0.5}, "attn-spec judges no call with this dropout_p; it must be 0.0"),
        ({"attn_mask": torch.ones(3, 3, dtype=torch.bool)}, "attn_mask must be broadcastable"),
        ({"scale": "half"}, "scale must be a finite number or None, not 'half'"),
        ({"is_causal": "yes"}, "is_causal must be True or False, not 'yes'"),
        ({"query": torch.zeros(1)}, "query gives q a second time; leave one out"),
        ({"presentation": "BSHD"}, "signature='torch_sdpa' has a presentation; leave presentation= out"),
        ({"signature": "torch_spda"}, "unknown signature 'torch_spda'; did you mean 'torch_sdpa'"),
    ],
)
def test_what_is_no_call_of_the_function_is_refused(qkv, words, text):
    with pytest.raises(CallError) as found:
        assert_attention(torch.zeros(2, 4, 5, 8), *qkv, **{**SDPA, **words})

    assert text in str(found.value)


def test_a_missing_tensor_is_asked_for_by_its_name(qkv):
    with pytest.raises(CallError, match="a call of the signature torch_sdpa needs key, value"):
        assert_attention(qkv[0], query=qkv[0], **SDPA)


def test_gradients_may_have_the_names_of_the_library(qkv):
    tensors = [x.clone().requires_grad_() for x in qkv]
    out = scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, tensors, dout)
    for names in (("dq", "dk", "dv"), ("dquery", "dkey", "dvalue")):
        gradients = dict(zip(names, found, strict=True))
        assert_attention_gradients(gradients, dout, *qkv, is_causal=True, enable_gqa=True, **SDPA)
    with pytest.raises(NotAttention, match=r"dq\["):
        assert_attention_gradients({"dquery": found[0] * 1.01}, dout, *qkv, is_causal=True, enable_gqa=True, **SDPA)


def test_conventions_of_the_library_hold(qkv):
    """Keys that are fewer than queries leave rows without a key, whose log-sum-exp is +inf in flash-attention 2."""
    q, k, v = lengths_first(qkv)
    call = {"causal": True, "window_size": (3, -1), "softcap": 2.0, "alibi_slopes": torch.rand(4)}
    out, lse, _ = own.flash_attn_func(q, k[:, :3], v[:, :3], **call, return_attn_probs=True)
    judged = {"lse": lse, **call, "signature": "flash_attn", "return_attn_probs": True}

    assert lse.isinf().any()
    assert_attention(out, q, k[:, :3], v[:, :3], **judged)
    with pytest.raises(NotAttention, match=r"lse\["):
        assert_attention(out, q, k[:, :3], v[:, :3], **{**judged, "lse": lse.masked_fill(lse.isinf(), -torch.inf)})
    assert_attention(
        out, q, k[:, :3], v[:, :3], empty_lse="-inf", **{**judged, "lse": lse.masked_fill(lse.isinf(), -torch.inf)}
    )


def test_a_packed_call_is_judged_with_the_names_of_the_library():
    bounds, keys = torch.tensor([0, 3, 3, 8], dtype=torch.int32), torch.tensor([0, 5, 6, 9], dtype=torch.int32)
    q, k, v = torch.randn(9, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 2, 8)
    call = {"cu_seq_q": bounds, "cu_seq_k": keys, "max_q": 5, "max_k": 8, "window_size": (-1, 0), "enable_gqa": True}
    out = own.varlen_attn(q, k, v, **call)

    assert_attention(out, query=q, key=k, value=v, signature="torch_varlen", **call)
    with pytest.raises(CallError, match=r"max_q is 4, but a sequence has 5 queries"):
        assert_attention(out, q, k, v, signature="torch_varlen", **{**call, "max_q": 4})
    with pytest.raises(CallError, match=r"judges no call with this block_table; it must be None"):
        assert_attention(out, q, k, v, signature="torch_varlen", **call, block_table=bounds)


def test_axes_of_the_log_sum_exp_are_those_of_the_library(qkv):
    q, k, v = (jnp.asarray(x.numpy()) for x in lengths_first(qkv))
    call = {"key_value_seq_lengths": jnp.array([4, 7], dtype=jnp.int32), "local_window_size": (3, 2)}
    out, lse = jax.nn.dot_product_attention(q, k, v, **call, return_residual=True)

    assert lse.shape == (2, 5, 4)
    assert_attention(out, q, k, v, lse=lse, signature="jax", **call)
    with pytest.raises(NotAttention, match=r"lse\[1, 4, 3\]; 1 of"):
        assert_attention(out, q, k, v, lse=lse.at[1, 4, 3].add(1), signature="jax", **call)


def test_the_output_may_have_other_axes_than_the_inputs(qkv):
    out = scaled_dot_product_attention(*qkv, enable_gqa=True).transpose(1, 2).clone()
    call = {"attention_mask": None, "scaling": 8**-0.5, "signature": "hf"}

    assert_attention(out, query=qkv[0], key=qkv[1], value=qkv[2], **call)
    out[1, 4, 2, 3] += 1
    with pytest.raises(NotAttention, match=r"output\[1, 4, 2, 3\]; 1 of"):
        assert_attention(out, *qkv, **call)
    with pytest.raises(CallError, match=r"output must have the axes of .*, not the shape \(3,\)"):
        assert_attention(out[0, 0, 0, :3], *qkv, **call)


def test_a_module_makes_calls_without_a_mask_causal(qkv):
    given, seen = dict(zip(("query", "key", "value"), qkv, strict=True)), torch.rand(2, 1, 5, 7) < 0.8
    whole = scaled_dot_product_attention(*qkv, enable_gqa=True).transpose(1, 2)
    late = scaled_dot_product_attention(*qkv, enable_gqa=True, is_causal=True).transpose(1, 2)
    masked = scaled_dot_product_attention(*qkv, enable_gqa=True, attn_mask=seen).transpose(1, 2)
    one = scaled_dot_product_attention(qkv[0][:, :, :1], *qkv[1:], enable_gqa=True).transpose(1, 2)
    call = {"signature": "hf_sdpa", "module": SimpleNamespace(is_causal=True), "attention_mask": None}

    assert_attention(late, **given, **call)
    assert_attention(masked, **given, **{**call, "attention_mask": seen})
    assert_attention(one, **{**given, "query": qkv[0][:, :, :1]}, **call)
    assert_attention(whole, **given, **{**call, "module": SimpleNamespace(is_causal=False)})
    with pytest.raises(NotAttention):
        assert_attention(whole, **given, **call)
    with pytest.raises(CallError, match="is_causal gives causal a second time"):
        assert_attention(whole, **given, **call, is_causal=False)
    with pytest.raises(CallError, match="judges no call with this is_causal; it must be None or False"):
        assert_attention(late, **given, **call, is_causal=True)


def test_a_block_mask_is_read(qkv):
    seen = create_block_mask(lambda b, h, i, j: j <= i + 1, None, None, 5, 7, device="cpu")
    mask = torch.ones(5, 7, dtype=torch.bool).tril(1)
    out = scaled_dot_product_attention(*qkv, attn_mask=mask, enable_gqa=True)

    assert_attention(out, *qkv, block_mask=seen, enable_gqa=True, signature="flex_attention")
    with pytest.raises(CallError, match="attn-spec cannot read a score_mod"):
        assert_attention(out, *qkv, score_mod=lambda s, *_: s, signature="flex_attention")


def test_a_default_that_is_another_scale_is_read():
    q, cache = torch.randn(2, 4, 8), torch.randn(5, 2, 4, 2, 8)
    table, used = torch.tensor([[1, 0], [3, 4]], dtype=torch.int32), torch.tensor([6, 3], dtype=torch.int32)
    where = {"block_tables": table, "seq_lens": used, "max_seq_len": 8, "kv_layout": "NHD", "window_left": 2}
    call = {"query": q, "kv_cache": cache, "workspace_buffer": q, **where}
    pair = {**call, "kv_cache": (cache[:, 0], cache[:, 1])}
    out = own.trtllm_batch_decode_with_kv_cache(**pair)

    assert_attention(out, signature="trtllm_decode", **call)
    with pytest.raises(NotAttention, match=r"kv_cache .*bmm1_scale=0.5"):
        assert_attention(out, signature="trtllm_decode", **pair, bmm1_scale=0.5)
    with pytest.raises(CallError, match=r"attn-spec reads caches of kv_layout='NHD', not of 'HND'"):
        assert_attention(out, signature="trtllm_decode", **{w: x for w, x in call.items() if w != "kv_layout"})
