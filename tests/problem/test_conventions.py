"""Rows of conventions: what they say agrees with itself, and what is no choice is refused with those that are."""

from dataclasses import fields

import pytest

from attn_spec.problem.conventions import (
    CONVENTIONS,
    DEFAULTS,
    OF_ANSWERS,
    OPEN,
    ConventionError,
    Conventions,
    of_call,
    of_kernel,
)
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.quantities import QUANTITIES


@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_row_agrees_with_itself(name):
    row = CONVENTIONS[name]

    assert row.name == name
    assert row.default in row.choices
    # A kernel that names no convention promises something, but of rows that are not there.
    assert row.default != OPEN or row.behind_lengths
    assert row.says.endswith(".")
    assert all(row.choices.values())
    assert set(row.decides) <= set(QUANTITIES)
    assert row.is_option == (name in OPTIONS)
    if row.is_option:
        assert (row.default, set(row.choices)) == (OPTIONS[name].off, set(OPTIONS[name].draws))
    assert row.unnamed == (OPEN if row.left_open else row.default)


def test_every_field_has_its_row():
    assert [item.name for item in fields(Conventions)] == list(CONVENTIONS)
    assert all(getattr(DEFAULTS, name) == row.default for name, row in CONVENTIONS.items())


def test_a_call_that_names_nothing_leaves_open_what_sound_systems_answer_differently_without_keys():
    made = of_call({})

    assert {name for name in CONVENTIONS if made.choice(name) == OPEN} == {
        name for name, row in OF_ANSWERS.items() if row.without_keys
    }
    assert of_call({"empty_row": "nan"}).empty_row == "nan"


def test_a_kernel_promises_the_defaults_and_leaves_open_what_has_a_choice_for_it():
    assert of_kernel({}) == DEFAULTS
    assert of_kernel({"empty_lse": OPEN}).empty_lse == OPEN
    assert of_kernel(Conventions(lse_base="2")).lse_base == "2"
    with pytest.raises(ConventionError, match="convention empty_row must be one of 'zero', 'mean_of_v', 'nan', not"):
        of_kernel({"empty_row": OPEN})


@pytest.mark.parametrize("make", [Conventions, lambda **named: of_call(named)])
def test_what_is_no_choice_is_refused_with_the_nearest_one(make):
    with pytest.raises(ConventionError, match=r"'bottom_right', not 'botom_right'; did you mean 'bottom_right'\?"):
        make(causal_alignment="botom_right")
    with pytest.raises(ConventionError, match=r"deterministic must be one of True, False, not 'yes'"):
        make(deterministic="yes")
    with pytest.raises(ConventionError, match=r"lse_base must be one of 'e', '2', not \['e'\]"):
        make(lse_base=["e"])


@pytest.mark.parametrize("make", [of_kernel, of_call])
def test_what_is_no_convention_is_refused_with_the_nearest_one(make):
    with pytest.raises(
        ConventionError, match=r"unknown conventions empty_rows; known are .*; did you mean 'empty_row'"
    ):
        make({"empty_rows": "zero"})
