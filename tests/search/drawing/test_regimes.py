"""Regimes are representable, finite and reproducible, and reach what their summaries say."""

import itertools
import json

import numpy as np
import pytest

from attn_spec.attention.scores import SCORES
from attn_spec.bounds.intermediates import intermediates
from attn_spec.numbers.formats import DTYPES, FORMATS
from attn_spec.problem import patterns
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import REGIMES, SCORE_REGIMES, SHIFTS, VALUE_REGIMES, Recipe, RecipeError

SHAPES = (
    {},
    {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 33, "head_dim": 16, "value_dim": 3},
    {"query_length": 0, "key_length": 3},
    {"query_length": 3, "key_length": 0, "head_dim": 4, "value_dim": 4},
)
TYPICAL = {"query_length": 20, "key_length": 65, "head_dim": 64, "value_dim": 64}


def scores_of(regime, **changes):
    """Return float64 intermediates of a recipe of typical shape."""
    return intermediates(Recipe(regime=regime, **{**TYPICAL, **changes}).problem())


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_regime_is_finite_and_representable_in_every_shape_and_shift(regime, dtype):
    for shape, shift in itertools.product(SHAPES, SHIFTS):
        problem = Recipe(regime=regime, dtypes=dtype, shift=shift, **shape).problem()  # Problem checks representability
        assert all(np.isfinite(x).all() for x in (problem.q, problem.k, problem.v))


@pytest.mark.parametrize("regime", REGIMES)
def test_equal_recipes_make_equal_bits_and_other_seeds_other_values(regime):
    first, again, other = (Recipe(regime=regime, seed=seed, **TYPICAL).problem() for seed in (7, 7, 8))
    assert first.to_json() == again.to_json()
    assert first.to_json() != other.to_json()


@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_says_what_it_is_and_what_it_hunts(regime):
    row = REGIMES[regime]
    assert row.name == regime
    assert row.summary
    assert row.hunts


def test_values_are_the_same_on_every_platform():
    problem = Recipe(seed=1, key_length=2, head_dim=2).problem()
    pinned = ["0x1.2055720000000p-2", "-0x1.ec05820000000p-1", "0x1.365f700000000p-2", "-0x1.e4964c0000000p-1"]
    assert [float(x).hex() for x in problem.k.ravel()] == pinned


def test_regimes_combine():
    problem = Recipe(regime="rising+v_one", **TYPICAL).problem()
    assert (problem.v == 1).all()
    assert np.array_equal(problem.k, Recipe(regime="rising+v_one", **TYPICAL).problem().k)


def test_one_hot_and_first_key_dominates_put_the_weight_on_one_key():
    assert (scores_of("one_hot").P.max(axis=-1) > 0.99).all()
    assert (scores_of("first_key_dominates").P[..., 0] > 0.99).all()


@pytest.mark.parametrize("shift", SHIFTS[1:])
def test_shifts_move_the_log_sum_exp_by_their_size_and_the_weights_not_at_all(shift):
    moved = scores_of("one_hot", shift=shift)
    assert np.allclose(moved.L, shift, rtol=0.05, atol=60)
    assert np.ptp(moved.problem.k[..., -1]) == 0


def test_a_negative_shift_takes_the_log_sum_exp_below_the_underflow_of_float32():
    assert (scores_of("normal", shift=-120.0).L < -88.7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_products_overflow_float16_while_scaled_scores_do_not(dtype):
    x = scores_of("overflow_float16", dtypes=dtype)
    assert (np.abs(x.dot) > 65504).all()
    assert (np.abs(x.scaled) < 65504).all()


@pytest.mark.parametrize(("regime", "step"), [("rising", 1), ("rising_25", 25), ("rising_100", 100)])
def test_rising_maxima_jump_from_key_to_key_and_from_tile_to_tile(regime, step):
    jumps = set()
    for seed in range(12):
        steps = np.diff(scores_of(regime, seed=seed).problem.k[0, 0, :, 0])
        jumps.add(int((steps != 0).sum()))
        assert np.allclose(steps[steps != 0], step, rtol=0.01)
    assert {64, 4, 2, 1} == jumps


def test_falling_maxima_fall():
    assert (np.diff(scores_of("falling_100", seed=3).problem.k[0, 0, :, 0]) <= 0).all()


def test_products_cancel():
    x = scores_of("cancellation")
    assert (x.magnitude > 50 * np.abs(x.dot)).mean() > 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_near_ties_differ_by_a_unit_in_the_last_place(dtype):
    problem = Recipe(regime="near_ties", dtypes=dtype, **TYPICAL).problem()
    spread = np.ptp(problem.k, axis=2) / np.abs(problem.k).min(axis=2)
    assert 0 < spread.max() <= 4.1 * FORMATS[dtype].unit_roundoff


@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_regimes_reach_the_subnormal_numbers(dtype):
    normal = FORMATS[dtype].smallest_normal
    assert (np.abs(Recipe(regime="subnormal", dtypes=dtype, **TYPICAL).problem().q) < normal).mean() > 0.9
    assert (np.abs(Recipe(regime="v_tiny", dtypes=dtype, **TYPICAL).problem().v) < normal).any()
    tiny = Recipe(regime="tiny", dtypes=dtype, **TYPICAL).problem()
    assert 0 < np.abs(tiny.q[0, 0, 0] * tiny.k[0, 0, 0]).min() < normal


@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_values_add_up_within_the_range(dtype):
    v = np.abs(Recipe(regime="v_huge", dtypes=dtype, **TYPICAL).problem().v)
    total = (v / FORMATS[dtype].largest).sum(axis=2)
    assert ((total > 0.05) & (total < 0.13)).all()


def test_counterweight_values_make_small_weights_matter():
    x = scores_of("rising_25+v_counterweight", seed=1)
    share = (x.P[0, 0, 0] * np.abs(x.v[0, 0, :, 0]))[-3:]
    assert x.P[0, 0, 0, -2] < 1e-8
    assert share.min() > 1e-3 * share.max()


def test_one_hot_values_read_out_the_weights():
    x = scores_of("normal+v_one_hot", key_length=64)
    assert np.allclose(x.O[0, 0], x.P[0, 0])


def test_exact_regimes_are_integers():
    problem = Recipe(regime="integers", **TYPICAL).problem()
    assert all((x == np.rint(x)).all() for x in (problem.q, problem.k, problem.v))


def test_a_recipe_prints_as_the_expression_that_makes_it():
    recipe = Recipe(regime="ties+v_one", seed=5, key_length=3, mask="padding@B11K", window=(2, None))
    assert repr(recipe) == ("Recipe(regime='ties+v_one', seed=5, key_length=3, window=(2, None), mask='padding@B11K')")
    assert eval(repr(recipe)) == recipe  # noqa: S307 - what is tested is that the text is an expression
    assert repr(Recipe()) == "Recipe()"
    assert repr(recipe.problem()) == f"{recipe!r}.problem()"


def test_a_recipe_survives_json():
    recipe = Recipe(regime="rising", window=(None, 3), bias="alibi@1HQK", shift=-100.0, scale=0.5)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"regime": "no"}, "unknown regime 'no'; known are normal, "),
        ({"mask": "no"}, "unknown mask pattern 'no'; known are all, "),
        ({"mask": "all@KQHB"}, "unknown mask pattern 'all@KQHB'; known are "),
        ({"bias": "padding"}, "unknown bias pattern 'padding'; known are zero, "),
        ({"color": 1}, "the recipe document has unknown fields color; known are regime, "),
    ],
)
def test_a_wrong_recipe_is_refused_with_what_is_known(document, text):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_json(document)
    assert str(caught.value).startswith(text)


PATTERNS = {option: [*filter(None, row.draws)] for option, row in OPTIONS.items() if row.patterns}


@pytest.mark.parametrize("option", PATTERNS)
def test_every_pattern_takes_every_broadcast(option):
    shape = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 7, "head_dim": 3}
    chosen = OPTIONS[option].of or option
    beside = {row.name: row.draws[0] for row in (OPTIONS[chosen], *parameters(chosen)) if not row.optional}
    beside = beside if chosen in SCORES else {}
    problems = {name: Recipe(**shape, score_width=6, **{**beside, option: name}).problem() for name in PATTERNS[option]}

    def wanted(name, problem):
        letters, whole = name.partition("@")[2], OPTIONS[option].shape(problem.lengths)
        return tuple(1 if letter == "1" else n for letter, n in zip(letters, whole, strict=True))

    shapes = {name: getattr(problem, option).shape for name, problem in problems.items()}
    assert shapes == {name: wanted(name, problem) for name, problem in problems.items()}


def empty_rows(mask: str, queries: int = 8) -> Problem:
    return Recipe(mask=mask, query_length=queries, key_length=40).problem().empty_rows[0, 0]


def test_masks_hide_what_their_names_say():
    assert not empty_rows("all").any()
    assert empty_rows("all_hidden").all()
    assert np.flatnonzero(empty_rows("empty_first_rows")).tolist() == [0, 1]
    assert np.flatnonzero(empty_rows("empty_middle_rows")).tolist() == [4, 5]
    assert np.flatnonzero(empty_rows("empty_last_rows")).tolist() == [6, 7]
    seen = {name: Recipe(mask=name, query_length=8, key_length=40).problem().visible[0, 0] for name in patterns.MASKS}
    assert (seen["one_key"].sum(axis=-1) == 1).all()
    assert (np.diff(seen["padding"].astype(int)) <= 0).all()
    assert not seen["leading_hidden"][:, 0].any()
    assert seen["leading_hidden"][:, -1].all()
    assert (seen["documents"].sum(axis=-1) < 40).all()
    assert np.array_equal(seen["strided"][:7, :39], seen["strided"][1:, 1:])
    assert 0 < seen["strided"].mean() < 1


@pytest.mark.parametrize("seed", range(8))
def test_blocks_are_whole_and_specks_are_one_key_of_a_block(seed):
    def blocks(name, size):
        """Count the keys seen by each pair of blocks of queries and keys, of 64 x 96: every size divides both."""
        seen = Recipe(mask=name, query_length=64, key_length=96, seed=seed).problem().mask[0, 0]
        return seen.reshape(64 // size, size, 96 // size, size).sum(axis=(1, 3))

    sizes = (2, 4, 8, 16, 32)
    assert any(set(np.unique(blocks("blocks", size))) <= {0, size**2} for size in sizes)
    assert any(set(np.unique(blocks("specks", size))) <= {1, size**2 - 1} for size in sizes)


def test_biases_hide_what_their_names_say():
    assert empty_rows_by("all_minus_inf").all()
    assert not empty_rows_by("leading_minus_inf").any()
    assert np.isneginf(Recipe(bias="minus_inf", query_length=8, key_length=40).problem().bias).mean() > 0.1
    rows = Recipe(bias="row_constant", query_length=8, key_length=40).problem().bias
    assert np.ptp(rows, axis=-1).max() == 0
    assert np.ptp(rows) > 1


def empty_rows_by(bias):
    return Recipe(bias=bias, query_length=8, key_length=40).problem().empty_rows


def test_the_table_is_complete():
    assert set(REGIMES) == set(SCORE_REGIMES) | set(VALUE_REGIMES)
    assert REGIMES["normal"].generic
    assert not REGIMES["ties"].generic
