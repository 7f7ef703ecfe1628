"""A shape that a user asks for is read whatever the order of its letters, and refused with what to write instead."""

import re

import pytest

from attn_spec.problem import patterns
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.shape_spec import DRAWN, LENGTHS, AskedShape, ShapeError
from attn_spec.search.drawing.regimes import Recipe, RecipeError

WHOLE = "B=2,Hq=32,Hkv=8,Sq=4096,Sk=8192,D=128,Dv=64"


def test_every_letter_is_a_length():
    found = AskedShape.parse(WHOLE)

    assert found == AskedShape(
        batch=2, query_heads=32, kv_heads=8, query_length=4096, key_length=8192, head_dim=128, value_dim=64
    )
    assert str(found) == WHOLE
    assert AskedShape.parse(" Dv = 64, D=128,Sk=8192,Sq=4096,Hkv=8,Hq=32,B=2") == found


def test_letters_that_say_two_and_lengths_that_need_not_be_said():
    assert str(AskedShape.parse("H=4,S=16,D=8")) == "B=1,Hq=4,Hkv=4,Sq=16,Sk=16,D=8"


def test_numbers_of_each_sequence():
    found = AskedShape.parse("H=8,Sq=1,D=64,seqused_k=1:4096:17")

    assert str(found) == "B=3,Hq=8,Hkv=8,Sq=1,Sk=4096,D=64,seqused_k=1:4096:17"
    assert AskedShape.parse(str(found)) == found
    assert found.recipe_fields["seqused_k"] == "1:4096:17@B111"
    assert Recipe(**found.recipe_fields).problem().end_keys.tolist() == [1, 4096, 17]
    drawn = Recipe(**AskedShape.parse("B=9,H=1,S=40,D=8,seqused_q=ragged,leftpad_k=edges").recipe_fields).problem()
    assert len(set(drawn.used_queries)) > 1
    assert len(set(drawn.first_keys)) > 1


def test_a_factor_of_the_scores():
    found = AskedShape.parse("H=8,S=4,D=64,scale=0.0625")

    assert str(found) == "B=1,Hq=8,Hkv=8,Sq=4,Sk=4,D=64,scale=0.0625"
    assert AskedShape.parse(str(found)) == found
    assert Recipe(**found.recipe_fields).problem().scale_value == 0.0625
    for text in ("wide", "inf", "0.1,scale=0.2"):
        with pytest.raises(ShapeError, match="scale"):
            AskedShape.parse(f"H=8,S=4,D=64,scale={text}")


def test_the_words_for_numbers_of_sequences_are_the_options_and_patterns_of_such():
    assert set(LENGTHS) == {name for name, row in OPTIONS.items() if row.up_to}
    assert {name: letter[1:].upper() for name, letter in LENGTHS.items()} == {n: OPTIONS[n].up_to for n in LENGTHS}
    assert set(DRAWN) <= patterns.LENGTHS.keys() & patterns.PADS.keys()


def test_a_list_of_numbers_is_no_pattern_of_other_options():
    with pytest.raises(RecipeError, match="unknown mask pattern '1:2@B111'"):
        Recipe(batch=2, mask="1:2@B111")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' in '' must be a letter and a length, as in B=2,Hq=32,Hkv=8,Sq=4096,Sk=4096,D=128"),
        ("H=4,S=16,D", "'D' in 'H=4,S=16,D' must be a letter and a length"),
        ("H=4,S=1e3,D=8", "'S=1e3' in 'H=4,S=1e3,D=8' must be a letter and a length"),
        ("H=4,S=16,d=8", "unknown letter 'd' in 'H=4,S=16,d=8'; known are B, Hq, Hkv, Sq, Sk, D, Dv; S is Sq and Sk"),
        ("H=4,S=16", "'H=4,S=16' lacks D; a full shape is B=2,Hq=32,"),
        ("D=8", "'D=8' lacks Hq, Hkv, Sq, Sk; a full shape is"),
        ("H=4,Hq=8,S=16,D=8", "'H=4,Hq=8,S=16,D=8' gives Hq twice; leave one out"),
        ("Hq=32,Hkv=12,S=16,D=8", "'Hq=32,Hkv=12,S=16,D=8': Hq must be a multiple of Hkv, since Hq / Hkv query heads"),
        ("H=4,S=0,D=8", "'H=4,S=0,D=8': Sq must be 1 or more, not 0"),
        (
            "H=4,S=9,D=8,seqused_k=1:x",
            "seqused_k must be a number for each sequence, as in seqused_k=1:4096:17, or ragged",
        ),
        ("H=4,S=9,D=8,seqused_k=1:10", "'H=4,S=9,D=8,seqused_k=1:10': seqused_k must be at most Sk=9, not 10"),
        (
            "B=3,H=4,S=9,D=8,seqused_q=1:2",
            "'B=3,H=4,S=9,D=8,seqused_q=1:2': seqused_q must have a number for each of B=3",
        ),
        ("H=4,S=9,D=8,seqused_k=1,seqused_k=2", "'H=4,S=9,D=8,seqused_k=1,seqused_k=2' gives seqused_k twice"),
        ("H=4,S=16,D=-8", "'H=4,S=16,D=-8': D must be 1 or more, not -8"),
    ],
)
def test_what_is_no_shape_is_refused(text, said):
    with pytest.raises(ShapeError, match=f"^{re.escape(said)}"):
        AskedShape.parse(text)
