"""assert_attention_gradients: sound gradients pass, wrong ones fail with the element or the call that was meant."""

import pytest
import torch

from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention, assert_attention_gradients
from tests.test_testing import SHAPE, k, q, sdpa, v


def differentiated(dtype=torch.float32, heads=2, **words):
    """Return gradients of PyTorch's own attention, with grouped heads."""
    tensors = [x.to(dtype).clone().requires_grad_() for x in (q, k[:, :heads], v[:, :heads, :, :5])]
    dout = torch.randn(2, 4, 40, 5).to(dtype)
    sdpa(*tensors, enable_gqa=True, **words).backward(dout)
    return {f"d{name}": x.grad for name, x in zip("qkv", tensors, strict=True)}, dout, *tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sound_gradients_pass(dtype):
    gradients, *tensors = differentiated(dtype, is_causal=True)

    judgement = assert_attention_gradients(gradients, *tensors, is_causal=True)
    assert 0 < judgement.ratio < 1
    assert str(judgement) == "all 320 rows; 160 of 160 keys"
    assert repr(judgement).startswith("GradientJudgement(dq, dk, dv: up to 0.")
    swapped = [x.transpose(1, 2) for x in tensors]
    moved = {name: x.transpose(1, 2) for name, x in gradients.items()}
    assert_attention_gradients(moved, *swapped, is_causal=True, presentation="BSHD")


@pytest.mark.parametrize(("name", "place"), [("dq", "1, 3, 7, 2"), ("dk", "1, 1, 7, 2"), ("dv", "1, 1, 7, 2")])
def test_a_wrong_gradient_fails_with_its_element(name, place):
    gradients, *tensors = differentiated()
    gradients[name][1, -1, 7, 2] += 0.05
    with pytest.raises(NotAttention, match=rf"element +{name}\[{place}\]; 1 of"):
        assert_attention_gradients(gradients, *tensors, contract="fp32")


def test_gradients_of_a_bias_and_of_the_log_sum_exp():
    bias = torch.randn(1, 4, 1, 40).requires_grad_()
    x = [each.clone().requires_grad_() for each in (q, k, v)]
    s = x[0] @ x[1].mT * 16**-0.5 + bias
    dout, dlse = torch.randn(SHAPE), torch.randn(SHAPE[:3])
    torch.autograd.backward([s.softmax(-1) @ x[2], s.logsumexp(-1)], [dout, dlse])
    gradients = {f"d{name}": each.grad for name, each in zip((*"qkv", "bias"), (*x, bias), strict=True)}

    assert_attention_gradients(gradients, dout, *x, dlse=dlse, bias=bias)
    with pytest.raises(NotAttention, match=r"element +d"):
        assert_attention_gradients(gradients, dout, *x, bias=bias)
    gradients["dbias"] = gradients["dbias"][0]  # [H, 1, Sk], as the bias may be given too
    assert_attention_gradients({"dbias": gradients["dbias"]}, dout, *x, dlse=dlse, bias=bias[0])


def test_some_rows_and_some_keys():
    gradients, *tensors = differentiated()

    judgement = assert_attention_gradients(gradients, *tensors, contract="fp32", rows=16, keys=8)
    assert (judgement.rows, judgement.of, judgement.keys, judgement.of_keys) == (128, 320, 32, 160)


def test_gradients_of_queries_without_keys_are_judged_where_the_test_says_so():
    mask = torch.ones(40, 40, dtype=torch.bool)
    mask[7] = False
    x = [each.clone().requires_grad_() for each in (q, k, v)]
    (out := sdpa(*x, attn_mask=mask)).backward(dout := torch.randn(SHAPE))
    gradients = {f"d{name}": each.grad for name, each in zip("qkv", x, strict=True)}

    with pytest.raises(CallError, match="a query sees no key, and its gradients depend on its output: pass out="):
        assert_attention_gradients(gradients, dout, *x, attn_mask=mask)
    assert_attention_gradients(gradients, dout, *x, attn_mask=mask, empty_row="zero")
    assert_attention_gradients(gradients, dout, *x, attn_mask=mask, out=out)
    assert_attention_gradients(gradients, dout, *x, attn_mask=mask, out=out, rows=16, keys=16, memory=4096)


@pytest.mark.parametrize(
    ("change", "words", "text"),
    [
        ((q, k, v), {}, "gradients must be a mapping by name, as {'dq': dq, .*, not of type tuple"),
        ({}, {}, "gradients must be some of dq, dk, dv, dkv, dbias, .*, not none"),
        ({"dx": q}, {}, "gradients must be some of .*, not dx"),
        ({"dk": q[:, :1]}, {}, r"dk must have the shape \(2, 4, 40, 16\) here, not \(2, 1, 40, 16\)"),
        ({"dbias": q}, {}, "dbias is the gradient of bias, which this call does not use"),
        ({"dbias": q}, {"bias": torch.zeros(40)}, r"dbias must have the shape of bias, \(1, 1, 1, 40\), not"),
        ({"dq": q}, {"out": q[0]}, r"out must have the shape \(2, 4, 40, 16\) here"),
        ({"dq": q}, {"dlse": q}, r"dlse must have the shape \(2, 4, 40\) here"),
        ({"dq": q}, {"keys": 0}, "keys must be an integer of 1 or more, not 0"),
    ],
)
def test_what_are_no_gradients_is_refused(change, words, text):
    with pytest.raises(CallError, match=text):
        assert_attention_gradients(change, q, q, k, v, **words)


def pulled_back(q, k, v, dout, attention):
    """Return gradients by name."""
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    attention(*tensors).backward(dout)
    return {f"d{name}": x.grad for name, x in zip("qkv", tensors, strict=True)}


def lengths_first(q, k, v):
    return sdpa(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@pytest.mark.parametrize(
    ("attention", "words", "hint"),
    [
        (lengths_first, {}, "right for the same tensors as presentation='BSHD'"),
        (lambda q, k, v: sdpa(q, k, v, scale=1.0), {}, "right for the same problem with 1 for its scale"),
        (lambda q, k, v: sdpa(q, k, v, is_causal=True), {}, "right for the same problem with causal=True"),
        (
            lambda q, k, v: sdpa(q, k[:, :, :-1], v[:, :, :-1]),
            {},
            "right for the same problem without its last key",
        ),
        (
            lambda q, k, v: sdpa(q, k[:, :, :3], v[:, :, :3], attn_mask=torch.ones(8, 3, dtype=torch.bool).triu()),
            {"window": (0, None)},
            "",
        ),
    ],
    ids=["presentation", "scale", "causal", "last key", "none"],
)
def test_gradients_of_another_call_are_told(attention, words, hint):
    q, k, v, dout = (torch.randn(2, 8, 8, 16) for _ in range(4))
    with pytest.raises(NotAttention) as refused:
        assert_attention_gradients(pulled_back(q, k, v, dout, attention), dout, q, k, v, contract="fp32", **words)

    assert ("hint      these gradients are" in str(refused.value)) == bool(hint)
    assert hint in str(refused.value)
    assert "missing" not in str(refused.value)


def test_gradients_within_another_contract_name_it():
    q, k, v, dout = (size * torch.randn(1, 2, 24, 16).bfloat16() for size in (8, 1, 1, 1))
    attention = lambda q, k, v: torch.softmax((q @ k.mT * 16**-0.5).float(), -1).to(v.dtype) @ v  # noqa: E731
    found = pulled_back(q, k, v, dout, attention)
    with pytest.raises(NotAttention, match=r"hint      these gradients are within the bound of contract"):
        assert_attention_gradients(found, dout, q, k, v, contract="fused")


@pytest.mark.parametrize("words", [{}, {"rows": 2, "keys": 2}, {"contract": "fused"}], ids=str)
def test_keys_that_no_query_meets_have_gradients_of_zero(words):
    q, k, v = torch.randn(1, 1, 0, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    found = {"dq": torch.zeros_like(q), "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}

    assert assert_attention_gradients(found, torch.zeros(1, 1, 0, 4), q, k, v, **words).exercised
    with pytest.raises(NotAttention, match="dk"):
        assert_attention_gradients({**found, "dk": k}, torch.zeros(1, 1, 0, 4), q, k, v, **words)
    none = {"dq": torch.zeros_like(k), "dk": torch.zeros_like(q), "dv": torch.zeros_like(q)}
    assert assert_attention_gradients(none, torch.zeros(1, 1, 3, 4), k, q, q, empty_row="zero", **words).exercised
