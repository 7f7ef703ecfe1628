"""The domain of gradients: each condition alone leaves out a gradient that could overflow, and no smaller one."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.sound import PRECISE
from attn_spec.error.gradient_bounds import gradient_bound
from attn_spec.error.intermediates import gradient_intermediates, intermediates
from tests.error.edge import Edge
from tests.one_head import float32_head as head

#: What a gradient passes through.
STAGES = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "score_gradients"),
    *("inner_accumulation", "gradient_accumulation", "partial_gradients", "gradients"),
)
NARROW_SCORES, NARROW_SUMS = {"stored_scores": "float16"}, {"gradient_accumulation": "float16"}
#: A gradient of some size: a problem and the only entry of its cotangent, the contract, sizes outside and inside.
GRADIENTS = {
    **{
        f"dP as {stage} holds it": Edge(lambda z: (head([1.0], [1.0], [z]), 1.0), {stage: "float16"}, 8e3, 2e3)
        for stage in STAGES
    },
    "dP times the scale": Edge(lambda z: (head([0.0], [0.0], [z], scale=4.0), 1.0), NARROW_SCORES, 2e3, 5e2),
    "dP times the softcap": Edge(lambda z: (head([0.0], [0.0], [z], softcap=4.0), 1.0), NARROW_SCORES, 2e3, 5e2),
    "dP times the scale over the softcap": Edge(
        lambda z: (head([0.0], [0.0], [z], scale=4.0, softcap=0.25), 1.0), NARROW_SCORES, 5e2, 1e2
    ),
    "dQ": Edge(lambda z: (head([0.0], [z, -z], [1.0, -1.0]), 1.0), NARROW_SUMS, 2.4e4, 2e3),
    "dK": Edge(lambda z: (head([z], [0.0, 0.0], [1.0, -1.0]), 1.0), NARROW_SUMS, 4e4, 4e3),
    "dV": Edge(lambda z: (head([0.0], [0.0], [0.0]), z), NARROW_SUMS, 2e4, 1e4),
}


@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients_that_could_overflow_are_outside_the_domain(what):
    edge = GRADIENTS[what]
    contract = replace(PRECISE, **edge.contract).at("float32")

    def found(size):
        problem, dO = edge.make(size)
        x = intermediates(problem)
        return gradient_bound(x, gradient_intermediates(x, np.full((1, 1, 1, 1), dO), None), contract).in_domain

    edge.check(what, found)
