"""Queries of 16 bits and caches of 8 bits: frameworks, the wire of isolation, verdicts, assertions, refusals."""

import ml_dtypes
import numpy as np
import pytest
import torch

from attn_spec import assert_attention, assert_attention_gradients, kernel
from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import FUSED
from attn_spec.contract.stages import contains
from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.isolation.tensors import array_of
from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.frameworks.framework import framework
from attn_spec.kernels.frameworks.numpy import NUMPY
from attn_spec.kernels.kernel import KernelError
from attn_spec.numbers import bits
from attn_spec.numbers.formats import EIGHT_BITS, FORMATS, narrowest
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.preflight import preflight
from attn_spec.search.verdict import Verdict
from attn_spec.testing import NotAttention

from .eight_bit_kernels import EIGHT, paged, rectangle, rounds_queries, swaps_formats
from .mixed_kernels import FACTS, loads_the_cache
from .test_mixed_dtypes import OUTPUT, verdict

FIRST = EIGHT[0]
SHAPE = {"query_length": 3, "key_length": 5, "head_dim": 4, "value_dim": 4}
CODES = np.arange(256, dtype=np.uint8)


def numbers(dtype):
    """Return all numbers of a format, and NaN."""
    with np.errstate(invalid="ignore"):
        return CODES.view(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_each_framework_holds_every_number(name, dtype):
    own, exact = framework(name), numbers(dtype)
    given = own.give(exact, dtype)

    assert own.dtype_of(given) == dtype
    assert bits.identical(own.take(given), exact).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_a_view_with_strides_and_the_wire_keep_every_bit(dtype):
    given = NUMPY.give(numbers(dtype)[:240].reshape(12, 20), dtype)

    view = NUMPY.placed(given, (3, 4), (40, 5), 7)
    assert (view.dtype.name, view.shape) == (dtype, (3, 4))
    assert bits.identical(
        NUMPY.take(view), NUMPY.take(given).reshape(-1)[7:][np.add.outer([0, 40, 80], [0, 5, 10, 15])]
    ).all()
    again = array_of(np.frombuffer(given.tobytes(), np.uint8), dtype)
    assert bits.identical(NUMPY.take(again), NUMPY.take(given).ravel()).all()
    assert bits.identical(NUMPY.take(NUMPY.vast(given, (50, 1))), NUMPY.take(given)).all()


@pytest.mark.parametrize("dtype", EIGHT)
@pytest.mark.parametrize("found", [paged, rectangle], ids=lambda found: found.name)
def test_a_cache_of_8_bits_that_is_loaded_into_16_holds(found, dtype):
    assert verdict(OUTPUT, found, dtype, 5) is Verdict.HELD


@pytest.mark.parametrize(
    ("property_id", "dtype"),
    [
        ("special_values.an_infinite_score_gives_no_number", EIGHT[0]),
        ("independence.the_layout_in_memory_has_no_influence", EIGHT[1]),
        ("online_rescaling.negating_v_negates_the_output", EIGHT[2]),
        ("online_rescaling.negating_q_and_k_changes_nothing", EIGHT[3]),
    ],
)
def test_properties_that_change_inputs_keep_to_their_dtype(property_id, dtype):
    assert verdict(property_id, rectangle, dtype, 5) is Verdict.HELD


def test_an_emulated_contract_holds():
    emulated = emulate("eight", PRECISE, dtypes=EIGHT, supports=[x for x in SUPPORTS if x != "empty"])

    assert verdict(OUTPUT, emulated, FIRST, 5) is Verdict.HELD


@pytest.mark.parametrize("wrong", [rounds_queries, swaps_formats], ids=lambda found: found.name)
def test_a_cache_that_is_read_wrong_is_refuted(wrong):
    assert verdict(OUTPUT, wrong, FIRST, 60) is Verdict.REFUTED


def test_a_format_of_16_bits_includes_them():
    assert [narrowest("bfloat16", name).name for name in EIGHT_BITS] == ["bfloat16"] * 5
    assert all(contains(FORMATS["float16"], FORMATS[name]) for name in EIGHT_BITS)
    assert not FORMATS["float8_e4m3fnuz"].includes(FORMATS["float8_e4m3fn"])
    assert FUSED.at("q:float16,kv:float8_e5m2fnuz").multiplicands == "float16"


def test_a_zero_of_a_format_without_a_negative_one_is_positive():
    problem = Recipe(**SHAPE, dtypes=EIGHT[2]).problem()
    negated = problem.replace(v=-np.zeros(problem.v.shape))

    assert not np.signbit(negated.v).any()
    assert np.signbit(problem.replace(q=-np.zeros(problem.q.shape)).q).all()
    assert Problem.from_json(negated.to_json()).digest_of_bits() == negated.digest_of_bits()


def test_a_number_that_the_format_has_not_is_refused():
    problem = Recipe(**SHAPE, dtypes=FIRST).problem()

    with pytest.raises(ProblemError, match="k has values that float8_e4m3fn cannot represent"):
        problem.replace(k=np.full(problem.k.shape, np.inf))
    with pytest.raises(ProblemError, match=r"dtypes must be of .*bfloat16, for bias, not 'float8_e4m3fn'"):
        problem.replace(dtypes={"qkv": "float32", "bias": "float8_e4m3fn"})


def test_queries_of_8_bits_need_another_dtype_of_the_output():
    with pytest.raises(ContractError, match="output is by default the dtype of q, float8_e4m3fn, of 8 bits"):
        FUSED.at("float8_e4m3fn")
    with pytest.raises(KernelError, match="output is by default the dtype of q, float8_e5m2"):
        kernel(**{**FACTS, "supports": ()}, dtypes=["float8_e5m2"])(loads_the_cache.function)
    at = Contract(output="bfloat16", multiplicands="bfloat16", probabilities="bfloat16").at("float8_e4m3fn")
    assert (at.output, at.gradients, at.softmax) == ("bfloat16", "bfloat16", "float32")


def test_gradients_of_inputs_of_8_bits_are_refused():
    made = kernel(**FACTS, dtypes=[FIRST])(loads_the_cache.function)
    q, k = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16), torch.ones(1, 1, 3, 4).to(torch.float8_e4m3fn)

    with pytest.raises(KernelError, match=f"no gradients of inputs of 8 bits, {FIRST}, are judged"):
        preflight(made)
    with pytest.raises(CallError, match=f"no gradients of inputs of 8 bits, {FIRST}, are judged"):
        assert_attention_gradients({"dq": q}, q, q, k, k, contract="fused", empty_row="zero")


def test_calls_with_a_cache_of_8_bits_are_asserted():
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 5, 16).bfloat16(), *(torch.randn(1, 2, 8, 16).to(torch.float8_e4m3fn) for _ in "kv")
    right, _ = rectangle.function(q, k, v)
    wrong, _ = rectangle.function(q.to(k.dtype).to(q.dtype), k, v)

    assert_attention(right, q, k, v, contract="fused")
    with pytest.raises(NotAttention, match=FIRST):
        assert_attention(wrong, q, k, v, contract="fused")
    pages = [x[0].transpose(0, 1).unflatten(0, (2, 4)) for x in (k, v)]
    ends = {"cu_seqlens_q": torch.tensor([0, 5]), "seqused_k": torch.tensor([8])}
    where = {**ends, "block_table": torch.tensor([[0, 1]]), "presentation": "paged"}
    assert_attention(right[0].transpose(0, 1), q[0].transpose(0, 1), *pages, contract="fused", **where)
    with pytest.raises(NotAttention, match=FIRST):
        assert_attention(wrong[0].transpose(0, 1), q[0].transpose(0, 1), *pages, contract="fused", **where)
