"""Named terms: a bound is as before while nothing is struck, and caches keep apart what is."""

import numpy as np
import pytest

from attn_spec.bounds.forward import score_bounds, weight_bounds
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FP32
from attn_spec.contract.terms import count, guard, met, remembered, standing, stands, struck, term, times
from attn_spec.search.drawing.regimes import Recipe

X = intermediates(Recipe(query_length=2, key_length=3, head_dim=2).problem())
NARROW = FP32.at("float16")


def evaluated():
    both = standing(("first", 1), ("second", 2))
    return (
        term("added", 3.0),
        times("factor", 4.0),
        count("roundings", 5),
        guard("guard", condition=True, without=False),
        both,
    )


def test_nothing_is_struck():
    assert evaluated() == (3.0, 4.0, 5, True, (1, 2))
    assert stands("added")


def test_all_is_struck():
    with struck("added", "factor", "roundings", "guard", "second"):
        assert evaluated() == (0.0, 1.0, 0, False, (1,))
        assert not stands("added")


def test_some_roundings_stay_and_what_they_are_part_of_does_too():
    with struck("added", "roundings", left=2):
        assert evaluated()[:3] == (3.0, 4.0, 2)
    with struck("roundings", left=9):
        assert count("roundings", 5) == 5


def test_strikes_add_up_and_end_also_after_an_error():
    with struck("added"), struck("factor"):
        assert evaluated()[:2] == (0.0, 1.0)
    with pytest.raises(ZeroDivisionError), struck("added"):
        times("factor", 1 / 0)
    assert evaluated()[:2] == (3.0, 4.0)


@pytest.mark.parametrize(
    ("value", "without", "left"),
    [
        (np.ones((2, 3)), 0.0, np.zeros((2, 3))),
        (np.ones(3, dtype=int), 0.0, np.zeros(3, dtype=int)),
        (np.ones(3, dtype=int), np.inf, np.full(3, np.inf)),
        (np.ones(3), np.arange(2), np.arange(2)),
        ("a word", "another", "another"),
    ],
)
def test_a_number_stands_for_an_array_of_it(value, without, left):
    with struck("name"):
        found = term("name", value, without)

    np.testing.assert_array_equal(found, left)
    assert getattr(found, "dtype", None) == getattr(left, "dtype", None)


def test_the_names_that_are_met_are_those_of_terms_that_are_added_and_of_counts():
    with met() as outer:
        evaluated()
        with met() as inner:
            term("another", 1.0)
        term("instead", 1.0, 2.0)

    assert (list(outer), list(inner)) == (["added", "roundings"], ["another"])


def test_a_cache_keeps_apart_what_is_struck_and_forgets_what_was_not_asked_for_last():
    calls = []

    @remembered(2)
    def doubled(x):
        calls.append(x)
        return 2 * term("x", x)

    assert [doubled(x) for x in (1, 2, 1, 3, 1, 2)] == [2, 4, 2, 6, 2, 4]
    assert calls == [1, 2, 3, 2]
    with struck("x"):
        assert doubled(2) == 0
    with met() as names:
        assert doubled(2) == 4
    assert list(names) == ["x"]
    assert doubled(2) == 4


def test_a_strike_reaches_theorems_that_were_asked_before_and_those_that_use_them():
    before = weight_bounds.log_weight_error(X, NARROW)

    with struck("rescalings of a weight", "the score's error in a weight"):
        without = weight_bounds.log_weight_error(X, NARROW)

    assert (without.rescaled <= before.rescaled).all()
    assert (without.rescaled < before.rescaled).any()
    np.testing.assert_array_equal(weight_bounds.log_weight_error(X, NARROW).rescaled, before.rescaled)
    with struck("roundings of the scale"):
        less = weight_bounds.log_weight_error(X, FP32.at("float32")).delta
    assert (less < score_bounds.score_error(X, FP32.at("float32"))).any()
