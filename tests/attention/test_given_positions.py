"""Rotary positions that a call gives: numbers by hand, whose they are, which are drawn, what is refused."""

import json

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.attention.rotations import rotations
from attn_spec.bounds.intermediates import intermediates
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.patterns import POSITIONS, made
from attn_spec.problem.problem import Problem, ProblemError
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from tests.implementations.kernel_inputs import interpreted
from tests.one_head import one_head

SHAPE = {"batch": 2, "query_heads": 2, "query_length": 5, "key_length": 7, "head_dim": 6, "value_dim": 3}
BITS = 200


def queries(*entries):
    return np.array(entries).reshape(len(entries), 1, -1, 1)


def keys(*entries):
    return np.array(entries).reshape(len(entries), 1, 1, -1)


def turned(**fields):
    return Recipe(**{**SHAPE, "rotary": "half", "rotary_base": 100.0, **fields}).problem()


def near(one, other):
    return max(abs(float(x)) for x in (one - other).ravel()) < 2.0**-180


def by_hand(**positions):
    """Compute the scores of one query (1, 0) and keys (1, 0) and (0, 1)."""
    problem = one_head([[1.0, 0.0]], np.eye(2), [[0.0], [0.0]], rotary="half", scale=1.0, **positions)
    return definition.scores(problem, BITS)[0, 0, 0]


def test_two_keys_by_hand():
    """R_5 (1, 0).R_3 (1, 0) = cos 2; R_5 (1, 0).R_4 (0, 1) = (cos 5, sin 5).(-sin 4, cos 4) = sin 1."""
    with mp.workprec(BITS):
        found = by_hand(rotary_query_positions=queries([5]), rotary_key_positions=keys([3, 4]))
        assert near(found, np.array([mp.cos(2), mp.sin(1)]))
        # Without positions of its own a side is counted: the query stands at 0, the keys at 0 and 1.
        found = by_hand(rotary_key_positions=keys([3, 4]))
        assert near(found, np.array([mp.cos(3), -mp.sin(4)]))
        found = by_hand(rotary_query_positions=queries([5]))
        assert near(found, np.array([mp.cos(5), mp.sin(4)]))


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
def test_counted_positions_are_those_of_a_call_without(alignment):
    plain = turned(causal_alignment=alignment, query_length=7, key_length=7)
    same = plain.replace(rotary_query_positions=queries(range(7)), rotary_key_positions=keys(range(7)))

    assert near(definition.scores(same, BITS), definition.scores(plain, BITS))


def test_each_batch_entry_has_its_own_or_all_have_one():
    own = turned(rotary_query_positions="shifted@B1Q1", rotary_key_positions="tree@B11K")
    for entry in (0, 1):
        alone = own.take("B", [entry])
        assert near(definition.scores(own, BITS)[entry], definition.scores(alone, BITS)[0])
    shared = turned(rotary_query_positions="shifted@11Q1", rotary_key_positions="tree@111K")
    assert shared.rotary_query_positions.shape == (1, 1, 5, 1)
    twice = {
        name: np.repeat(getattr(shared, name), 2, 0) for name in ("rotary_query_positions", "rotary_key_positions")
    }
    assert near(definition.scores(shared, BITS), definition.scores(shared.replace(**twice), BITS))


def test_rows_carry_their_positions_along():
    problem = turned(rotary_query_positions="shifted@B1Q1", rotary_key_positions="shuffled@B11K")
    order, rows = [6, 2, 0, 1, 5, 4, 3], [4, 2]
    moved = problem.take("K", order).take("Q", rows)

    assert near(definition.scores(moved, BITS), definition.scores(problem, BITS)[:, :, rows][..., order])


@pytest.mark.parametrize("rotary", ["half", "interleaved"])
@pytest.mark.parametrize("pattern", POSITIONS)
def test_every_arithmetic_agrees(pattern, rotary):
    problem = turned(rotary=rotary, rotary_query_positions=f"{pattern}@B1Q1", rotary_key_positions=f"{pattern}@B11K")
    dO = np.ones((2, 2, 5, 3))
    exact, enclosed = definition.attention(problem, BITS), enclose(problem)["output"]
    of_inputs = gradients(problem, dO, 80)

    with mp.workprec(BITS):
        assert (abs(exact - enclosed.value - enclosed.low) <= enclosed.radius).all()
    assert abs(exact.astype(float) - intermediates(problem).O).max() < 1e-8  # 2**20 radians in float64
    for name, gradient in enclose_gradients(problem, dO).items():
        assert abs(of_inputs[name].astype(float) - gradient.value).max() < 1e-14, name


GIVEN = ("far@B1Q1", "far@B11K"), ("documents@11Q1", None), (None, "left_padded@B11K")


@pytest.mark.parametrize(
    ("kernel", "given", "rotary"),
    [
        ("jax_attention:tiled", ("far@B1Q1", "left_padded@B11K"), "interleaved"),  # its compiler takes seconds
        *(("numpy_tiled", given, "half") for given in GIVEN),
        *(("torch_scores:rotary", given, "interleaved") for given in GIVEN),
        *(("torch_tiled", given, "half") for given in GIVEN),
        *(pytest.param("triton_tiled", given, "half", marks=interpreted) for given in GIVEN),
    ],
)
def test_kernels_stay_within_their_bounds(kernel, given, rotary):
    problem = turned(rotary=rotary, rotary_query_positions=given[0], rotary_key_positions=given[1])
    subject = Subject(resolve(kernel), "float32")
    dO = cotangent(subject, problem)

    assert_within_bound(subject, problem, subject(problem))
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


def test_what_is_drawn_are_positions():
    rng = np.random.default_rng(0)
    drawn = {name: made(POSITIONS, f"{name}@B11K", rng, (3, 1, 1, 64))[:, 0, 0] for name in POSITIONS}

    assert all((x >= 0).all() and (x < 2**20 + 64).all() for x in drawn.values())
    assert (drawn["counted"] == np.arange(64)).all()
    assert (np.diff(drawn["shifted"]) == 1).all()
    assert len(set(drawn["shifted"][:, 0])) == 3
    padded = drawn["left_padded"]
    assert (padded == np.maximum(np.arange(64) - (63 - padded[:, -1:]), 0)).all()
    assert ((drawn["documents"] == 0) | (np.diff(drawn["documents"], prepend=-1) == 1)).all()
    assert set(np.diff(drawn["tree"]).ravel()) == {0, 1}
    assert np.ptp(np.diff(drawn["strided"])) == 0
    assert drawn["strided"][0, 1] > 1
    assert (np.ptp(drawn["equal"], axis=1) == 0).all()
    assert (np.sort(drawn["shuffled"]) == np.arange(64)).all()
    assert (np.diff(drawn["shuffled"]) != 1).any()
    assert drawn["far"].max() > 2**17


def test_repr_and_json_keep_them():
    problem = turned(rotary_key_positions="far@B11K").replace()
    written = eval(repr(problem), {"Problem": Problem, "np": np})  # noqa: S307
    read = Problem.from_json(json.loads(json.dumps(problem.to_json())))

    for again in (written, read):
        assert again.rotary_key_positions.dtype == np.int64
        assert (again.rotary_key_positions == problem.rotary_key_positions).all()


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((1, 1, 1, 7)), "must be an int64 array broadcastable to .B, 1, 1, Sk. = .2, 1, 1, 7., not float64"),
        (
            keys(range(6)),
            "must be an int64 array broadcastable to .B, 1, 1, Sk. = .2, 1, 1, 7., not int64 .1, 1, 1, 6.",
        ),
        (keys(range(-1, 6)), "must not contain a number below 0 or above 16777216"),
        (keys(range(2**24, 2**24 + 7)), "must not contain a number below 0 or above 16777216"),
    ],
)
def test_what_are_no_positions_is_refused(positions, message):
    with pytest.raises(ProblemError, match=f"rotary_key_positions {message}"):
        turned().replace(rotary_key_positions=positions)


def test_positions_without_a_turn_are_refused():
    with pytest.raises(ProblemError, match="rotary_key_positions is a parameter of rotary; give rotary too"):
        turned(rotary=None, rotary_base=None).replace(rotary_key_positions=keys(range(7)))


def test_positions_of_no_entry_rotate_nothing():
    """A call of sequences that are all empty may have no batch entry."""
    nowhere = {"rotary_query_positions": np.zeros((0, 1, 3, 1)), "rotary_key_positions": np.zeros((0, 1, 1, 1))}

    found = rotations(query_length=3, key_length=5, columns=4, rotary="half", **nowhere)

    assert found["queries"].positions.shape == (0, 1, 3)
    assert found["keys"].positions.shape == (0, 1, 5)
