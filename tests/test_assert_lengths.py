"""assert_attention on calls with lengths: padding may hold anything, and each sequence has its own diagonal."""

import math

import pytest
import torch

from attn_spec.kernels.calls.call import CallError
from attn_spec.testing import NotAttention, assert_attention, assert_attention_gradients

B, H, SQ, SK, D = 3, 2, 5, 7, 8
QUERIES, KEYS = torch.tensor([5, 2, 0], dtype=torch.int32), torch.tensor([7, 3, 3], dtype=torch.int32)
CALL = {"causal": True, "causal_alignment": "bottom_right", "seqused_q": QUERIES, "seqused_k": KEYS}


def made(*, corner=True, rest=0.0):
    """Return q, k, v with NaN behind the lengths and causal attention of each sequence alone, requiring gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, n, D, generator=generator) for n in (SQ, SK, SK))
    for b, (n, e) in enumerate(zip(QUERIES.tolist(), KEYS.tolist(), strict=True)):
        q[b, :, n:], k[b, :, e:], v[b, :, e:] = math.nan, math.nan, math.nan
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = torch.full((B, H, SQ, D), rest)
    for b, (n, e) in enumerate(zip(QUERIES.tolist(), KEYS.tolist(), strict=True)):
        first = e - n if corner else SK - SQ
        hidden = torch.arange(e) > torch.arange(n)[:, None] + first
        s = q[b, :, :n] @ k[b, :, :e].mT * D**-0.5
        out[b, :, :n] = s.masked_fill(hidden, -math.inf).softmax(-1) @ v[b, :, :e]
    return tensors, out


def test_what_lies_behind_the_lengths_may_be_anything():
    tensors, out = made(rest=math.nan)

    judgement = assert_attention(out, *tensors, **CALL)

    assert (judgement.rows, judgement.of) == (14, 14)


def test_rows_behind_a_sequence_are_judged_if_their_convention_is_given():
    tensors, out = made(rest=7.0)

    assert_attention(out, *tensors, **CALL)
    with pytest.raises(NotAttention, match=r"output\[\d, \d, \d, \d\]"):
        assert_attention(out, *tensors, **CALL, unused_rows="zero")
    assert_attention(made()[1], *tensors, **CALL, unused_rows="zero")


def test_the_corner_of_the_rectangle_is_refuted():
    tensors, out = made(corner=False)

    with pytest.raises(NotAttention):
        assert_attention(out, *tensors, **CALL)


def test_gradients_of_padding_are_judged_if_their_convention_is_given():
    tensors, out = made()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    found = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, tensors, dout), strict=True))
    padded = {**found, "dk": found["dk"].clone()}
    padded["dk"][1, :, 5] = 1.0

    dout[1, :, 3] = math.nan  # of a row that is not there
    assert_attention_gradients(found, dout, *tensors, **CALL, unused_rows="zero")
    assert_attention_gradients(padded, dout, *tensors, **CALL)
    with pytest.raises(NotAttention):
        assert_attention_gradients(padded, dout, *tensors, **CALL, unused_rows="zero")


def test_a_diagonal_beside_lengths_needs_its_corner():
    tensors, out = made()
    square = [x[:, :, :SQ] for x in tensors]

    with pytest.raises(CallError, match="causal of 5 queries and 5 keys needs causal_alignment="):
        assert_attention(out, *square, causal=True, seqused_q=QUERIES)
