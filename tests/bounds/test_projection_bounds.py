"""Layers of one number each, whose projections and cotangents enter products in formats of their own."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.bounds.operand_bounds import value_error
from attn_spec.bounds.theorems import forward_bound, gradient_bound
from attn_spec.contract.presets import EAGER, FP32, FUSED
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem

PROJECTIONS = tuple(f"{name}_projection" for name in ("query", "key", "value", "output"))
HALF_PRODUCTS = replace(PRECISE, multiplicands="float16")
KERNEL = emulate_both("half_products", HALF_PRODUCTS, supports=("lse", *PROJECTIONS))


def layer(**changes):
    numbers = dict.fromkeys(("q", "k", "v", *PROJECTIONS), 1.0) | changes
    return Problem(**{name: np.full((1, 1, 1, 1), x) for name, x in numbers.items()}, dtypes="float32")


#: A factor that float16 does not hold, and one that makes their product small.
OVERFLOWING = {
    "q": {"q": 1e5, "query_projection": 2.0**-10},
    "W_Q": {"query_projection": 1e5, "q": 2.0**-10},
    "v": {"v": 1e5, "value_projection": 2.0**-10},
    "W_O": {"output_projection": 1e5, "value_projection": 2.0**-10},
}


@pytest.mark.parametrize("changes", OVERFLOWING.values(), ids=OVERFLOWING)
def test_nothing_is_said_of_a_factor_that_overflows_on_entry(changes):
    problem = layer(**changes)
    answer = Subject(KERNEL, "float32")(problem)

    judgement = judge(problem, HALF_PRODUCTS.at("float32"), output=answer["output"])

    assert not np.isfinite(answer["output"]).all()
    assert not judgement.refuted
    assert not judgement.exercised


def test_such_a_factor_is_known_to_those_who_multiply_in_float32():
    x = intermediates(layer(**OVERFLOWING["q"]))

    assert forward_bound(x, FP32.at("float32")).domain_of("output").all()
    assert not forward_bound(x, HALF_PRODUCTS.at("float32")).domain_of("output").any()


def test_the_cotangent_of_a_layer_enters_in_the_format_of_its_output():
    """Heads whose outputs are in half meet dO of float32, which products in half round."""
    contract = replace(FP32, operands="float16", multiplicands="float16")
    x = intermediates(layer())
    g = gradient_intermediates(x, np.full((1, 1, 1, 1), 1 + 1 / 3))

    given, rounded = (
        gradient_bound(x, g, replace(contract, output=dtype).at("float32")).allowed["dv"]
        for dtype in ("float16", "float32")
    )

    assert (rounded - given).item() == pytest.approx((1 + 1 / 3) * 2.0**-11, rel=0.01)


def test_outputs_of_heads_are_rounded_to_the_format_of_operands_even_where_no_tensor_has_it():
    """Values of 1 + u and nearly 1 + 3 u become 1 and 1 + 2 u in tf32, and their mean, 1 + u, becomes 1."""
    u = 2.0**-11
    problem = layer(q=0.0).replace(k=np.ones((1, 1, 2, 1)), v=np.array([[[[1 + u], [1 + 2.9375 * u]]]]))
    c = replace(FP32, operands="tf32").at("float32")
    x, one = intermediates(problem), np.ones((1, 1, 1, 1))
    g = gradient_intermediates(x, one)

    output = judge(problem, c, output=one)
    gradient = judge_gradients(problem, c, one, g.gradients | {"doutput_projection": one})

    for judgement in (output, gradient):
        assert judgement.exercised
        assert not judgement.refuted
        assert judgement.ratio > 0.95


@pytest.mark.parametrize("bias", [False, True], ids=["heads", "the bias first"])
def test_heads_may_be_added_one_after_the_other_as_they_are_stored(bias):
    """1 + 2^-11 + 2^-11 + .. stays 1 in half, as where a loop over heads adds products in the dtype of the layer."""
    heads, half = 17, np.float16
    weights = np.full((1, heads, 1, 1), 2.0**-11)
    options = {f"{name}_projection": np.ones((1, heads, 1, 1)) for name in ("query", "key", "value")}
    if bias:
        options["output_projection_bias"] = np.ones((1, 1, 1, 1))
    else:
        weights[:, 0] = 1.0
    one = np.ones((1, 1, 1, 1))
    problem = Problem(q=one, k=one, v=one, output_projection=weights, dtypes="float16", **options)

    total = half(1) if bias else half(0)
    for weight in weights.ravel():
        total = half(total + half(weight))
    judgement = judge(problem, EAGER.at("float16"), output=np.full((1, 1, 1, 1), float(total)))

    assert total == 1
    assert judgement.exercised
    assert not judgement.refuted
    assert judge(problem, FUSED.at("float16"), output=one).refuted


def test_what_is_summed_enters_an_accumulator_that_is_narrower():
    """Rows of dO of 1 + u and of nearly u are 1 and nearly u in half, and so is their sum 1."""
    u, half = 2.0**-11, np.float16
    problem = layer(output_projection_bias=1.0).replace(q=np.ones((1, 1, 2, 1)))
    dO = np.array([[[[1 + u], [u * (1 - 2.0**-10)]]]])
    c = replace(FP32, score_accumulation="float16").at("float32")

    total = half(half(dO[0, 0, 0, 0]) + half(dO[0, 0, 1, 0]))
    exact = gradient_intermediates(intermediates(problem), dO).gradients
    judgement = judge_gradients(
        problem, c, dO, exact | {"doutput_projection_bias": np.full((1, 1, 1, 1), total, float)}
    )

    assert total == 1
    assert judgement.exercised
    assert not judgement.refuted


def test_a_bias_of_a_wider_dtype_may_be_rounded_first():
    """Under autocast a bias in float32 of nearly 1 + u is 1 in half, and so is its sum with a product of nearly u."""
    u, half = 2.0**-11, np.float16
    little = u * (1 - 2.0**-10)
    problem = layer(v=little, value_projection_bias=1 + little).replace(
        dtypes={"qkv": "float16", "value_projection_bias": "float32"}
    )
    x = intermediates(problem)

    rounded = half(half(1 + little) + half(little))

    assert rounded == 1
    assert x.v.item() - rounded <= value_error(x, EAGER.at("float16")).item()
