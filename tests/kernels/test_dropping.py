"""A kernel that drops by chance is asked for p, and for a seed of each call, under its own names for them."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.dropping import dropping, needs_seed
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.preflight import preflight

BY_CHANCE = ("dropout_by_chance", "dropout_seed")


def subject(function, *, supports=BY_CHANCE, **declared):
    made = kernel(framework="numpy", dtypes=("float32",), supports=supports, **declared)(function)
    return Subject(made, "float32")


def problem(**fields):
    return Recipe(**{"query_length": 2, "key_length": 2, **fields}).problem()


def test_p_and_seed_are_passed_under_the_names_of_the_callable():
    asked = []

    def attention(q, k, v, *, dropout_p=0.0, seed=None):
        asked.append((dropout_p, seed))
        return v

    own = subject(attention)
    own(problem())
    dropping(own, 0.25)(problem())
    twice = dropping(own, 0.5, 7)
    twice(problem())
    twice(problem())

    assert asked == [(0.0, None), (0.25, None), (0.5, 7), (0.5, 8)]


def test_options_without_names_get_the_usual_ones():
    def attention(q, k, v, **options):
        assert options == {"dropout_p": 0.5, "dropout_seed": 3}
        return v

    dropping(subject(attention), 0.5, 3)(problem())


def test_each_part_of_a_presentation_has_a_seed_of_its_own():
    seeds = []

    def attention(q, k, v, *, dropout_p, dropout_seed):
        seeds.append(dropout_seed)
        return v

    dropping(subject(attention, presentation="SD"), 0.5, 10)(problem(batch=2, query_heads=2, kv_heads=2))
    assert seeds == [10, 11, 12, 13]


def test_a_backward_function_has_what_its_call_was_given():
    asked = []

    def attention(q, k, v, *, dropout_p=0.0, dropout_seed=None):
        return v * np.float32(dropout_seed)

    own = subject(attention, presentation="SD", supports=(*BY_CHANCE, "backward"))

    @own.kernel.backward
    def back(dout, q, k, *saved, dropout_p, dropout_seed):
        v, out, _ = saved
        asked.append((dropout_p, dropout_seed, float(out[0, 0] / v[0, 0])))
        return q, k, dout

    shown = problem(query_heads=2, kv_heads=2, regime="normal+v_one")
    answer, gradients = dropping(own, 0.5, 5).both_passes(shown, np.ones((1, 2, 2, 1)))

    assert asked == [(0.5, 5, 5.0), (0.5, 6, 6.0)]
    assert answer["output"].ravel().tolist() == [5, 5, 6, 6]
    assert (gradients["dv"] == 1).all()


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda q, k, v, *, dropout_p: v, {"dropout_p": 0.0}),
        (lambda q, k, v, *, dropout_p=0.1: v, {"dropout_p": 0.0}),
        (lambda q, k, v, *, dropout_p=0.1, seed: v, {"dropout_p": 0.0, "seed": 0}),
        (lambda q, k, v, *, dropout_p=0.0, seed=7: v, {}),
        (lambda q, k, v, *, dropout_p=None, seed=None: v, {}),
        (lambda q, k, v, **options: v, {}),
    ],
)
def test_ordinary_calls_drop_nothing_whatever_the_defaults(function, given):
    assert subject(function).kernel.without_dropout == given


def test_ordinary_calls_and_backward_functions_are_asked_for_no_dropout():
    asked = []

    def attention(q, k, v, *, dropout_p, seed):
        asked.append((dropout_p, seed))
        return v

    own = subject(attention, supports=(*BY_CHANCE, "backward"))

    @own.kernel.backward
    def back(dout, q, k, v, *saved, dropout_p, seed):
        asked.append((dropout_p, seed))
        return q, k, v

    own(problem())
    own.gradients(problem(), np.ones((1, 1, 2, 1)))
    dropping(own, 0.5, 3)(problem())
    assert asked == [(0.0, 0)] * 3 + [(0.5, 3)]


@pytest.mark.parametrize("declared", [True, False])
def test_preflight_calls_without_dropout(declared):
    def attention(q, k, v, *, dropout_p, seed):
        asked.append(dropout_p)
        return v

    asked, own = [], subject(attention).kernel
    assert preflight(own if declared else replace(own, declared=False)).subjects
    assert set(asked) == {0.0}


@pytest.mark.parametrize(
    ("function", "needed"),
    [
        (lambda q, k, v, *, dropout_p, seed=None: v, False),
        (lambda q, k, v, *, dropout_p, seed: v, True),
        (lambda q, k, v, *, dropout_p, dropout_seed=0: v, True),
        (lambda q, k, v, **options: v, False),
    ],
)
def test_a_seed_is_needed_where_its_default_would_be_the_same_in_every_call(function, needed):
    assert needs_seed(subject(function).kernel) == needed
    assert not needs_seed(subject(function, supports=("dropout_by_chance",)).kernel)
