"""A shape that a user asks for is read whatever the order of its letters, and refused with what to write instead."""

import re

import pytest

from attn_spec.problem.shape_spec import AskedShape, ShapeError

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
        ("H=4,S=16,D=-8", "'H=4,S=16,D=-8': D must be 1 or more, not -8"),
    ],
)
def test_what_is_no_shape_is_refused(text, said):
    with pytest.raises(ShapeError, match=f"^{re.escape(said)}"):
        AskedShape.parse(text)
