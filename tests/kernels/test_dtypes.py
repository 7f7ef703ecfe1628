"""Tensors of several dtypes in one call: a bias of its own dtype, an output and gradients of the contract's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attn_spec.reports.proof.plain.widths import float32_bias, float32_output

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.emulation import PRECISE, emulate_both
from attn_spec.evidence import recording, script
from attn_spec.judgement.measure import judge_gradients
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe, RecipeError
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

SHAPE = {"query_length": 3, "key_length": 5, "head_dim": 4, "value_dim": 2}
RECIPE = Recipe(**SHAPE, bias="normal@11QK", dtypes={"qkv": "bfloat16", "bias": "float32"})
BIASED = Subject(float32_bias, "bfloat16")
OUTPUT = "accuracy.output_is_within_its_bound"
DBIAS = "gradients.bias_gradients_are_within_their_bounds"


def verdict(property_id, found):
    profile = replace(PROFILES["smoke"], examples=40, floor=1, seconds=60.0, shrink_seconds=1.0)
    row, _ = search(load_all()[property_id], Subject(found, "bfloat16"), profile, seed=0)
    return row.verdict


def test_a_bias_of_its_own_dtype_has_bits_that_no_input_has():
    problem = RECIPE.problem()

    assert problem.dtype_of("bias") == "float32"
    assert problem.dtype_of("q") == "bfloat16"
    assert not bits.is_representable(problem.bias, "bfloat16")
    assert bits.is_representable(problem.bias, "float32")
    assert bits.is_representable(problem.q, "bfloat16")


def test_recipes_and_problems_with_it_are_written_and_read():
    problem = RECIPE.problem()

    assert "dtypes=(('qkv', 'bfloat16'), ('bias', 'float32'))" in repr(RECIPE)
    assert Recipe.from_json(RECIPE.to_json()) == RECIPE
    again = Problem.from_json(problem.to_json())
    assert again.dtypes == (("qkv", "bfloat16"), ("bias", "float32"))
    assert bits.identical(again.bias, problem.bias).all()
    assert "dtypes=(('qkv', 'bfloat16'), ('bias', 'float32'))" in repr(again)


def test_the_kernel_is_given_that_dtype_and_gives_its_gradient_in_it():
    seen = []

    @kernel(
        framework="torch", dtypes=("bfloat16",), supports=("bias", "backward"), option_dtypes={"bias": "float32"},
        contract=float32_bias.contract,
    )  # fmt: skip
    def noting(q, k, v, *, bias=None):
        seen.append((q.dtype, bias.dtype))
        return float32_bias(q, k, v, bias=bias)

    problem, dO = RECIPE.problem(), np.ones((1, 1, 3, 2))
    found = Subject(noting, "bfloat16").gradients(problem, dO)

    assert seen == [(torch.bfloat16, torch.float32)]
    assert bits.is_representable(found["dq"], "bfloat16")
    assert not bits.is_representable(found["dbias"], "bfloat16")
    judgement = judge_gradients(problem, noting.contract_for("bfloat16"), dO, found)
    assert not judgement.refuted
    assert {m.name: m.dtype for m in judgement.measurements} == {
        **dict.fromkeys(("dq", "dk", "dv"), "bfloat16"), "dbias": "float32"
    }  # fmt: skip


def attends(narrow):
    """Return the plain kernel, with ``narrow`` applied to the bias."""

    def attention(q, k, v, *, bias=None):
        return float32_bias(q, k, v, bias=None if bias is None else narrow(bias))

    return replace(float32_bias, function=attention, supports=frozenset({"bias", "backward"}), name="narrow")


class OfGradient(torch.autograd.Function):
    """Rounds a gradient to bfloat16 on its way back."""

    @staticmethod
    def forward(ctx, x):
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        del ctx
        return gradient.bfloat16().float()


@pytest.mark.parametrize(
    ("property_id", "narrow", "expected"),
    [
        (OUTPUT, lambda bias: bias, Verdict.HELD),
        (OUTPUT, lambda bias: bias.bfloat16().float(), Verdict.REFUTED),
        (DBIAS, lambda bias: bias, Verdict.HELD),
        (DBIAS, OfGradient.apply, Verdict.REFUTED),
    ],
)
def test_bits_that_are_lost_of_a_bias_or_of_its_gradient_are_missed(property_id, narrow, expected):
    assert verdict(property_id, attends(narrow)) == expected


def test_an_output_has_the_dtype_of_the_contract():
    problem = Recipe(**SHAPE, dtypes="bfloat16").problem()
    output = Subject(float32_output, "bfloat16")(problem)["output"]

    assert not bits.is_representable(output, "bfloat16")
    halved = replace(
        float32_output, function=lambda *tensors, **options: float32_output(*tensors, **options).bfloat16()
    )
    with pytest.raises(Misbehaviour, match="out has dtype bfloat16; it must be float32"):
        Subject(halved, "bfloat16")(problem)


@pytest.mark.parametrize("gradients", ["float32", "float16", "float64"])
def test_gradients_of_a_backward_function_have_the_dtype_of_the_contract(gradients):
    made = emulate_both("k", replace(PRECISE, gradients=gradients, output="float64"), option_dtypes={"bias": "float16"})
    problem = RECIPE.problem().replace(dtypes={"qkv": "float32", "bias": "float16"}, bias=np.ones((1, 1, 3, 5)))
    found = Subject(made, "float32").gradients(problem, dO := np.full((1, 1, 3, 2), 1 + 2.0**-40))

    for name in ("dq", "dk", "dv"):
        assert bits.is_representable(found[name], gradients)
    assert bits.is_representable(found["dbias"], "float16")
    assert not judge_gradients(problem, made.contract_for("float32"), dO, found).refuted


def test_the_script_of_a_case_gives_each_tensor_its_dtype():
    recorder = recording.Recorder(float32_bias)
    Subject(float32_bias.wrapped(recorder), "bfloat16")(RECIPE.problem())

    (call,) = recorder.calls
    assert [tensor.dtype for tensor in call.tensors] == ["bfloat16"] * 3
    assert call.options["bias"].dtype == "float32"
    assert "'float32')}" in script._call(call)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": "float32"}, "dtypes must name q, k, v or options that are tensors of numbers .*, not 'mask'"),
        ({"bias": "float8"}, "dtypes must be of float64, float32, float16, bfloat16, for bias, not 'float8'"),
        ({"q": "float16"}, "dtypes must name each of q, k and v once, as 'qkv' or apart, not qkv, q"),
        ("bias", "option_dtypes must be a mapping, not 'bias'"),
    ],
)
def test_other_options_and_dtypes_are_refused_by_name(given, message):
    with pytest.raises(KernelError, match=f"narrow: .*{message}|{message}"):
        kernel(framework="torch", dtypes=("float32",), option_dtypes=given, name="narrow")(lambda q, k, v: v)
    if isinstance(given, dict):
        with pytest.raises(ProblemError, match=message):
            RECIPE.problem().replace(dtypes={"qkv": "bfloat16", **given})
        with pytest.raises(RecipeError, match=message):
            replace(RECIPE, dtypes={"qkv": "bfloat16", **given})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float16", "float16"),
        ({"qkv": "float16"}, "float16"),
        ({"q": "float16", "kv": "float16"}, "float16"),
        ([["bias", "float32"], ["vk", "float16"], ["q", "float16"]], (("qkv", "float16"), ("bias", "float32"))),
        ({"qkv": "float16", "bias": "float16"}, (("qkv", "float16"), ("bias", "float16"))),
    ],
)
def test_dtypes_are_one_name_where_all_tensors_have_one(given, expected):
    assert Recipe(dtypes=given).problem().dtypes == Recipe(dtypes=given).dtypes == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias": "float32"}, "dtypes must name each of q, k and v once, as 'qkv' or apart, not none of them"),
        ({"q": "float16", "k": "float16"}, "dtypes must name each of q, k and v once, as 'qkv' or apart, not q, k"),
        ("q:float16,k:float16", "dtypes must name each of q, k and v once, as 'qkv' or apart, not q, k"),
        ("q:float16,kv:float8", "dtypes must be of float64, float32, float16, bfloat16, float8_.*, not 'float8'"),
        ([("qkv", "float16"), ("v", "float16")], "dtypes must name each of q, k and v once, .*, not qkv, v"),
        ([("qkv", "float16"), *[("bias", "float16")] * 2], "dtypes must name each option once, not qkv, bias, bias"),
        ({"": "float16"}, "dtypes must name q, k, v or options"),
        (None, "dtypes must be a dtype, or a mapping from names to dtypes, not None"),
        (("float16", "float32"), "dtypes must be a dtype, or a mapping from names to dtypes"),
    ],
)
def test_dtypes_that_no_problem_has_are_refused(given, message):
    with pytest.raises(RecipeError, match=message):
        Recipe(dtypes=given)
    with pytest.raises(ProblemError, match=message):
        RECIPE.problem().replace(dtypes=given)


def test_a_document_of_schema_3_is_read():
    problem = RECIPE.problem()

    for made in (RECIPE, problem):
        document = made.to_json()
        del document["dtypes"]
        again = type(made).from_json({**document, "dtype": "bfloat16", "option_dtypes": [["bias", "float32"]]})
        assert again.to_json() == made.to_json()
        assert type(made).from_json({**document, "dtype": "float64", "option_dtypes": []}).dtypes == "float64"


def test_a_bias_with_bits_that_its_dtype_lacks_is_refused():
    with pytest.raises(ProblemError, match="bias has values that float16 cannot represent"):
        RECIPE.problem().replace(dtypes={"qkv": "bfloat16", "bias": "float16"})


@pytest.mark.parametrize("stage", ["output", "gradients"])
def test_results_have_dtypes_not_other_formats(stage):
    with pytest.raises(ContractError, match=f"contract field {stage} must be one of"):
        Contract(**{stage: "tf32"})
