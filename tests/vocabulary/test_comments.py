"""A comment or docstring beside a name is read as it stands there."""

from enum import StrEnum
from types import ModuleType

from attn_spec.vocabulary.comments import comments_of, paragraphs, plain, summary


class Rows:
    """A summary over
    two lines. And more.

    Another paragraph, of :class:`Rows` and ``code``.
    """

    #: The first, in
    #: two lines.
    first: int = 1
    second: int = 2

    #: The third.
    third: int = 3

    # No comment of Sphinx.
    fourth: int = 4

    def fifth(self):
        #: Not a field.
        self.sixth = 6


class Words(StrEnum):
    #: One.
    ONE = "one"


def test_a_name_has_the_comment_above_it_and_shares_that_of_the_name_above():
    assert comments_of(Rows) == {
        "first": "The first, in two lines.",
        "second": "The first, in two lines.",
        "third": "The third.",
    }


def test_members_of_an_enumeration_have_comments():
    assert comments_of(Words) == {"ONE": "One."}


def test_a_module_has_comments(tmp_path, monkeypatch):
    tmp_path.joinpath("commented.py").write_text(
        "#: Of a constant\n#: of several lines.\nMADE = (\n    1,\n)\nOTHER = 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("commented")

    assert isinstance(module, ModuleType)
    assert comments_of(module) == {
        "MADE": "Of a constant of several lines.",
        "OTHER": "Of a constant of several lines.",
    }


def test_docstrings_by_paragraph_without_marks():
    assert summary(Rows) == "A summary over two lines. And more."
    assert paragraphs(Rows)[1] == "Another paragraph, of Rows and code."
    assert plain("see :meth:`Contract.at` and :func:`attn_spec.kernel`") == "see Contract.at and attn_spec.kernel"
