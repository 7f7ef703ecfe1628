"""Layers of one number each, whose projections and cotangents enter products in formats of their own."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.error.intermediates import gradient_intermediates, intermediates
from attn_spec.error.presets import FP32
from attn_spec.error.theorems import forward_bound, gradient_bound
from attn_spec.judgement.measure import judge
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem

PROJECTIONS = tuple(f"{name}_projection" for name in ("query", "key", "value", "output"))
HALF_PRODUCTS = replace(PRECISE, multiplicands="float16")
KERNEL = emulate_both("half_products", HALF_PRODUCTS, supports=("lse", *PROJECTIONS))


def layer(**changes):
    numbers = dict.fromkeys(("q", "k", "v", *PROJECTIONS), 1.0) | changes
    return Problem(**{name: np.full((1, 1, 1, 1), x) for name, x in numbers.items()}, dtype="float32")


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
