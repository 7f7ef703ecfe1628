"""An error of attn-spec's own says so, and where to report it; a name that is none says which was meant."""

import pytest

from attn_spec import faults
from attn_spec.nearest_names import suggestion
from attn_spec.problem.options import OPTIONS


def test_the_place_is_the_last_one_inside_attn_spec():
    def key(x):
        raise RuntimeError("two\nlines")

    with pytest.raises(RuntimeError) as raised:
        suggestion(type("Word", (str,), {"__bool__": key})("zz"), ["name"])

    assert ", not of the kernel: RuntimeError: two at " in faults.text(raised.value)
    assert "nearest_names.py:" in faults.text(raised.value)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("two\nlines", "ValueError: two"),
        ("at 3:9:\n    x = dot(a, b)\n        ^\nK must be 16 or more", "ValueError: at 3:9: K must be 16 or more"),
        ("at 3:9:\n    ^", "ValueError: at 3:9:"),
        ("", "ValueError:"),
    ],
)
def test_an_error_is_told_in_one_line(message, told):
    assert faults.in_one_line(ValueError(message)) == told


def test_faults_go_where_the_package_says():
    assert faults._where(["Source, https://a.example", "Issues, https://b.example/new"]) == "at https://b.example/new"
    assert faults._where([]) == "to the maintainers, with the command"


@pytest.mark.parametrize(
    ("word", "end"),
    [
        ("casual", "; did you mean 'causal'?"),
        ("y_b", "; did you mean 'rotary_base'?"),
        ("nothing_like_it", "; none is near"),
        ("", "; none is near"),
    ],
)
def test_the_nearest_names_are_suggested(word, end):
    assert suggestion(word, OPTIONS, "; none is near") == end


@pytest.mark.parametrize(("noun", "said"), [("int", "an int"), ("ArrayImpl", "an ArrayImpl"), ("list", "a list")])
def test_a_noun_has_its_article(noun, said):
    assert faults.with_article(noun) == said
