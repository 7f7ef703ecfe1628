"""Queries in one dtype, keys and values in others: declaration, contract, calls, verdicts, assertions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import Contract, assert_attention, kernel
from attn_spec.contract.contract import ContractError
from attn_spec.contract.presets import FUSED, UNDECLARED, check_said
from attn_spec.emulation.kernels import SUPPORTS, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import narrowest
from attn_spec.problem.dtypes import dtype_of, in_one_spelling, simplified, spelled
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from attn_spec.testing import NotAttention

from .mixed_kernels import FACTS, loads_the_cache, rounds_queries, rounds_weights, with_function

CACHE = "q:float32,kv:bfloat16"
OUTPUT = "accuracy.output_is_within_its_bound"
KEYS = "gradients.query_and_key_gradients_are_within_their_bounds"
VALUES = "gradients.value_gradients_are_within_their_bounds"
SCALED = "gradient_laws.scaling_the_cotangent_by_a_power_of_two_scales_the_gradients"
SHAPE = {"query_length": 3, "key_length": 5, "head_dim": 4, "value_dim": 4}


def verdict(property_id, found, dtype, examples=10):
    profile = replace(PROFILES["smoke"], examples=examples, floor=1, seconds=60.0, shrink_seconds=1.0)
    row, _ = search(load_all()[property_id], Subject(found, dtype), profile, seed=0)
    return row.verdict


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"q": "float32", "kv": "bfloat16"}, CACHE),
        ({"v": "bfloat16", "k": "bfloat16", "q": "float32"}, CACHE),
        ({"q": "float32", "k": "bfloat16", "v": "float32"}, "q:float32,k:bfloat16,v:float32"),
        ({"qk": "float16", "v": "float32"}, "qk:float16,v:float32"),
        ("kv:bfloat16, q:float32", CACHE),
        ({"q": "float16", "kv": "float16"}, "float16"),
    ],
)
def test_dtypes_of_inputs_have_one_spelling(given, expected):
    assert spelled(given) == simplified(given) == expected
    assert spelled(expected) == expected
    assert Recipe(**SHAPE, dtypes=given).problem().dtype == expected


def test_an_unknown_dtype_is_left_to_who_knows_what_to_say():
    assert in_one_spelling("kv:bfloat16,q:float32") == CACHE
    assert in_one_spelling("q:float8") == "q:float8"


def test_k_and_v_have_dtypes_of_their_own_and_options_that_of_q():
    assert [dtype_of(CACHE, name) for name in ("q", "k", "v", "bias")] == ["float32", "bfloat16", "bfloat16", "float32"]
    assert [dtype_of(CACHE, name, "float64") for name in ("q", "k", "v")] == ["float64", "bfloat16", "bfloat16"]
    own = simplified({"q": "float32", "kv": "bfloat16", "bias": "float16"})
    assert own == (("q", "float32"), ("kv", "bfloat16"), ("bias", "float16"))
    assert [dtype_of(own, name) for name in ("q", "v", "bias", "sinks")] == [
        "float32",
        "bfloat16",
        "float16",
        "float32",
    ]


def test_each_input_is_drawn_in_its_own_dtype_and_written_and_read():
    problem = Recipe(**SHAPE, dtypes=CACHE, regime="near_ties").problem()

    assert bits.is_representable(problem.q, "float32")
    assert not bits.is_representable(problem.q, "bfloat16")
    assert all(bits.is_representable(x, "bfloat16") for x in (problem.k, problem.v))
    assert len(np.unique(problem.k, axis=2)[0, 0]) > 1  # a unit in the last place of float32 would be rounded away
    again = Problem.from_json(problem.to_json())
    assert (again.dtype, again.digest_of_bits()) == (CACHE, problem.digest_of_bits())
    assert Recipe.from_json(problem.recipe.to_json()) == problem.recipe


@pytest.mark.parametrize(
    ("dtype", "multiplicands"),
    [
        (CACHE, "float32"),
        ("q:bfloat16,kv:float32", "float32"),
        ("q:float16,kv:bfloat16", "tf32"),
        ("q:float32,kv:float64", "float64"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_inputs_enter_products_in_a_format_that_includes_them_all(dtype, multiplicands):
    contract = FUSED.at(dtype)

    assert contract.multiplicands == multiplicands
    assert contract.output == contract.probabilities == dtype_of(dtype, "q")
    assert contract.softmax == ("float64" if "float64" in dtype else "float32")
    assert replace(FUSED, multiplicands="bfloat16").at(dtype).multiplicands == "bfloat16"


def test_the_narrowest_format_is_that_of_fewest_bits_then_of_least_range():
    assert [narrowest(*names).name for names in (["float16"], ["float16", "bfloat16"], ["float16", "float32"])] == [
        "float16", "tf32", "float32",
    ]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", loads_the_cache.dtypes)
@pytest.mark.parametrize("property_id", [OUTPUT, KEYS, VALUES, SCALED])
def test_a_cache_that_is_loaded_into_a_wider_format_holds(property_id, dtype):
    assert verdict(property_id, loads_the_cache, dtype) is Verdict.HELD


@pytest.mark.parametrize("dtype", loads_the_cache.dtypes)
def test_an_emulated_contract_holds(dtype):
    emulated = emulate_both("mixed", PRECISE, dtypes=[dtype], supports=[x for x in SUPPORTS if x != "empty"])

    assert verdict(OUTPUT, emulated, dtype, 6) is Verdict.HELD
    assert verdict(KEYS, emulated, dtype, 4) is Verdict.HELD


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(rounds_queries, {"multiplicands": "bfloat16"}), (rounds_weights, {"probabilities": "bfloat16"})],
)
def test_what_is_rounded_to_the_dtype_of_the_cache_must_be_said(wrong, said):
    assert verdict(OUTPUT, with_function(wrong), CACHE) is Verdict.REFUTED
    assert verdict(OUTPUT, with_function(wrong, contract=Contract(**said)), CACHE) is Verdict.HELD


def test_the_kernel_is_given_these_dtypes_and_gives_gradients_in_them():
    seen = []

    def noting(q, k, v, **options):
        seen.append(tuple(str(x.dtype) for x in (q, k, v)))
        return loads_the_cache.function(q, k, v, **options)

    problem = Recipe(**SHAPE, dtypes=CACHE).problem()
    found = Subject(with_function(noting), CACHE).gradients(problem, np.ones(problem.output_shape))

    assert seen == [("torch.float32", "torch.bfloat16", "torch.bfloat16")]
    assert not bits.is_representable(found["dq"], "bfloat16")
    assert bits.is_representable(found["dk"], "bfloat16")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"dtypes": [{"q": "float32"}]}, "dtypes must name each of q, k and v once"),
        ({"dtypes": {"q": "float32", "kv": "bfloat16"}}, "dtypes must be several, .* not one mapping"),
        ({"dtypes": [{"qkv": "float32", "bias": "float16"}]}, "the dtypes of options are option_dtypes="),
        ({"dtypes": ["q:float32,kv:float8"]}, "dtypes must be of .*, not 'float8'"),
        ({"dtypes": [CACHE], "contract": UNDECLARED}, f"inputs of several dtypes, {CACHE}, need a contract"),
        (
            {"dtypes": [CACHE], "presentation": "THD_qkv", "supports": ()},
            "q and k and v must have one dtype, since they are one",
        ),
        ({"dtypes": ["qk:float32,v:bfloat16"], "supports": ("latent", "dv")}, "k and v must have one dtype"),
    ],
)
def test_dtypes_that_no_kernel_takes_are_refused(facts, says):
    with pytest.raises(KernelError, match=says):
        kernel(**{**FACTS, **facts})(loads_the_cache.function)


def test_a_dtype_is_asked_for_in_any_order_and_refused_with_those_that_are_declared():
    (subject,) = preflight(loads_the_cache, ["kv:bfloat16,q:float32"]).subjects

    assert subject.dtype == CACHE
    with pytest.raises(KernelError, match=f"declares {CACHE}, q:float16,kv:bfloat16, .*, not bfloat16"):
        preflight(loads_the_cache, ["bfloat16"])
    with pytest.raises(KernelError, match=r"the dtypes q:float32 must name each of q, k and v once"):
        preflight(loads_the_cache, ["q:float32"])


def test_who_declares_nothing_says_in_which_dtype_products_are_computed():
    check_said(UNDECLARED, "float32")
    check_said(FUSED, CACHE)
    with pytest.raises(ContractError, match=f"inputs of several dtypes, {CACHE}, need a contract"):
        check_said(UNDECLARED, CACHE)


def test_a_call_of_several_dtypes_is_asserted_under_a_contract():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 16), *(torch.randn(2, 2, 7, 16).bfloat16() for _ in "kv")
    right, _ = loads_the_cache.function(q, k, v)
    wrong, _ = rounds_queries(q, k, v)

    assert_attention(right, q, k, v, contract="fused")
    with pytest.raises(NotAttention, match=CACHE):
        assert_attention(wrong, q, k, v, contract="fused")
    with pytest.raises(CallError, match=f"inputs of several dtypes, {CACHE}, need a contract"):
        assert_attention(right, q, k, v)
