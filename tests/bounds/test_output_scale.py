"""Outputs in 8 bits and their scale: bounds hold and are reached, what saturates, what is refused, assertions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.bounds.intermediates import intermediates
from attn_spec.bounds.outside import why_outside
from attn_spec.bounds.theorems import forward_bound
from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import FP64, FUSED
from attn_spec.contract.readings import gradient_readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import SUPPORTS, emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.glance import is_plain
from attn_spec.judgement.measure import judge
from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.testing import NotAttention, NotJudged, assert_attention, assert_attention_gradients

EIGHT = {"output": "float8_e4m3fn", "output_overflow": "saturates"}
SHAPE = {"batch": 2, "query_length": 5, "key_length": 9, "head_dim": 8, "value_dim": 3}


def one_key(value, scale, **fields):
    """Return a problem whose output is that value, and its bound under PRECISE with these fields."""
    tensors = {"q": np.zeros((1, 1, 1, 1)), "k": np.zeros((1, 1, 1, 1)), "v": np.full((1, 1, 1, 1), value)}
    problem = Problem(**tensors, o_scale=np.full((1, 1, 1, 1), scale))
    contract = replace(PRECISE, **EIGHT | fields).at("float32")
    return problem, contract, forward_bound(intermediates(problem), contract)


@pytest.mark.parametrize("output", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float16", "float32"])
@pytest.mark.parametrize("overflow", ["saturates", "leaves"])
def test_emulated_outputs_are_within_their_bounds_and_not_far_within(output, overflow):
    contract, reached = replace(PRECISE, output=output, output_overflow=overflow), 0.0
    for divides in (True, False):
        made = emulate("scaled", contract, Order(divides=divides), supports=(*SUPPORTS, "o_scale"))
        subject = Subject(made, "float32")
        for pattern in OPTIONS["o_scale"].patterns:
            problem = Recipe(**SHAPE, o_scale=f"{pattern}@1111", seed=3).problem()
            answer = subject(problem)
            found = judge(problem, subject.contract, **answer)
            assert not found.refuted, pattern
            assert not judge_parts(parts_of(problem, **answer), subject.contract).refuted
            reached = max(reached, found.measurements[0].ratio)
    assert (0.5 if output.startswith("float8") else 0.05) < reached <= 1


def test_the_error_of_a_small_output_is_half_of_the_smallest_number_times_the_scale():
    problem, contract, _ = one_key(63 * 2.0**-18, 0.25)

    assert one_key(2.0**-20, 0.25)[2].allowed["output"].item() == pytest.approx(2.0**-10 * 0.25, rel=0.001)
    assert 0.9 < judge(problem, contract, output=np.zeros((1, 1, 1, 1))).ratio < 1


def test_an_output_above_the_largest_number_saturates_or_is_outside_the_domain():
    problem, contract, bound = one_key(1000.0, 0.5)

    assert bound.in_domain.all()
    assert not judge(problem, contract, output=np.full((1, 1, 1, 1), 224.0)).refuted
    assert judge(problem, contract, output=np.full((1, 1, 1, 1), 120.0)).refuted
    assert judge(problem, contract, output=np.full((1, 1, 1, 1), np.nan)).refuted
    _, leaves, bound = one_key(1000.0, 0.5, output_overflow="leaves")
    assert not bound.in_domain.any()
    assert "the output may overflow" in why_outside(problem, leaves)
    assert one_key(220.0, 0.5, output_overflow="leaves")[2].in_domain.all()


@pytest.mark.parametrize(("scale", "inside"), [(2.0**-100, True), (2.0**-127, False), (2.0**126, False)])
def test_a_scale_or_an_inverse_that_is_no_normal_number_is_outside_the_domain(scale, inside):
    assert one_key(2.0**-120, scale)[2].in_domain.all() == inside


def test_a_quotient_that_overflows_before_its_cast_is_outside_the_domain():
    assert not one_key(2.0**100, 2.0**-100)[2].in_domain.any()


def test_an_output_that_is_read_in_float64_is_a_rounded_product():
    """A float64 output times a scale of float32 has 77 bits; one of float32 has 48, and is exact."""
    tensors = {"q": np.zeros((1, 1, 1, 1)), "k": np.zeros((1, 1, 1, 1)), "v": np.ones((1, 1, 1, 1))}
    plain = Problem(**tensors, dtypes="float64")
    half, third = (plain.replace(o_scale=np.full((1, 1, 1, 1), x)) for x in (0.5, float(np.float32(1 / 3))))

    of_half, of_third = (
        forward_bound(intermediates(x), FP64.at("float64")).allowed["output"].item() for x in (half, third)
    )
    of_none = forward_bound(intermediates(plain), FP64.at("float64")).allowed["output"].item()
    assert of_half == pytest.approx(of_none + 2.0**-53, rel=1e-3)
    assert of_third == pytest.approx(of_none + 3 * 2.0**-53, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_drawn_scales_are_numbers_of_float32_in_every_dtype(dtype):
    for pattern in OPTIONS["o_scale"].patterns:
        d = Recipe(**SHAPE, o_scale=f"{pattern}@1111", dtypes=dtype, seed=5).problem().o_scale
        assert d == np.float32(d)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, 1 / 3])
def test_a_scale_is_a_number_of_float32_above_0(value):
    tensors = {name: np.ones((1, 1, 1, 1)) for name in "qkv"}

    with pytest.raises(ProblemError, match="o_scale must not contain a number that is not above 0"):
        Problem(**tensors, dtypes="float64", o_scale=np.full((1, 1, 1, 1), value))


def test_layers_and_linear_attention_have_no_scale():
    given = {"o_scale": np.ones((1, 1, 1, 1))}

    with pytest.raises(ProblemError, match="o_scale"):
        Problem(**{name: np.ones((1, 1, 1, 1)) for name in "qkv"}, feature_map="elu_plus_one", **given)
    assert OPTIONS["query_projection"].excludes(OPTIONS["o_scale"])
    for option in ("feature_map", "query_projection"):
        for fields in ({"output": "float8_e4m3fn"}, {"output_overflow": "saturates"}):
            with pytest.raises(KernelError, match="knows a cast to 8 bits, or one that saturates"):
                emulate("k", PRECISE, contract=replace(FUSED, **fields), supports=(*SUPPORTS, option))


def test_gradients_are_refused():
    with pytest.raises(KernelError, match="no theorem bounds gradients beside o_scale; leave o_scale or backward out"):
        emulate_both("k", PRECISE, supports=(*SUPPORTS, "o_scale"))
    with pytest.raises(KernelError, match="output='float8_e4m3fn' says nothing of gradients"):
        emulate_both("k", replace(PRECISE, output="float8_e4m3fn"))
    with pytest.raises(ContractError, match="output_overflow='saturates' says nothing of gradients"):
        gradient_readings(replace(PRECISE, output_overflow="saturates").at("float32"))
    x = torch.ones(1, 1, 2, 2)
    with pytest.raises(CallError, match="no gradients beside o_scale"):
        assert_attention_gradients({"dq": x}, x, x, x, x, o_scale=torch.ones(()))
    with pytest.raises(ContractError, match="must be one of"):
        Contract(output_overflow="wraps")


def test_a_glance_clears_no_row_of_a_scaled_output():
    """A part of the bound that knows no scale has a larger underflow than an output with a small scale."""
    assert not is_plain(Recipe(**SHAPE, o_scale="half@1111").problem())


@pytest.mark.parametrize("packed", [False, True])
def test_an_assertion_reads_a_stored_output_times_its_scale(packed):
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, generator=rng) for _ in range(3))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    scale = torch.tensor(float(o.abs().max()) / 448)
    contract = Contract(output="float8_e4m3fn")
    words = {}
    stored = (o / scale).to(torch.float8_e4m3fn)
    if packed:
        q, k, v, stored = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, stored))
        ends = torch.tensor([0, 6, 12], dtype=torch.int32)
        words = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 6, "max_seqlen_k": 6}

    found = assert_attention(stored, q, k, v, output_scale=scale, contract=contract, **words)
    assert found.ratio > 0.5
    with pytest.raises(NotAttention, match="output"):
        assert_attention(
            stored, q, k, v, o_scale=1 / scale, contract=replace(contract, output_overflow="saturates"), **words
        )
    with pytest.raises(NotJudged, match="may overflow"):
        assert_attention(stored, q, k, v, o_scale=scale / 4, contract=contract, **words)
