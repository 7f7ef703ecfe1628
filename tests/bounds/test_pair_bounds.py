"""Bounds of additive scores: they hold for every order of evaluation, and refute less precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.bounds.intermediates import intermediates
from attn_spec.bounds.operand_bounds import pair_error
from attn_spec.bounds.running_error import Approximation, RunningErrors
from attn_spec.contract.presets import EAGER, FP32
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

REGIMES = ("normal", "large", "integers", "activations", "cancellation", "near_ties", "one_hot")
LAYERS = {
    "small": {"score_key_weight": "normal@1HAD", "score_query_weight": "normal@BHAD", "score_vector": "normal@1H1A"},
    "saturated": {"score_key_weight": "saturating@11AD", "score_query_weight": "normal@11AD", "score_vector": "large"},
}


def drawn(layers, regime, seed, dtype="float32"):
    shape = {"query_length": 5, "key_length": 33, "head_dim": 24, "value_dim": 3, "score_width": 7}
    return Recipe(
        batch=2, query_heads=4, kv_heads=2, **shape, seed=seed, dtypes=dtype, regime=regime,
        **{**LAYERS[layers], "score_vector": LAYERS[layers]["score_vector"].split("@")[0] + "@1H1A"},
        score_bias="normal@111A",
    ).problem()  # fmt: skip


def product(x, y, w):
    return (torch.tanh(x[..., :, None, :] + y[..., None, :, :]) @ w[:, :, None].mT).squeeze(-1)


def sum_of_products(x, y, w):
    return (torch.tanh(x[..., :, None, :] + y[..., None, :, :]) * w[:, :, None]).sum(-1)


def one_width_after_the_other(x, y, w):
    parts = (torch.tanh(x[..., :, None, a] + y[..., None, :, a]) * w[..., a, None] for a in range(w.shape[-1]))
    return sum(parts, torch.zeros(()))


ORDERS = (product, sum_of_products, one_width_after_the_other)


def side_by_side(q, k, W1, W2):
    """Compute W2 q and W1 k as one product, of q and k concatenated."""
    shape = (*q.shape[:3], k.shape[2], q.shape[3])
    both = torch.cat([q[..., :, None, :].expand(shape), k[..., None, :, :].expand(shape)], dim=-1)
    return both @ torch.cat([W2.expand(*q.shape[:2], -1, -1), W1.expand(*q.shape[:2], -1, -1)], dim=-1).mT[:, :, None]


def answered(problem, order, dtype, narrowed=lambda s: s):
    """Return output and gradients of plain PyTorch, with the scores in one order of evaluation."""
    names = ("q", "k", "v", "score_key_weight", "score_query_weight", "score_bias", "score_vector")
    q, k, v, W1, W2, b, w = (torch.tensor(getattr(problem, name), dtype=dtype) for name in names)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    keys, values = (x.repeat_interleave(problem.group, dim=1) for x in (k, v))
    if order is side_by_side:
        s = (torch.tanh(side_by_side(q, keys, W1, W2) + b[:, :, None]) @ w[:, :, None].mT).squeeze(-1)
    else:
        s = order(q @ W2.mT + b, keys @ W1.mT, w.expand(*q.shape[:2], -1, -1))
    out = narrowed(s).masked_fill(torch.tensor(~problem.visible), -torch.inf).softmax(dim=-1) @ values
    dO = bits.nearest(np.random.default_rng(0).standard_normal(out.shape), problem.dtype)
    out.backward(torch.tensor(dO, dtype=dtype))
    found = {f"d{name}": x.grad.double().numpy() for name, x in zip("qkv", (q, k, v), strict=True)}
    return out.detach().double().numpy(), dO, found


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("order", [*ORDERS, side_by_side], ids=lambda order: order.__name__)
def test_every_order_of_evaluation_is_within_the_bound(order, layers, regime):
    problem = drawn(layers, regime, 0)
    output, dO, found = answered(problem, order, torch.float32)

    assert 0 < judge(problem, EAGER.at("float32"), output=output).ratio < 1
    assert 0 < judge_gradients(problem, EAGER.at("float32"), dO, found).ratio < 1


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_less_precision_than_declared_is_refuted(order):
    problem = drawn("small", "normal", 0)
    output, dO, found = answered(problem, order, torch.float32, lambda s: s.bfloat16().float())

    assert judge(problem, EAGER.at("float32"), output=output).refuted
    assert judge_gradients(problem, EAGER.at("float32"), dO, found).refuted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_every_order_is_within_the_bound_where_each_result_is_stored_in_half(order, dtype):
    for regime in ("normal", "activations"):
        problem = drawn("small", regime, 1, dtype)
        output, dO, found = answered(problem, order, getattr(torch, dtype))
        assert 0 < judge(problem, EAGER.at(dtype), output=output).ratio < 1
        assert 0 < judge_gradients(problem, EAGER.at(dtype), dO, found).ratio < 1


def test_a_saturated_tanh_leaves_the_error_of_its_argument_behind():
    """An argument of 40 may be off by much: the slope there is e^-80."""
    one = np.ones((1, 1, 1, 1))
    given = {"score_key_weight": one, "score_query_weight": one, "score_vector": one}
    shape = {"query_length": 1, "key_length": 1, "head_dim": 1, "value_dim": 1}
    near, far = (
        intermediates(Recipe(**shape).problem().replace(q=size * one, k=size * one, **given)) for size in (0.25, 20.0)
    )
    errors = [pair_error(x, FP32.at("float32")).item() for x in (near, far)]
    assert errors[1] < errors[0]


def test_a_tanh_is_off_by_two_at_most_whatever_its_argument():
    c = FP32.at("float32")
    unknown = Approximation(np.zeros(1), np.ones(1), np.full(1, 1e30), FORMATS["float32"], c)
    found = RunningErrors(c).tanh(unknown).error.item()
    assert 2 <= found < 2 + 2.0**-18


def test_the_sums_of_all_pairs_and_heads_may_be_one():
    """8,192 equal terms, added one by one in float16: the sum stops growing long before."""
    heads, rows, one = 32, 16, np.ones((1, 1, 1, 1))
    zeros = np.zeros((1, heads, rows, 1))
    layers = {"score_key_weight": one, "score_query_weight": one, "score_bias": 0.5 * one, "score_vector": one}
    problem = Problem(q=zeros, k=zeros, v=zeros, dtypes="float16", **layers)
    terms = np.full(heads * rows**2, np.tanh(0.5) / rows, dtype=np.float16)  # P dL tanh
    found = np.add.accumulate(terms)[-1].astype(np.float64).reshape(1, 1, 1, 1)
    assert found < 0.6 * terms.sum(dtype=np.float64)

    contract = replace(PRECISE, gradient_accumulation="float16").at("float16")
    dL = np.ones((1, heads, rows))
    judged = judge_gradients(problem, contract, zeros, {"dscore_vector": found}, dL)
    assert judged.exercised
    assert not judged.refuted
