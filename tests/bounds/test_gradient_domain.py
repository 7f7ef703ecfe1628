"""The domain of gradients: each condition alone leaves out a gradient that could overflow, and no smaller one."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.backward.gradient_bounds import gradient_bound
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.emulation.sound import PRECISE
from tests.bounds.edge import Edge
from tests.one_head import float32_head as head

#: Stages that a score gradient passes through.
STAGES = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "score_gradients"),
    *("products", "inner_accumulation", "gradient_accumulation"),
)


def opposite(z, **options):
    """Make two keys of one score and opposite values: each score gradient is z / 2 for a cotangent of 1."""
    return head([0.0], [0.0, 0.0], [z, -z], **options)


NARROW_SCORES, NARROW_SUMS = {"stored_scores": "float16"}, {"gradient_accumulation": "float16"}
#: A gradient of some size: a problem and the only entry of its cotangent, the contract, sizes outside and inside.
GRADIENTS = {
    **{
        f"dP as {stage} holds it": Edge(lambda z: (head([1.0], [1.0], [z]), 1.0), {stage: "float16"}, 2.0**16, 6.5e4)
        for stage in STAGES
    },
    "dP of a hidden key, of a row that sees none": Edge(
        lambda z: (head([1.0], [1.0], [z], mask=np.zeros((1, 1, 1, 1), dtype=bool)), 1.0), NARROW_SCORES, 2.0**16, 6.5e4
    ),
    "dP - D": Edge(lambda z: (head([1.0], [12.0, 0.0], [z, -z]), 1.0), NARROW_SCORES, 2.0**15, 3.25e4),
    "dS times the scale": Edge(lambda z: (opposite(z, scale=4.0), 1.0), NARROW_SCORES, 2.0**15, 3.2e4),
    "dS times the softcap": Edge(lambda z: (opposite(z, softcap=4.0), 1.0), NARROW_SCORES, 2.0**15, 3.2e4),
    "dS times the scale over the softcap": Edge(
        lambda z: (opposite(z, scale=4.0, softcap=0.25), 1.0), NARROW_SCORES, 2.0**13, 8e3
    ),
    "dQ": Edge(lambda z: (head([0.0], [z, -z], [1.0, -1.0]), 1.0), NARROW_SUMS, 2.0**16, 6.5e4),
    "dK": Edge(lambda z: (head([z], [0.0, 0.0], [1.0, -1.0]), 1.0), NARROW_SUMS, 2.0**17, 1.3e5),
    "dV": Edge(lambda z: (head([0.0], [0.0], [0.0]), z), NARROW_SUMS, 2.0**16, 6.5e4),
    "dP of a value and a cotangent that each fit": Edge(
        lambda z: (head([1.0], [1.0], [256.0]), z / 256), {"products": "float16"}, 2.0**16, 6.5e4
    ),
    "dV by rounded products": Edge(lambda z: (head([0.0], [0.0], [0.0]), z), {"products": "float16"}, 2.0**16, 6.5e4),
}

#: Gradients of options, which are sums over all rows: of 64 rows that are equal.
ROWS = 64
ONE = np.ones((1, 1, 1, 1))
LAYERS = {"score_key_weight": ONE, "score_query_weight": ONE}
OPTIONS = {
    "dbias": Edge(lambda z: head([0.0] * ROWS, [0.0, 0.0], [z, -z], bias=np.zeros((1, 1, 1, 2))), {}, 2.1e3, 1.9e3),
    "dscore_weight": Edge(lambda z: head([1.0] * ROWS, [32.0, -32.0], [z, -z], score_weight=ONE / 1024), {}, 33, 29),
    "dscore_vector": Edge(
        lambda z: head([0.0] * ROWS, [3.0, -3.0] * 2, [z, -z] * 2, score_vector=ONE, **LAYERS), {}, 2.5e3, 2e3
    ),
}


def backward(problem, contract, cotangent):
    """Return the bound for a cotangent with all its entries the same."""
    x = intermediates(problem)
    return gradient_bound(x, gradient_intermediates(x, np.full(x.O.shape, cotangent), None), contract)


@pytest.mark.parametrize("stage", ["products", "gradient_accumulation", "partial_gradients", "gradients"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_gradient_of_an_option_whose_sum_could_overflow_is_left_out(name, stage):
    edge = OPTIONS[name]
    contract = replace(PRECISE, **{stage: "float16"}).at("float32")
    edge.check(f"{name} in {stage}", lambda z: backward(edge.make(z), contract, 1.0).domain_of(name))
    assert backward(edge.make(edge.outside), contract, 1.0).domain_of("dk").all()


def test_a_gradient_of_an_option_may_overflow_in_its_own_dtype():
    problem = OPTIONS["dbias"].make(2.1e3).replace(dtypes={"qkv": "float32", "bias": "float16"})
    assert not backward(problem, PRECISE.at("float32"), 1.0).domain_of("dbias").any()
    assert backward(problem, PRECISE.at("float32"), 1.0).domain_of("dq").all()


def test_a_gradient_of_an_input_may_overflow_behind_its_operand():
    """dK is W^T of what fits, and too large for float16."""
    contract = replace(PRECISE, gradients="float16").at("float32")
    for size, inside in ((6e4, False), (1e3, True)):
        problem = head([1.0], [0.0, 0.0], [4.0, -4.0], score_weight=size * ONE, scale=1.0)
        assert backward(problem, contract, 1.0).domain_of("dk").all() == inside


@pytest.mark.parametrize("what", GRADIENTS)
def test_gradients_that_could_overflow_are_outside_the_domain(what):
    edge = GRADIENTS[what]
    contract = replace(PRECISE, **edge.contract).at("float32")

    def found(size):
        problem, dO = edge.make(size)
        bound = backward(problem, contract, dO)
        return bound.domain_of("dq") & bound.domain_of("dk").all() & bound.domain_of("dv").all()

    edge.check(what, found)


def test_a_row_outside_the_domain_leaves_dq_of_others_inside():
    """The row's own dQ is arbitrary, and so are dK and dV of its group, to which it adds infinity times 0 at least."""
    q = np.ones((1, 4, 3, 1))
    q[0, 1, 2] = 7e4
    problem = head(np.ones(3), [1.0, 2.0], [1.0, 2.0]).replace(
        q=q, k=np.ones((1, 2, 2, 1)), v=np.arange(4.0).reshape(1, 2, 2, 1)
    )
    bound = backward(problem, replace(PRECISE, stored_scores="float16").at("float32"), 1.0)

    assert np.argwhere(~bound.rows).tolist() == [[0, 1, 2]]
    assert bound.keys.tolist() == [[[False, False], [True, True]]]
    assert not bound.whole


def test_a_sum_that_overflows_leaves_other_keys_inside():
    problem = head([1.0], [0.0, 0.0], [1.0, -1.0])
    masked = problem.replace(
        q=np.array([[[[1.0], [1.3e5]]]]), k=np.zeros((1, 1, 3, 1)), v=np.array([[[[1.0], [-1.0], [0.5]]]]),
        mask=np.array([[[[True, True, True], [False, True, True]]]]),
    )  # fmt: skip
    bound = backward(masked, replace(PRECISE, gradient_accumulation="float16").at("float32"), 1.0)

    assert bound.rows.all()
    assert bound.keys.tolist() == [[[True, True, True]]]
    beyond = masked.replace(q=np.array([[[[1.0], [1e6]]]]))
    bound = backward(beyond, replace(PRECISE, gradient_accumulation="float16").at("float32"), 1.0)
    assert bound.keys.tolist() == [[[True, False, False]]]
