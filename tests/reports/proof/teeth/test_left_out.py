"""Every documented bug is either a mutant or left out for a reason, never both."""

import re

import pytest
from attn_spec.reports.proof.teeth.left_out import LEFT_OUT
from attn_spec.reports.proof.zoo import mutants

THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")
MUTANTS, CONTROLS = mutants.load_all()
SOURCES = [source for row in LEFT_OUT for source in row.sources]


@pytest.mark.parametrize("row", LEFT_OUT, ids=lambda row: row.sources[0])
def test_a_bug_that_is_left_out_says_what_it_was_and_why(row):
    for text in (row.what, row.why):
        assert text.endswith(".")
        assert 20 < len(text) < 120
    assert row.what != row.why


@pytest.mark.parametrize("source", SOURCES)
def test_a_bug_that_is_left_out_has_a_public_source(source):
    assert THREAD.fullmatch(source)


def test_no_bug_is_left_out_twice():
    assert len(SOURCES) == len(set(SOURCES))


def test_no_bug_is_both_a_mutant_and_left_out():
    retold = {thread for made in (*MUTANTS.values(), *CONTROLS.values()) for thread in THREAD.findall(made.source)}

    assert retold
    assert retold.isdisjoint(SOURCES)
