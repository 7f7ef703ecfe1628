"""Every term of a bound is needed: its witness leaves the bound without it, and no guard of the judge is idle."""

import pytest
from attn_spec.reports.proof.witnesses import report as witnesses
from attn_spec.reports.proof.witnesses.guards import GUARDS, missed
from attn_spec.reports.proof.witnesses.names import named
from attn_spec.reports.proof.witnesses.report import TABLES, WITNESSES, Outcome, main, outcomes
from attn_spec.reports.proof.witnesses.strikes import both, but, names_of, without
from attn_spec.reports.proof.witnesses.unwitnessed import UNWITNESSED

from attn_spec.contract.terms import count, term

STRIKES = [w.strike for w in WITNESSES] + [guard.name for guard in GUARDS] + [strike for strike, _ in UNWITNESSED]


@pytest.mark.parametrize("share", [15, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("table", TABLES)
def test_every_term_is_needed(table, share):
    found = list(outcomes([w for w in WITNESSES if w.table == table][::share]))

    assert found
    assert [str(outcome.witness.strike) for outcome in found if not outcome.is_needed] == []


def test_every_guard_of_the_judge_is_needed():
    assert list(missed(GUARDS)) == []


def test_a_term_without_a_witness_has_a_reason():
    for _, reason in UNWITNESSED:
        assert reason.strip().endswith(".") is False
        assert len(reason) > 20


def test_every_name_is_struck_once_and_nothing_else_is():
    struck, known = {name for strike in STRIKES for name in names_of(strike)}, set(named())

    assert len(STRIKES) == len(set(STRIKES))
    assert known - struck == set(), (
        "write a witness, a guard or a reason in reports/proof/witnesses for each of these names"
    )
    assert struck - known == set(), "no bound has a term of such a name: put it back, or take it out of the tables"


def test_a_name_stands_in_one_module():
    assert {name: modules for name, modules in named().items() if len(modules) > 1} == {}


@pytest.mark.parametrize(
    "name",
    [
        "rescalings of a weight",
        "the base-2 maximum",
        "roundings of the scale",
        "underflow of the cast in the row sum",
        "base 2 of the backward weights",
        "the reference's error in the inverse of a row sum",
        "the store of the row sum",
        "the entry of a weight to the row sum",
        "the cast of dS",
    ],
)
def test_terms_that_are_easily_forgotten_have_a_witness(name):
    assert name in {name for w in WITNESSES for name in names_of(w.strike)}


def test_strikes_of_several_names_and_of_some_roundings():
    def bound():
        return term("a", 1.0) + term("b", 2.0) + count("c", 5)

    for strike, left, shown in (("a", 7.0, "a"), (both("a", "b"), 5.0, "a and b"), (but(1, "c"), 4.0, "c, but 1")):
        with without(strike):
            assert bound() == left
        assert str(strike) == shown
    assert bound() == 8.0


def test_the_report_prints_a_table_and_its_totals(capsys, monkeypatch):
    one = WITNESSES[0]
    monkeypatch.setattr(witnesses, "WITNESSES", (one,))

    assert main([]) == 0
    shown = capsys.readouterr().out
    assert str(one.strike) in shown
    assert "1 terms: 0 not shown to be needed" in shown
    assert f"{len(GUARDS)} guards of the judge: 0 not shown to be needed" in shown
    assert f"{len(UNWITNESSED)} terms have a reason instead of a witness" in shown


@pytest.mark.parametrize(("with_term", "without"), [(0.9, 0.99), (1.1, 2.0)])
def test_a_term_that_is_not_needed_is_named(capsys, monkeypatch, with_term, without):
    idle = Outcome(witness=WITNESSES[0], with_term=with_term, without=without)
    monkeypatch.setattr(witnesses, "outcomes", lambda every: [idle])

    assert main(["--table", WITNESSES[0].table]) == 1
    assert f"1 not shown to be needed\n{WITNESSES[0].strike}" in capsys.readouterr().out
