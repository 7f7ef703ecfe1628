"""Which hints a case keeps: of a small problem, those that explain the first one too."""

from attn_spec.search.property import Refutation, hints_of


def refuted(*hints):
    return Refutation("", explain=lambda: hints)


def test_where_several_explain_the_smallest_problem_the_first_one_decides():
    assert hints_of(refuted("a", "b"), refuted("b", "c")) == ("b",)
    assert hints_of(refuted("a", "b"), refuted()) == ("a", "b")
    assert hints_of(refuted("a", "b"), refuted("c")) == ("a", "b")
    assert hints_of(refuted("a", "b")) == ("a", "b")
    assert hints_of(ValueError(), refuted("a")) == hints_of(None) == ()


def test_a_hint_that_stands_alone_is_kept_and_the_first_problem_is_not_asked():
    def ask():
        raise AssertionError

    assert hints_of(refuted("a"), Refutation("", explain=ask)) == ("a",)
