"""Layers of multi-head attention: numbers by hand, what heads can and cannot do, and what is refused."""

import math

import numpy as np
import pytest

from attn_spec.attention.definition import attention
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.contract.presets import PRESETS
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

PROJECTIONS = ("query_projection", "key_projection", "value_projection", "output_projection")


def tensor(*rows):
    """Return rows as a tensor [1, 1, rows, columns]."""
    return np.array(rows, dtype=float)[None, None]


def by_head(*matrices):
    """Return matrices as a tensor [1, H, rows, columns]."""
    return np.array(matrices, dtype=float)[None]


def random_layer(seed, *, heads=3, batch=2, queries=4, keys=5, widths=(2, 3, 4), **changes):
    """Draw a layer of model width 6 and value width 5, with all biases, of widths A, U and O."""
    rng, (A, U, O) = np.random.default_rng(seed), widths

    def normal(*shape):
        return rng.integers(-32, 33, shape) / 16

    options = {
        "query_projection": normal(1, heads, A, 6),
        "key_projection": normal(1, heads, A, 6),
        "value_projection": normal(1, heads, U, 5),
        "output_projection": normal(1, heads, O, U),
        "query_projection_bias": normal(1, heads, 1, A),
        "key_projection_bias": normal(1, heads, 1, A),
        "value_projection_bias": normal(1, heads, 1, U),
        "output_projection_bias": normal(1, 1, 1, O),
    }
    vectors = {"q": normal(batch, 1, queries, 6), "k": normal(batch, 1, keys, 6), "v": normal(batch, 1, keys, 5)}
    return Problem(**vectors, **{**options, **changes})


def values_of(problem):
    """Return the output [B, 1, Sq, O] in float64."""
    return attention(problem, 100).astype(float)


def test_two_heads_of_width_one_by_hand():
    """q = (1, 0) and keys (1, 0), (0, 1): head 0 scores 1 and 0, head 1, whose W_Q reads the second column, 0 and 0."""
    problem = Problem(
        q=tensor([1, 0]),
        k=tensor([1, 0], [0, 1]),
        v=tensor([1, 2], [3, 6]),
        query_projection=by_head([[1, 0]], [[0, 1]]),
        key_projection=by_head([[1, 0]], [[0, 1]]),
        value_projection=by_head([[1, 0]], [[0, 1]]),
        output_projection=by_head([[1], [0]], [[10], [1]]),
        output_projection_bias=tensor([100, 0]),
    )
    p = math.e / (math.e + 1)
    first, second = p * 1 + (1 - p) * 3, 4.0

    found = values_of(problem)

    assert found.shape == (1, 1, 1, 2)
    np.testing.assert_allclose(found[0, 0, 0], [first + 10 * second + 100, second], rtol=1e-15)


def test_gradients_of_one_head_by_hand():
    """One key: the output is W_O (W_V v + b_V) + b_O whatever the scores, so only these have gradients."""
    problem = Problem(
        q=tensor([2]),
        k=tensor([3]),
        v=tensor([5]),
        query_projection=by_head([[7]]),
        key_projection=by_head([[11]]),
        value_projection=by_head([[13]]),
        output_projection=by_head([[17]]),
        value_projection_bias=by_head([[1]]),
        output_projection_bias=tensor([0]),
    )

    found = gradients(problem, tensor([2.0]), 80)

    values = {name: float(x.item()) for name, x in found.items()}
    assert values == {
        "dq": 0, "dk": 0, "dquery_projection": 0, "dkey_projection": 0,
        "dv": 2 * 17 * 13, "dvalue_projection": 2 * 17 * 5, "dvalue_projection_bias": 2 * 17,
        "doutput_projection": 2 * (13 * 5 + 1), "doutput_projection_bias": 2,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_balls_contain_the_definition(seed):
    last = {"causal": True, "causal_alignment": "bottom_right"}
    problem = random_layer(seed, **(last, {"softcap": 4.0}, {"scale": 0.25, "heads": 1})[seed])
    dO = np.random.default_rng(seed).integers(-8, 9, problem.output_shape) / 4
    exact, found = gradients(problem, dO, 120), enclose_gradients(problem, dO, 100)

    output = enclose(problem, 100)["output"]
    assert set(found) == set(exact)
    for ball, true in ((output, attention(problem, 120)), *((found[name], exact[name]) for name in exact)):
        apart = np.vectorize(lambda t, v, low: abs(float(t - v - low)))(true, ball.value, ball.low)
        assert (apart <= ball.radius + 1e-28).all()


def test_float64_intermediates_are_within_their_bound_of_the_truth():
    problem = random_layer(5)
    dO = np.random.default_rng(5).standard_normal(problem.output_shape)
    known, truth = analysis_of(problem), enclose(problem, 120)["output"]
    x = known.intermediates

    allowed = known.oracle.first["output"].radius
    assert (np.abs(x.output - truth.value - truth.low) <= allowed).all()
    assert (allowed < 1e-11).all()

    judged = judge(problem.replace(dtypes="float64"), PRESETS["fp64"].at("float64"), output=x.output)
    assert judged.exercised
    assert not judged.refuted
    found = {name: gradient.astype(float) for name, gradient in gradients(problem, dO, 80).items()}
    judged = judge_gradients(problem.replace(dtypes="float64"), PRESETS["fp64"].at("float64"), dO, found)
    assert judged.exercised
    assert not judged.refuted


def test_slices_of_the_model_are_plain_heads():
    """If head h takes columns 2h and 2h + 1, and its output goes there, a layer is attention of the heads apart."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.integers(-16, 17, (2, 1, n, 6)) / 8 for n in (3, 4, 4))
    slices = np.eye(6).reshape(1, 3, 2, 6)
    layer = Problem(
        q=q, k=k, v=v, query_projection=slices, key_projection=slices, value_projection=slices,
        output_projection=slices.swapaxes(2, 3), causal=True,
    )  # fmt: skip
    heads = [x.reshape(2, -1, 3, 2).swapaxes(1, 2) for x in (q, k, v)]
    plain = Problem(q=heads[0], k=heads[1], v=heads[2], causal=True)

    assert (values_of(layer)[:, 0] == values_of(plain).swapaxes(1, 2).reshape(2, 3, 6)).all()
    assert layer.scale_divisor == plain.scale_divisor == 2


def test_one_projection_of_keys_for_all_heads_is_that_projection_repeated():
    """MQA is a layer whose heads have equal W_K and W_V; GQA one in which those of a group are equal."""
    whole = random_layer(3, heads=4)
    shared = whole.replace(
        key_projection=whole.key_projection[:, :1], value_projection=whole.value_projection[:, :1],
        key_projection_bias=None, value_projection_bias=None,
    )  # fmt: skip
    repeated = shared.replace(
        key_projection=np.repeat(shared.key_projection, 4, axis=1),
        value_projection=np.repeat(shared.value_projection, 4, axis=1),
    )
    assert (values_of(shared) == values_of(repeated)).all()
    dO = np.ones(shared.output_shape)
    one, each = (gradients(problem, dO, 100) for problem in (shared, repeated))
    for name in ("dkey_projection", "dvalue_projection"):
        summed = each[name].sum(axis=1, keepdims=True).astype(float)
        np.testing.assert_allclose(one[name].astype(float), summed, rtol=1e-13, atol=1e-14)


def test_heads_in_another_order_with_their_projections_have_the_same_sum():
    problem, order = random_layer(4), np.array([2, 0, 1])
    np.testing.assert_allclose(values_of(problem.take("H", order)), values_of(problem), rtol=1e-14)


def test_the_output_is_the_sum_of_projected_heads():
    problem = random_layer(6, output_projection_bias=None)
    parts = [values_of(problem.take("H", [head])) for head in range(3)]
    np.testing.assert_allclose(np.sum(parts, axis=0), values_of(problem), rtol=1e-13, atol=1e-14)


def test_heads_that_are_summed_without_a_projection_can_do_less():
    """A layer can give (o_0, o_1), which no one matrix makes of o_0 + o_1.

    With values (1, 0) and (0, 1) of two heads, and then exchanged, the sum of the heads is (1, 1) twice: whatever is
    made of it is equal in both cases. The layer that puts heads side by side gives (1, 0, 0, 1) and (0, 1, 1, 0).
    """
    side_by_side = by_head([[1, 0], [0, 1], [0, 0], [0, 0]], [[0, 0], [0, 0], [1, 0], [0, 1]])
    identity = by_head([[1, 0], [0, 1]], [[1, 0], [0, 1]])
    of_values = [by_head([[1, 0], [0, 0]], [[0, 0], [1, 0]]), by_head([[0, 0], [1, 0]], [[1, 0], [0, 0]])]
    common = {"q": tensor([0, 0]), "k": tensor([0, 0]), "v": tensor([1, 0])}
    layers = [
        [
            values_of(Problem(
                **common, query_projection=identity, key_projection=identity, value_projection=W, output_projection=W_O
            )).ravel().tolist()
            for W in of_values
        ]
        for W_O in (side_by_side, identity)
    ]  # fmt: skip
    assert layers[0] == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert layers[1] == [[1, 1], [1, 1]]


def test_a_router_that_weighs_heads_is_a_layer_of_its_own():
    """sum_h g_h o_h of a mixture of heads is the layer with g_h W_O in place of W_O, for gates that do not see q."""
    problem, gates = random_layer(7, output_projection_bias=None), np.array([0.5, 0.0, 2.0])
    parts = [gate * values_of(problem.take("H", [head])) for head, gate in enumerate(gates)]
    routed = problem.replace(output_projection=gates[:, None, None] * problem.output_projection)
    np.testing.assert_allclose(np.sum(parts, axis=0), values_of(routed), rtol=1e-13, atol=1e-14)


def test_heads_of_other_widths_are_wider_ones_with_zeros():
    """A head of width 1 is one of width 2 whose second row is 0, with the scale of its own width."""
    narrow = random_layer(8, heads=1, widths=(1, 1, 4))
    padded = narrow.replace(
        scale=1.0,
        **{
            name: np.concatenate([x, np.zeros(x.shape)], axis=axis)
            for name, axis in (
                ("query_projection", 2), ("key_projection", 2), ("value_projection", 2), ("output_projection", 3),
                ("query_projection_bias", 3), ("key_projection_bias", 3), ("value_projection_bias", 3),
            )
            for x in (getattr(narrow, name),)
        },
    )  # fmt: skip
    np.testing.assert_allclose(values_of(padded), values_of(narrow), rtol=1e-14)


def test_a_row_that_no_head_sees_a_key_for_is_the_bias_of_the_output():
    problem = random_layer(9, mask=np.zeros((1, 3, 4, 5), dtype=bool))
    assert (values_of(problem) == problem.output_projection_bias).all()
    assert problem.empty_output_rows.all()
    some = problem.replace(mask=np.arange(3)[None, :, None, None] < np.ones((1, 1, 4, 5)))
    assert not some.empty_output_rows.any()
    assert some.empty_rows.any()


@pytest.mark.parametrize("convention", ["zero", "nan", "mean_of_v"])
def test_conventions_for_rows_without_keys_are_those_of_heads(convention):
    """Heads without a key add 0, or NaN, which makes the sum NaN, or their mean if no head sees a key."""
    problem = random_layer(10, dtypes="float64", mask=np.zeros((1, 3, 4, 5), dtype=bool))
    open_ = problem.replace(mask=None, query_projection=np.zeros(problem.query_projection.shape))
    answers = {"zero": values_of(problem), "mean_of_v": values_of(open_.replace(query_projection_bias=None))}
    answers["nan"] = np.full(problem.output_shape, np.nan)
    contract = PRESETS["fp64"].at("float64")
    for name, answer in answers.items():
        judged = judge(problem, contract, output=answer, conventions=Conventions(empty_row=convention))
        assert judged.exercised
        assert judged.refuted == (name != convention)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_projection": None}, "query_projection needs output_projection as well"),
        ({"q": np.zeros((1, 2, 1, 6)), "k": np.zeros((1, 2, 5, 6)), "v": np.zeros((1, 2, 5, 5))},
         "q, k and v of a layer must have one head"),
        ({"key_projection": np.zeros((1, 3, 1, 6))}, "key_projection must be a float64 array broadcastable to"),
        ({"output_projection": np.zeros((3, 4))}, "output_projection must be a 4-dimensional float64 array"),
        ({"query_projection": 1.0}, r"query_projection must be a float64 array \[1, Hq, A, D\]"),
        ({"score_weight": np.zeros((1, 3, 6, 6))}, "exclude each other"),
    ],
)  # fmt: skip
def test_what_is_no_layer_is_refused(changes, message):
    with pytest.raises(ProblemError, match=message):
        random_layer(0, batch=1).replace(**changes)
