"""Assertions about many heads of few scores, which are judged together, say what they say of each head alone."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attn_spec.judgement.long import blocks
from attn_spec.testing import NotAttention, assert_attention, assert_attention_gradients

B, HQ, HKV, S, D = 3, 8, 4, 5, 16


@pytest.fixture(params=[True, False], ids=["together", "alone"])
def _together(request, monkeypatch):
    """Judge heads together, or one after the other."""
    if not request.param:
        monkeypatch.setattr(blocks, "TOGETHER", 0)


def tensors(*shape, count=3):
    return [torch.randn(*shape) for _ in range(count)]


def call():
    """Return q, k, v, dO, the output and the gradients of grouped heads, in float32."""
    (q, do), (k, v) = tensors(B, HQ, S, D, count=2), tensors(B, HKV, S, D, count=2)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = sdpa(leaves[0], leaves[1].repeat_interleave(2, 1), leaves[2].repeat_interleave(2, 1), is_causal=True)
    found = torch.autograd.grad(out, leaves, do.double())
    return (q, k, v), do, out.detach().float(), dict(zip(("dq", "dk", "dv"), (x.float() for x in found), strict=True))


def packed(lengths):
    """Return the buffers of sequences of these lengths, where they lie, and their output."""
    ends = np.cumsum([0, *lengths])
    q, k, v = tensors(int(ends[-1]), HQ, D)
    of_each = [[x[a:b].transpose(0, 1)[None].double() for x in (q, k, v)] for a, b in itertools.pairwise(ends)]
    out = torch.cat([sdpa(*own)[0].transpose(0, 1) for own in of_each]).float()
    return (q, k, v), {f"cu_seqlens_{side}": torch.tensor(ends, dtype=torch.int32) for side in "qk"}, out


@pytest.mark.usefixtures("_together")
@pytest.mark.parametrize("contract", [None, "fused"])
def test_right_answers_are_held_in_all_rows(contract):
    qkv, do, out, gradients = call()

    judgement = assert_attention(out, *qkv, causal=True, contract=contract)
    of_gradients = assert_attention_gradients(gradients, do, *qkv, causal=True, contract=contract)

    assert judgement.rows == judgement.of == of_gradients.rows == B * HQ * S
    assert of_gradients.keys == of_gradients.of_keys == B * HKV * S
    assert judgement.tallies["output"].measured == out.numel()
    assert {name: tally.measured for name, tally in of_gradients.tallies.items()} == {
        name: x.numel() for name, x in gradients.items()
    }


@pytest.mark.usefixtures("_together")
def test_one_wrong_number_is_named_where_it_is():
    qkv, do, out, gradients = call()
    out[2, 5, 3, 7] += 0.1
    gradients["dk"][1, 3, 2, 4] -= 0.1

    with pytest.raises(NotAttention, match=r"output\[2, 5, 3, 7\]") as refuted:
        assert_attention(out, *qkv, causal=True)
    with pytest.raises(NotAttention, match=r"dk\[1, 3, 2, 4\]"):
        assert_attention_gradients(gradients, do, *qkv, causal=True)

    assert refuted.value.judgement.worst.outside == refuted.value.judgement.worst.rows == 1


@pytest.mark.usefixtures("_together")
def test_sequences_in_buffers_are_told_apart():
    qkv, where, out = packed((3, 0, 1, 6))

    assert assert_attention(out, *qkv, **where).rows == 10 * HQ
    out[3, 2, 1] += 0.1  # the first token of the third sequence
    with pytest.raises(NotAttention, match=r"output\[3, 2, 1\]"):
        assert_attention(out, *qkv, **where)


@pytest.mark.parametrize(
    ("heads", "keys", "rows", "parts"), [(64, 8, None, 1), (64, 8, 8, 1), (64, 8, 7, 64), (4, 1024, None, 4)]
)
def test_heads_are_together_where_all_rows_of_few_scores_are_judged(monkeypatch, heads, keys, rows, parts):
    judged = []
    own = blocks._add
    monkeypatch.setattr(
        blocks, "_add", lambda found, part, *given, **how: judged.append(part) or own(found, part, *given, **how)
    )
    q, k, v = torch.randn(1, heads, 8, D), *tensors(1, heads, keys, D, count=2)

    assert_attention(sdpa(q, k, v), q, k, v, contract="fp32", rows=rows)

    assert len(judged) == parts
