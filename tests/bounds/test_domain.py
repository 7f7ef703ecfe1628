"""The domain: each condition alone leaves out a row that could overflow, and not the same row with smaller numbers."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.intermediates import intermediates
from attn_spec.emulation.sound import PRECISE
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from tests.bounds.edge import Edge
from tests.one_head import float32_head as head
from tests.one_head import one_head


def light(v):
    """Make a value of weight e^-40 beside one of 0: neither a sum nor the output is as large."""
    return head([1.0], [40.0, 0.0], [0.0, v])


def bias(x):
    return np.full((1, 1, 1, 1), x)


#: Cases that could overflow: a problem of some size, the contract, a size outside the domain and one inside.
CASES = {
    "sums of values": Edge(lambda v: head([1.0], [0.0, 0.0], [v, -v]), {}, outside=2.0**127, inside=1.875 * 2.0**126),
    "sums of values whose weights pass 1": Edge(
        lambda v: head([1.0], [20.0], [v]),
        {"reference": "zero", "reference_range": 20.0},
        outside=1.25 * 2.0**99,
        inside=2.0**99,
    ),
    "sums of values under weights that sum to 1": Edge(
        lambda v: head([1.0], [0.0, 0.0], [v, -v]),
        {"normalize": "before_product", "output_accumulation": "float16"},
        outside=2.0**16,
        inside=6.5e4,
    ),
    "an inner accumulator": Edge(
        lambda v: head([1.0], [0.0, 0.0], [v, -v]),
        {"inner_accumulation": "float16", "inner_terms": 2},
        outside=2.0**15,
        inside=3.2e4,
    ),
    "sums of values, rounded to the softmax's format": Edge(
        lambda v: head([1.0], [0.0, 0.0], [v, -v]),
        {"softmax": "float16"},
        outside=2.0**15,
        inside=3.2e4,
    ),
    "sums of values of little weight, rounded to the softmax's format": Edge(
        lambda v: head([1.0], [4.0, 0.0], [0.0, v]), {"softmax": "float16"}, outside=3.6e6, inside=3.5e6
    ),
    "sums of values under weights of a distant maximum": Edge(
        lambda v: head([1.0], [0.0], [v]), {"softmax": "float16", "reference_slack": 5.0}, 445, 435
    ),
    "sums of values under weights of a reference of zero": Edge(
        lambda v: head([1.0], [5.0], [v]),
        {"softmax": "float16", "reference": "zero", "reference_range": 5.0},
        outside=445,
        inside=435,
    ),
    "sums of values of a part, normalized in the softmax's format": Edge(
        lambda v: head([1.0], [40.0, 0.0, 0.0], [0.0, v, v]),
        {"lse_merges": 1, "softmax": "float16"},
        outside=2.0**15,
        inside=3.2e4,
    ),
    "merged outputs, normalized in the softmax's format": Edge(
        light, {"lse_merges": 1, "softmax": "float16", "normalize": "before_product"}, outside=6e4, inside=5.5e4
    ),
    "row sums": Edge(
        lambda n: head([1.0], [0.0] * n, [1.0] * n),
        {"row_sum": "float16", "reference_slack": 4.0},
        outside=815,
        inside=800,
    ),
    "the reciprocal of a row sum": Edge(
        lambda n: head([1.0], [0.0] * n, [1.0] * n),
        {"softmax": "float16", "reference_slack": 4.0},
        outside=305,
        inside=295,
    ),
    "merged outputs": Edge(light, {"lse_merges": 1, "partial_outputs": "float16"}, outside=2.0**16, inside=6.5e4),
    "differences of merged outputs": Edge(
        light, {"lse_merges": 1, "partial_outputs": "float16", "merging": "difference"}, outside=2.0**15, inside=3.2e4
    ),
    "outputs normalized after every tile": Edge(
        light, {"normalize": "every_tile", "output_accumulation": "float16"}, outside=2.0**16, inside=6.5e4
    ),
    "products of a tile, normalized before others are known": Edge(
        light, {"normalize": "every_tile", "inner_accumulation": "float16"}, outside=2.0**16, inside=6.4e4
    ),
    "products of a part, normalized before others are known": Edge(
        light,
        {"lse_merges": 1, "normalize": "before_product", "output_accumulation": "float16"},
        outside=2.0**16,
        inside=6.4e4,
    ),
    "products of scores": Edge(
        lambda k: head([1.0], [k], [1.0]), {"products": "float16"}, outside=2.0**16, inside=6.5e4
    ),
    "products of weights and values": Edge(
        lambda v: head([1.0], [0.0, 0.0], [v, -v]), {"products": "float16"}, outside=2.0**15, inside=3.2e4
    ),
    "products of a tile that are rounded, normalized before others are known": Edge(
        light, {"normalize": "every_tile", "products": "float16"}, outside=2.0**16, inside=6.4e4
    ),
    "scores in an inner accumulator": Edge(
        lambda k: head([1.0], [k], [1.0]),
        {"inner_accumulation": "float16", "inner_terms": 2},
        outside=2.0**16,
        inside=6.5e4,
    ),
    "scores less the maximum": Edge(
        lambda k: head([1.0], [k], [1.0]), {"softmax": "float16"}, outside=2.0**16, inside=6.5e4
    ),
    "scores times the scale": Edge(
        lambda k: head([1.0], [k], [1.0], scale=8.0),
        {"score_accumulation": "float16"},
        outside=2.0**13,
        inside=8.1e3,
    ),
    "scores and their bias": Edge(
        lambda b: head([0.0], [0.0], [1.0], bias=bias(b)), {"stored_scores": "float16"}, outside=2.0**16, inside=6.5e4
    ),
    "scores in base 2 as they are stored": Edge(
        lambda q: head([q], [1.0], [1.0]),
        {"stored_scores": "float16", "exponent": "base2"},
        outside=4.6e4,
        inside=4.5e4,
    ),
    "a bias in base 2 as it is stored": Edge(
        lambda b: head([2e4], [-1.0], [1.0], bias=bias(b)),
        {"stored_scores": "float16", "exponent": "base2"},
        outside=4.6e4,
        inside=4.5e4,
    ),
    "scores and their bias before ALiBi": Edge(
        lambda b: head([1.0], [0.0, 4e4], [1.0, 1.0], scale=1.0, bias=np.array([[[[0.0, b]]]]), alibi_slopes=bias(1e4)),
        {"stored_scores": "float16", "alibi": "distance"},
        outside=2.6e4,
        inside=2.5e4,
    ),
    "a bias divided by the scale": Edge(
        lambda b: head([0.0], [0.0], [1.0], scale=2.0**-6, bias=bias(b)),
        {"score_accumulation": "float16"},
        outside=2.0**10,
        inside=1.0e3,
    ),
    "the inverse of a scale that a bias is divided by": Edge(
        lambda s: head([0.0], [0.0], [1.0], scale=s, bias=bias(1.0)),
        {"score_accumulation": "float16"},
        outside=2.0**14,
        inside=2.0**12,
    ),
    "scaled queries": Edge(
        lambda q: head([q], [2.0**-10], [1.0], scale=128.0, dtypes="float16"),
        {"scale_on": "operands"},
        outside=360.0,
        inside=350.0,
    ),
    "scaled queries as they are stored": Edge(
        lambda q: head([q], [2.0**-10], [1.0], scale=128.0),
        {"scale_on": "operands", "stored_scores": "float16"},
        outside=360.0,
        inside=350.0,
    ),
    "queries divided by the softcap": Edge(
        lambda q: head([q], [2.0**-10], [1.0], softcap=2.0**-5, dtypes="float16"),
        {"scale_on": "operands"},
        outside=1450.0,
        inside=1400.0,
    ),
    "operands as they enter": Edge(
        lambda v: head([1.0], [0.0], [v]),
        {"multiplicands": "float16", "probabilities": "work"},
        outside=2.0**16,
        inside=6.5e4,
    ),
    "outputs of the softmax": Edge(
        lambda v: head([1.0], [0.0], [v]),
        {"softmax": "float16", "normalize": "before_product"},
        outside=6.54e4,
        inside=6.52e4,
    ),
    "outputs": Edge(lambda v: head([1.0], [0.0], [v]), {"output": "float16"}, outside=2.0**16, inside=6.54e4),
    "a reference of zero": Edge(
        lambda k: head([1.0], [k], [1.0]),
        {"reference": "zero", "reference_range": 10.0},
        outside=11.0,
        inside=9.0,
    ),
    "an upper bound of the longest key": Edge(
        lambda k: head([[1.0, 0.0]], [[1.0, 0.0], [0.0, k]], [1.0, 1.0], scale=1.0),
        {"reference": "upper_bound", "reference_range": 10.0},
        outside=11.0,
        inside=10.5,
    ),
    "an upper bound without a negative bias": Edge(
        lambda b: head([1.0], [1.0], [1.0], bias=bias(-b)),
        {"reference": "upper_bound", "reference_range": 2.5},
        outside=2.625,
        inside=2.375,
    ),
    "an upper bound with a bias": Edge(
        lambda b: head(
            [0.0], [0.0, 0.0], [1.0, 1.0], bias=np.array([[[[0.0, b]]]]), mask=np.array([[[[True, False]]]])
        ),
        {"reference": "upper_bound", "reference_range": 10.0},
        outside=10.0,
        inside=9.75,
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_rows_that_could_overflow_are_outside_the_domain(what):
    edge = CASES[what]

    def found(size):
        problem = edge.make(size)
        return forward_bound(intermediates(problem), replace(PRECISE, **edge.contract).at(problem.dtype)).in_domain

    edge.check(what, found)


#: Distances of a reference from the maximum: the contract, too far and near enough.
DISTANCES = {
    "the inverse of a scale of probabilities": Edge(
        lambda scale: {"probability_scale": scale},
        {"normalize": "before_product", "softmax": "float16"},
        outside=2.0**14,
        inside=2.0**13,
    ),
    "row sums below their format": Edge(
        lambda r: {"reference_range": r}, {"row_sum": "float16", "reference": "zero"}, outside=9.8, inside=9.6
    ),
    "weights below their format": Edge(
        lambda r: {"reference_range": r}, {"softmax": "float16", "reference": "zero"}, outside=9.8, inside=9.6
    ),
    "weights below their format, normalized before the product": Edge(
        lambda r: {"reference_range": r},
        {"softmax": "float16", "reference": "zero", "normalize": "before_product"},
        outside=9.8,
        inside=9.6,
    ),
    "weights above float64": Edge(
        lambda r: {"reference_slack": r},
        {"softmax": "float64", "row_sum": "float64", "normalize": "before_product"},
        outside=710.0,
        inside=300.0,
    ),
    "row sums below float64": Edge(
        lambda r: {"reference": "upper_bound", "reference_range": r},
        {"softmax": "float64", "row_sum": "float64", "normalize": "before_product"},
        outside=709.0,
        inside=708.0,
    ),
    "weights above the format of multiplicands": Edge(
        lambda r: {"reference_slack": r},
        {"multiplicands": "float16", "probabilities": "work"},
        outside=11.2,
        inside=11.0,
    ),
    "weights above the format they enter in": Edge(
        lambda r: {"reference_slack": r}, {"probabilities": "float16"}, outside=11.2, inside=11.0
    ),
}


@pytest.mark.parametrize("what", DISTANCES)
def test_rows_of_a_reference_too_far_away_are_outside_the_domain(what):
    edge = DISTANCES[what]
    x = intermediates(head([0.0], [1.0], [1.0]))

    def found(distance):
        return forward_bound(x, replace(PRECISE, **edge.make(distance), **edge.contract).at("float32")).in_domain

    edge.check(what, found)


@pytest.mark.parametrize("contract", [{"normalize": "every_tile"}, {"lse_merges": 1}])
@pytest.mark.parametrize(("depth", "inside"), [(60.0, True), (90.0, False)])
def test_the_row_sum_of_low_keys_alone_is_a_normal_number(contract, depth, inside):
    """A reference that is no maximum lets it underflow, and its reciprocal overflow."""
    x = intermediates(head([1.0], [0.0, -depth], [1.0, 1.0], scale=1.0))

    def found(reference):
        given = replace(PRECISE, reference=reference, reference_range=1.0, **contract)
        return forward_bound(x, given.at("float32")).in_domain.all()

    assert found("zero") == inside
    assert found("maximum")


def test_a_scale_over_a_softcap_is_a_normal_number():
    """A kernel may multiply by it, though neither of them is too large or too small."""

    def found(scale):
        contract = replace(PRECISE, score_accumulation="float16").at("float32")
        return forward_bound(intermediates(head([1.0], [1.0], [1.0], scale=scale, softcap=256.0)), contract)

    assert not found(2.0**-6).in_domain.any()
    assert found(2.0**-4).in_domain.all()


def test_a_log_sum_exp_that_could_overflow_is_outside_the_domain_and_the_output_is_not():
    def found(k, **changed):
        problem = head([1.0], [k], [1.0])
        return forward_bound(intermediates(problem), replace(PRECISE, lse="float16", **changed).at("float32"))

    assert found(6.5e4).domain_of("lse").all()
    assert not found(6.6e4).domain_of("lse").any()
    assert found(6.6e4).domain_of("output").all()
    assert not found(6.6e4, normalize="by_lse").domain_of("output").any()


def test_weights_by_a_log_sum_exp_that_overflow_their_format_are_outside_the_domain():
    """A score of -7505 has the log-sum-exp -7520 in bfloat16, so that its weight is e^15, and not 1."""

    def found(score, **changed):
        contract = replace(PRECISE, softmax="bfloat16", lse="float64", normalize="by_lse", **changed).at("float32")
        return forward_bound(intermediates(head([1.0], [score], [1.0])), contract).domain_of("output").all()

    assert bits.nearest(np.array([-7505.0]), "bfloat16") == -7520
    assert np.exp(15.0) > FORMATS["float16"].largest
    assert not found(-7505.0, probabilities="float16")
    assert not found(-7505.0, output_accumulation="float16")
    assert found(-7505.0)
    assert found(-5.0, probabilities="float16", output_accumulation="float16")


@pytest.mark.parametrize(("accumulator", "inside"), [("float64", True), ("bfloat16", False)])
def test_a_part_lies_as_far_below_the_reference_as_errors_of_scores_may_push_it(accumulator, inside):
    """The second key, 8.69 below the first, has a part of its own. A reference 1 higher than the first one leaves it a
    weight 1 % above the least normal number of float16."""
    fields = {"softmax": "float16", "score_accumulation": accumulator, "reference": "zero", "reference_range": 1.0}
    x = intermediates(one_head([[1.1]], [[0.0], [-7.9]], [[1.0], [1.0]], scale=1.0))
    contract = replace(PRECISE, normalize="every_tile", **fields).at("float64")

    assert forward_bound(x, contract).in_domain.all() == inside
