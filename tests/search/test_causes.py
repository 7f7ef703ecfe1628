"""Refutations under the hints that explain them, by hand."""

from attn_spec.search.causes import causes
from attn_spec.search.verdict import Row, Verdict


def row(property_id, *hints, verdict=Verdict.REFUTED):
    return Row(property=property_id, kernel="k", dtype="float32", verdict=verdict, hints=hints)


def test_the_hint_that_explains_most_comes_first_and_what_it_explains_is_not_told_again():
    first, second, third, other = row("a.a", "x", "y"), row("b.b", "y"), row("c.c", "y", "z"), row("d.d", "z")
    unexplained, held = row("e.e"), row("f.f", "y", verdict=Verdict.HELD)

    found = causes([unexplained, held, first, other, second, third])

    assert [(cause.hint, cause.rows) for cause in found] == [
        ("y", (first, second, third)),
        ("z", (other,)),
        ("", (unexplained,)),
    ]
    assert [str(cause) for cause in found] == [
        "3 refutations: y; a.a, float32 and 2 more",
        "1 refutation: z; d.d, float32",
        "1 refutation without a hint; e.e, float32",
    ]


def test_the_forward_pass_is_named_before_the_gradients():
    gradients, output = row("gradients.a", "x"), row("softmax.b", "x")

    assert causes([gradients, output])[0].rows == (output, gradients)
    assert causes([row("a.a", verdict=Verdict.SUSPECT)]) == []
