"""Bounds of scores whose operands are formulas: they hold for every order of evaluation, and refute less precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import intermediates
from attn_spec.bounds.operand_bounds import operand_error
from attn_spec.bounds.running_error import RunningErrors, given
from attn_spec.contract.presets import EAGER, FP32
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.operands import Operands
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.testing import assert_attention
from tests.one_head import one_head

REGIMES = ("normal", "large", "integers", "activations", "cancellation", "near_ties", "one_hot")


def drawn(option, pattern, regime, seed, dtype="float32"):
    return Recipe(
        batch=2, query_heads=4, kv_heads=2, query_length=5, key_length=33, head_dim=24, value_dim=3, seed=seed,
        dtypes=dtype, regime=regime, **{option: pattern},
    ).problem()  # fmt: skip


def bilinear_keys_first(q, k, p, scale):
    return q @ (k @ p.mT).mT * scale


def bilinear_queries_first(q, k, p, scale):
    return q @ p @ k.mT * scale


def bilinear_at_once(q, k, p, scale):
    return torch.einsum("bhid,bhde,bhje->bhij", q, p.broadcast_to(*q.shape[:2], *p.shape[2:]), k) * scale


def cosine_of_units(q, k, p, scale):
    return normalize(q, dim=-1) @ (p * normalize(k, dim=-1)).mT * scale


def cosine_divided_at_last(q, k, p, scale):
    norms = q.square().sum(-1, keepdim=True).sqrt() * k.square().sum(-1, keepdim=True).sqrt().mT
    return p * (q @ k.mT) / norms * scale


def cosine_by_inverse_roots(q, k, p, scale):
    inverses = (x.square().sum(-1, keepdim=True).rsqrt() for x in (q, k))
    q, k = (x * inverse for x, inverse in zip((q, k), inverses, strict=True))
    return (q @ k.mT) * (p * scale)


ORDERS = {
    "score_weight": ("normal@1HDD", [bilinear_keys_first, bilinear_queries_first, bilinear_at_once]),
    "score_gamma": ("ten@1H11", [cosine_of_units, cosine_divided_at_last, cosine_by_inverse_roots]),
}
CASES = [(option, pattern, order) for option, (pattern, orders) in ORDERS.items() for order in orders]


def answered(problem, option, order, dtype):
    """Return output and gradients of plain PyTorch, with the scores in one order of evaluation."""
    q, k, v, p = (torch.tensor(getattr(problem, name), dtype=dtype) for name in ("q", "k", "v", option))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    keys, values = (x.repeat_interleave(problem.group, dim=1) for x in (k, v))
    scores = order(q, keys, p, problem.scale_value).masked_fill(torch.tensor(~problem.visible), -torch.inf)
    out = scores.softmax(dim=-1) @ values
    rng = np.random.default_rng(0)
    dO = bits.nearest(rng.standard_normal(out.shape), problem.dtype)
    out.backward(torch.tensor(dO, dtype=dtype))
    found = {f"d{name}": x.grad.double().numpy() for name, x in zip("qkv", (q, k, v), strict=True)}
    return out.detach().double().numpy(), dO, found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("option", "pattern", "order"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_every_order_of_evaluation_is_within_the_bound(option, pattern, order, regime):
    for seed in range(3):
        problem = drawn(option, pattern, regime, seed)
        output, dO, found = answered(problem, option, order, torch.float32)

        forward = judge(problem, EAGER.at("float32"), output=output)
        backward = judge_gradients(problem, EAGER.at("float32"), dO, found)
        assert 0 < forward.ratio < 1, (regime, seed)
        assert 0 < backward.ratio < 1, (regime, seed)


@pytest.mark.parametrize(("option", "pattern", "order"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_less_precision_than_declared_is_refuted(option, pattern, order):
    problem = drawn(option, pattern, "normal", 0)
    output, dO, found = answered(problem, option, lambda *given: order(*given).bfloat16().float(), torch.float32)

    assert judge(problem, EAGER.at("float32"), output=output).refuted
    assert judge_gradients(problem, EAGER.at("float32"), dO, found).refuted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("option", "pattern", "order"), CASES[:5], ids=lambda case: getattr(case, "__name__", None))
def test_every_order_is_within_the_bound_where_each_result_is_stored_in_half(option, pattern, order, dtype):
    for regime in ("normal", "activations"):
        problem = drawn(option, pattern, regime, 1, dtype)
        output, dO, found = answered(problem, option, order, getattr(torch, dtype))
        assert 0 < judge(problem, EAGER.at(dtype), output=output).ratio < 1
        assert 0 < judge_gradients(problem, EAGER.at(dtype), dO, found).ratio < 1


def test_a_plain_score_has_no_error_of_its_operands():
    x = intermediates(one_head([[1.0]], [[1.0]], [[1.0]]))
    assert operand_error(x, FP32.at("float32")) is None
    assert np.array_equal(x.q_size, np.abs(x.q))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_may_be_stored_on_the_way_to_operands_that_are(dtype):
    """A projection and its bias may cancel, and leave little of the result in between. With one key, out is v'."""
    rng, half = torch.Generator().manual_seed(0), getattr(torch, dtype)
    q, k = (torch.randn(1, 1, n, 2, generator=rng).to(half) for n in (8, 1))
    v, W = (1 + torch.rand(*shape, generator=rng).to(half) / 8 for shape in ((1, 1, 1, 2), (1, 1, 2, 2)))
    one, bias = torch.eye(2, dtype=half)[None, None], -(v @ W.mT)
    out = (v @ W.mT + bias * 1.01).expand(1, 1, 8, 2)
    options = {f"{name}_projection": one for name in ("query", "key", "output")} | {"value_projection": W}
    assert_attention(out, q, k, v, contract="fused", value_projection_bias=bias * 1.01, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_a_turn_may_be_stored(dtype):
    """One key, so that the log-sum-exp is its score, of a query whose two products may cancel."""
    rng, half = torch.Generator().manual_seed(0), getattr(torch, dtype)
    q, k, v = (torch.randn(1, 1, n, 2, generator=rng).to(half) for n in (512, 1, 1))
    angles = torch.arange(512.0)[:, None]
    first, second = q.float().chunk(2, dim=-1)
    turned = [(x * angles.cos()).to(half) + (y * angles.sin()).to(half) for x, y in ((first, -second), (second, first))]
    lse = (torch.cat(turned, dim=-1).float() @ k.float().mT * 2**-0.5).squeeze(-1)
    turns = {"rotary": "half", "causal_alignment": "top_left"}
    assert_attention(v.expand(q.shape), q, k, v, lse=lse, contract="fused", **turns)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_of_a_vector_is_off_by_one_factor_and_little_else(dtype):
    problem, c = drawn("score_gamma", "ten@1H11", "normal", 2, dtype), EAGER.at(dtype)
    x = intermediates(problem)
    made = Operands(c, Order(kv_tile=None, fused=False), problem.q, problem.k, {"score_gamma": problem.score_gamma})()
    errors = operand_error(x, c)
    of_vectors = (made[0], x.q, errors.E_q, errors.q_rows), (made[1], x.k, errors.E_k, errors.k_rows)
    for got, exact, whole, rows in of_vectors:
        # (1 + g)(|x| - own) <= |got| <= (1 + g)(|x| + own) for one g of all numbers of a vector
        size, off, common = np.abs(exact), rows.own, rows.common[..., 0]
        least = np.max(np.abs(got) / (size + off), axis=-1)
        most = np.min(np.where(size > off, np.abs(got) / np.where(size > off, size - off, 1.0), np.inf), axis=-1)
        assert (np.maximum(least, 1 - common) <= np.minimum(most, 1 + common)).all()
        assert np.median(off / whole) < 0.5  # an error of each number apart would be twice as large


def test_where_a_norm_may_be_zero_nothing_is_said():
    gamma = np.ones((1, 1, 1, 1))
    problem = one_head([[1, 1], [0, 0]], [[1, 2], [2, 1]], [[1], [2]], dtypes="float32", score_gamma=gamma)
    bound = forward_bound(intermediates(problem), FP32.at("float32"))
    assert bound.in_domain.ravel().tolist() == [True, False]

    hidden = problem.replace(mask=np.array([True, False]).reshape(1, 1, 1, 2), k=problem.k * [[1], [0]])
    bound = forward_bound(intermediates(hidden), FP32.at("float32"))
    assert bound.in_domain.ravel().tolist() == [True, False]


def test_a_hidden_key_of_zeros_leaves_the_gradients_in_the_domain():
    gamma, mask = np.ones((1, 1, 1, 1)), np.array([True, True, False]).reshape(1, 1, 1, 3)
    problem = one_head([[1, 1]], [[1, 2], [2, 1], [0, 0]], [[1], [2], [3]], dtypes="float32", score_gamma=gamma)
    output, dO, found = answered(problem.replace(mask=mask), "score_gamma", cosine_of_units, torch.float32)
    judged = judge_gradients(problem.replace(mask=mask), EAGER.at("float32"), dO, found)

    assert not judge(problem, EAGER.at("float32"), output=output).exercised
    assert judged.exercised
    assert not judged.refuted
    assert judge_gradients(problem.replace(mask=mask), EAGER.at("float32"), dO, {"dq": found["dq"] * 1.01}).refuted


@pytest.mark.parametrize(("size", "inside"), [(2.0**7, True), (2.0**9, False)])
def test_where_a_rounded_product_overflows_nothing_is_said(size, inside):
    """The operand W k has products that are too large for float16, and no other number of the score is."""
    weight = np.array([[[[size]]]])
    problem = one_head([[2.0**-9]], [[size]], [[1]], dtypes="float32", score_weight=weight, scale=1.0)
    contract = replace(FP32, products="float16").at("float32")
    assert forward_bound(intermediates(problem), contract).in_domain.all() == inside


@pytest.mark.parametrize(("error", "known"), [(0.4, True), (0.5, False), (0.9, False), (1.1, False)])
def test_of_a_quotient_that_may_come_first_nothing_is_said_if_its_divisor_may_be_half_as_large(error, known):
    contract = FP32.at("float32")
    A, form = RunningErrors(contract), contract.stages.operands.format
    x, y = (given(contract, np.ones((1, columns)), form) for columns in (2, 1))
    y = replace(y, error=np.full((1, 1), error))

    found = A.linear_quotient(lambda rows: rows, x, y).error

    assert np.isfinite(found).all() == known
    assert not known or (found >= error / (1 - error)).all()


@pytest.mark.parametrize(("size", "inside"), [(2.0**-18, True), (2.0**-21, False)])
def test_where_libraries_clamp_a_norm_nothing_is_said(size, inside):
    problem = one_head([[size, size]], [[1, 2]], [[1]], dtypes="float32", score_gamma=np.ones((1, 1, 1, 1)))
    assert forward_bound(intermediates(problem), EAGER.at("float32")).in_domain.all() == inside
    backwards = problem.replace(q=problem.k, k=problem.q)
    assert forward_bound(intermediates(backwards), EAGER.at("float32")).in_domain.all() == inside


@pytest.mark.parametrize(("size", "inside"), [(2.0**6, True), (2.0**8, False)])
def test_where_a_square_overflows_nothing_is_said(size, inside):
    problem = one_head([[size, size]], [[1, 2]], [[1]], dtypes="float16", score_gamma=np.ones((1, 1, 1, 1)))
    assert forward_bound(intermediates(problem), EAGER.at("float16")).in_domain.all() == inside
