"""Attention sinks by every arithmetic of truth, against PyTorch's softmax of one more column, and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.attention import definition, error_free, error_free_gradients
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.forward.sink_bounds import above_maximum, below_maximum
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FP32
from attn_spec.judgement.measure import judge
from attn_spec.judgement.oracle import float64_truth
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

BITS = 120
SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 3, "key_length": 5, "head_dim": 4, "value_dim": 2}
PATTERNS = ("zero@1H11", "normal@1111", "spread@1H11", "high@1H11", "low@1H11", "some_absent@1H11", "beyond@1H11")
OPTIONS = (
    {},
    {"causal": True, "softcap": 2.0},
    {"mask": "random@BHQK", "bias": "normal@1H1K"},
    {"alibi_slopes": "one@1111"},
)


def of_torch(problem, dO, dL):
    """Return output, log-sum-exp and gradients by differentiation of a softmax over the keys and one more column."""
    q, k, v, z = (torch.tensor(x, requires_grad=True) for x in (problem.q, problem.k, problem.v, problem.sinks))
    s = q @ k.repeat_interleave(problem.group, 1).mT * problem.scale_value
    if problem.softcap is not None:
        s = problem.softcap * torch.tanh(s / problem.softcap)
    s = s if problem.bias is None else s + torch.tensor(problem.bias)
    s = s if problem.alibi_slopes is None else s - torch.tensor(problem.alibi_slopes * abs(problem.distances))
    s = s.masked_fill(~torch.tensor(problem.visible), -torch.inf)
    joined = torch.cat([s, z.expand(*s.shape[:3], 1)], dim=-1)
    o = joined.softmax(-1)[..., :-1] @ v.repeat_interleave(problem.group, 1)
    L = joined.logsumexp(-1)
    ((o * torch.tensor(dO)).sum() + (L * torch.tensor(dL)).sum()).backward()
    found = {"output": o.detach(), "lse": L.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad, "dsinks": z.grad}
    return {name: x.numpy() for name, x in found.items()}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_truth_is_that_of_a_softmax_with_one_more_column(pattern, options):
    problem = Recipe(**SHAPE, sinks=pattern, seed=3, **options).problem()
    if problem.empty_rows.any():
        pytest.skip("PyTorch makes NaN of a row without a term")
    rng = np.random.default_rng(0)
    dO, dL = rng.standard_normal(problem.output_shape), rng.standard_normal(problem.score_shape[:3])
    expected = of_torch(problem, dO, dL)

    found = gradients(problem, dO, BITS, dL)
    found |= {"output": definition.attention(problem, BITS), "lse": definition.log_sum_exp(problem, BITS)}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].astype(float), value, rtol=1e-12, atol=1e-13)
    tiers = {"balls": enclose(problem, BITS) | enclose_gradients(problem, dO, BITS, dL)}
    tiers["error-free"] = error_free.enclose(problem) | error_free_gradients.enclose_gradients(problem, dO, dL)
    tiers["float64"] = float64_truth(intermediates(problem))
    for truth in tiers.values():
        for name, known in truth.items():
            exact = found[name].astype(float)
            assert (np.abs(known.value - exact) <= known.radius + 2.0**-52 * np.abs(exact)).all(), name


def one_key(**options):
    q, k, v = (np.array([[[[x]]]]) for x in (0.0, 1.0, 2.0))
    return Problem(q=q, k=k, v=v, dtypes="float32", **options)


def test_a_sink_of_the_size_of_the_only_score_halves_the_value():
    problem = one_key(sinks=np.zeros((1, 1, 1, 1)))

    assert definition.attention(problem, 53).item() == 1.0
    assert float(definition.log_sum_exp(problem, 53).item()) == math.log(2.0)


def test_without_a_key_the_output_is_exactly_zero_and_the_log_sum_exp_the_sink():
    problem = one_key(sinks=np.full((1, 1, 1, 1), 3.5), mask=np.zeros((1, 1, 1, 1), dtype=bool))

    assert not problem.empty_rows.any()
    assert problem.sink_alone.all()
    for empty_row in ("zero", "mean_of_v", "nan"):
        right = {"output": np.zeros((1, 1, 1, 1)), "lse": np.full((1, 1, 1), 3.5)}
        told = Conventions(empty_row=empty_row)
        assert not judge(problem, FP32.at("float32"), **right, conventions=told).refuted
        assert judge(problem, FP32.at("float32"), output=np.full((1, 1, 1, 1), 2.0**-140), conventions=told).refuted


def test_the_log_sum_exp_is_that_of_the_keys_under_the_convention():
    problem = one_key(sinks=np.zeros((1, 1, 1, 1)))
    of_keys, of_all = np.zeros((1, 1, 1)), np.full((1, 1, 1), np.float32(math.log(2.0)), dtype=np.float64)

    for sink_in_lse, right, wrong in ((True, of_all, of_keys), (False, of_keys, of_all)):
        told = Conventions(sink_in_lse=sink_in_lse)
        assert not judge(problem, FP32.at("float32"), lse=right, conventions=told).refuted
        assert judge(problem, FP32.at("float32"), lse=wrong, conventions=told).refuted


@pytest.mark.parametrize(("reference", "inside"), [("keys", False), ("maximum", True)])
def test_a_sink_that_overflows_beside_the_keys_is_inside_where_it_is_part_of_the_maximum(reference, inside):
    problem = one_key(sinks=np.full((1, 1, 1, 1), 100.0))
    contract = replace(FP32, sink_reference=reference).at("float32")

    assert forward_bound(intermediates(problem), contract).in_domain.all() == inside


@pytest.mark.parametrize(("sink", "below", "above"), [(0.5, 0.5, 0.0), (-2.0, 0.0, 2.0)])
def test_the_reference_of_a_row_without_a_key_is_0(sink, below, above):
    x = intermediates(one_key(sinks=np.full((1, 1, 1, 1), sink), mask=np.zeros((1, 1, 1, 1), dtype=bool)))
    contract = replace(FP32, sink_reference="keys").at("float32")

    assert below_maximum(x, contract).item() == pytest.approx(below, rel=1e-6)
    assert above_maximum(x, contract).item() == pytest.approx(above, rel=1e-6)
