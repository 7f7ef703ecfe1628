"""Rotary positions: turns by hand, what they leave as it is, and what layouts and frequencies mean."""

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.arithmetic import BALLS, FLOATS, REALS
from attn_spec.attention.rotations import Rotation, rotations_of, turned_columns
from attn_spec.bounds.running_error import RunningErrors
from attn_spec.contract.presets import FP32
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.options.rotary import LAYOUTS
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import Refutation
from tests.one_head import one_head

BITS = 200
TURN = Rotation(np.arange(-2, 5), 100.0, 4, 5, "half")


def scores(problem):
    return definition.scores(problem, BITS)[0, 0]


def by_hand(*, rotary, **options):
    """Compute the scores of one query (1, 0) at position 2 and keys (1, 0), (0, 1) at 0 and 1."""
    queries = [[9.0, 9.0], [9.0, 9.0], [1.0, 0.0]]
    return scores(one_head(queries, [[1.0, 0.0], [0.0, 1.0]], [[0.0], [0.0]], rotary=rotary, scale=1.0, **options))[2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_columns_turn_by_the_position_in_radians(layout):
    """R_2 (1, 0).R_0 (1, 0) = cos 2; R_2 (1, 0).R_1 (0, 1) = (cos 2, sin 2).(-sin 1, cos 1) = sin 1."""
    with mp.workprec(BITS):
        at_0, at_1 = by_hand(rotary=layout)
        assert abs(at_0 - mp.cos(2)) < 2.0**-190
        assert abs(at_1 - mp.sin(1)) < 2.0**-190


def test_from_the_bottom_right_corner_the_last_query_stands_at_the_last_key():
    with mp.workprec(BITS):
        at_0, at_1 = by_hand(rotary="half", causal_alignment="bottom_right")  # position 2 + 2 - 3
        assert abs(at_0 - mp.cos(1)) < 2.0**-190
        assert at_1 == 0 or abs(at_1) < 2.0**-190


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_cosines_of_tables_are_the_true_ones_rounded(dtype):
    """cos 2 and sin 2 of a pair are as float64 has them, and then as the dtype of q has them; 1 is exact."""
    problem = one_head([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0], [0.0]], rotary="half", scale=1.0)
    asked = {"rotary_query_positions": np.full((1, 1, 1, 1), 2), "rotary_key_positions": np.zeros((1, 1, 1, 2), int)}
    problem = problem.replace(**asked, dtypes=dtype)
    with mp.workprec(BITS):
        cos, sin = (bits.nearest(np.array(float(of(2))), dtype).item() for of in (mp.cos, mp.sin))
        true = scores(problem)[0]
        found = scores(problem.replace(rotary_from_tables=True))[0]
    assert found.tolist() == [cos, sin]
    assert true[0] != cos


def test_rounded_cosines_do_not_depend_on_the_distance_alone():
    """A sequence behind padding keeps its positions, and its truth, when it is taken apart."""
    asked = {"batch": 2, "query_length": 3, "key_length": 9, "head_dim": 8, "leftpad_k": "ragged@B111", "seed": 5}
    for alignment in ("top_left", "bottom_right"):
        how = {"rotary": "half", "rotary_from_tables": True, "causal_alignment": alignment, "dtypes": "bfloat16"}
        problem = Recipe(**asked, **how).problem()
        every = definition.scores(problem, BITS)
        assert problem.first_keys.any()
        for b, first in enumerate(problem.first_keys):
            alone = definition.scores(problem.sequence(b), BITS)
            assert (abs(alone[0, 0] - every[b, 0][:, first:]) < 2.0**-150).all()


def test_a_kernel_of_true_cosines_is_no_kernel_of_tables():
    """Rounding cosines to float16 is an error of 2^-12; the kernel that rounds them has only roundings of float32."""
    problem = Recipe(
        query_length=4, key_length=9, head_dim=16, rotary="half", rotary_from_tables=True, dtypes="float16", seed=2
    ).problem()
    contract = replace(PRECISE, operands="float32", multiplicands="float32")
    able = ("rotary", "rotary_from_tables", "cross", "lse")
    right = emulate("right", contract, dtypes=("float16",), supports=able)

    def attention(*tensors, **options):
        return right(*tensors, **{name: x for name, x in options.items() if name != "rotary_from_tables"})

    subject = Subject(right, "float16")
    assert_within_bound(subject, problem, subject(problem), "lse")
    wrong = replace(subject, kernel=replace(right, function=attention))
    with pytest.raises(Refutation, match="lse"):
        assert_within_bound(wrong, problem, wrong(problem), "lse")


def test_a_score_depends_on_the_distance_of_positions_alone():
    """sympy turns both by their positions; m and n are left as n - m."""
    m, n, theta, a, b, c, d = sp.symbols("m n theta a b c d", real=True)

    def turned(x, y, position):
        cos, sin = sp.cos(position * theta), sp.sin(position * theta)
        return x * cos - y * sin, y * cos + x * sin

    (x, y), (u, v) = turned(a, b, m), turned(c, d, n)
    far_u, far_v = turned(c, d, n - m)
    assert sp.simplify(sp.expand_trig(x * u + y * v - (a * far_u + b * far_v))) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rotary_dim", [None, 2, 6])
def test_later_positions_give_the_scores_of_earlier_ones(layout, rotary_dim):
    sizes = {"query_length": 4, "key_length": 5, "head_dim": 7, "value_dim": 1, "dtypes": "float64"}
    whole = Recipe(rotary=layout, rotary_dim=rotary_dim, **sizes).problem()
    rest = whole.take("Q", [2, 3]).take("K", [2, 3, 4])

    distance = scores(whole)[2:, 2:] - scores(rest)
    assert max(abs(float(x)) for x in distance.ravel()) < 2.0**-180


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_turn_leaves_norms_as_they_are(layout):
    x = np.random.default_rng(0).standard_normal((7, 5))
    turn = replace(TURN, layout=layout)
    cos, sin = FLOATS.tables(turn)
    y = x * cos + FLOATS.swapped(x, turn) * sin

    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x, axis=1), rtol=1e-14)
    assert (y[:, 4] == x[:, 4]).all()  # the fifth column stays
    assert (y[2] == x[2]).all()  # and so does position 0


def test_layouts_differ_by_the_order_of_columns():
    one, order = Recipe(query_length=3, key_length=3, head_dim=6, rotary="half").problem(), [0, 3, 1, 4, 2, 5]
    other = one.replace(q=one.q[..., order], k=one.k[..., order], rotary="interleaved")

    assert max(abs(float(x)) for x in (scores(one) - scores(other)).ravel()) < 2.0**-180
    assert max(abs(float(x)) for x in (scores(one) - scores(other.replace(rotary="half"))).ravel()) > 0.1


@pytest.mark.parametrize("base", [1e-300, 1e-20, 0.5, 1e300])
def test_angles_of_a_small_base_have_bits_before_the_point(base):
    """Position 2 and base 1e-300 make angles of about 2^880."""
    problem = Recipe(query_length=3, key_length=3, head_dim=16, rotary="half", rotary_base=base).problem()
    few, many = (definition.scores(problem, bits) for bits in (60, 2000))

    assert max(abs(x) for x in (few - many).ravel()) < 2.0**-60


def test_every_arithmetic_has_the_same_tables():
    with mp.workprec(BITS):
        exact = [table.astype(float) for table in REALS.tables(TURN)]
    balls = [np.vectorize(float)(table) for table in BALLS.tables(TURN)]
    running = RunningErrors(FP32.at("float32")).tables(TURN)

    for table, ball, number, approximation in zip(exact, balls, FLOATS.tables(TURN), running, strict=True):
        np.testing.assert_allclose(ball, table, rtol=1e-14, atol=1e-15)
        np.testing.assert_allclose(number, table, rtol=0, atol=1e-15)
        half = table.astype(np.float32).astype(np.float64)
        assert (np.abs(half - table) <= approximation.error).all()


@pytest.mark.parametrize("base", [2.0, 1e4, 5e5])
def test_the_error_of_a_table_covers_float32_however_its_frequencies_are_found(base):
    turn = Rotation(np.array([0, 1, 5, 300, 4000]), base, 64, 64, "half")
    with mp.workprec(BITS):
        exact = [table.astype(float) for table in REALS.tables(turn)]
    pair = np.arange(32, dtype=np.float32)
    ways = (
        1 / np.power(np.float32(base), 2 * pair / np.float32(64)),
        np.exp(-np.log(np.float32(base)) * 2 * pair / np.float32(64)),
        np.float32(base) ** (-pair / np.float32(32)),
    )
    allowed = [table.error for table in RunningErrors(FP32.at("float32")).tables(turn)]
    for frequencies in ways:
        assert frequencies.dtype == np.float32
        angles = turn.positions.astype(np.float32)[:, None] * frequencies
        for of, table, error in zip((np.cos, np.sin), exact, allowed, strict=True):
            assert (np.abs(np.tile(of(angles), 2) - table) <= error).all()


def test_a_coarser_table_exceeds_the_error_where_positions_are_large():
    turn = Rotation(np.array([257]), 1e4, 8, 8, "half")
    allowed = RunningErrors(FP32.at("float32")).tables(turn)[0].error
    off = FLOATS.tables(replace(turn, positions=np.array([256])))[0] - FLOATS.tables(turn)[0]

    assert (np.abs(off[0, [0, 1]]) > 100 * allowed[0, [0, 1]]).all()


@pytest.mark.parametrize(("head_dim", "rotary_dim", "turned"), [(5, None, 4), (1, None, 0), (8, 2, 2), (8, 0, 0)])
def test_how_many_columns_are_turned(head_dim, rotary_dim, turned):
    assert turned_columns(head_dim, rotary_dim) == turned
    problem = Recipe(head_dim=head_dim, rotary="half", rotary_dim=rotary_dim).problem()
    assert rotations_of(problem)["keys"].turned == turned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotary": "quarter"}, "rotary must be 'half', 'interleaved' or None, not 'quarter'"),
        ({"rotary": "half", "rotary_dim": 3}, "rotary_dim must be an even number from 0 to D or None, not 3"),
        ({"rotary": "half", "rotary_dim": 6}, "rotary_dim must be an even number from 0 to D or None, not 6"),
        ({"rotary": "half", "rotary_base": 0.0}, "rotary_base must be a number above 0 or None, not 0.0"),
        ({"rotary_base": 2.0}, "rotary_base is a parameter of rotary; give rotary too, or leave rotary_base out"),
    ],
)
def test_what_is_no_rotation_is_refused(options, message):
    with pytest.raises(ProblemError, match=message):
        Recipe(head_dim=4).problem().replace(**options)
