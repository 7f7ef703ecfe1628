"""Every term of a bound is needed: its witness leaves the bound without it, and no guard of the judge is idle."""

import numpy as np
import pytest
from attn_spec.reports.witnesses import report as witnesses
from attn_spec.reports.witnesses.deletions import Deletion, TextError, deleted, source_of
from attn_spec.reports.witnesses.guards import GUARDS, missed
from attn_spec.reports.witnesses.report import TABLES, WITNESSES, Outcome, main, outcomes
from attn_spec.reports.witnesses.struck import struck
from attn_spec.reports.witnesses.unwitnessed import UNWITNESSED

from attn_spec.error import contract, score_bounds, weight_bounds
from attn_spec.error.intermediates import intermediates
from attn_spec.error.presets import FP32
from attn_spec.search.regimes import Recipe

X = intermediates(Recipe(query_length=2, key_length=3, head_dim=2).problem())
NARROW = FP32.at("float16")
R = struck("R", "error.weight_bounds", "alpha + [-(1 + R) * -]one, 0.0), np")


@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("module", TABLES)
def test_every_term_is_needed(module, share):
    found = list(outcomes([w for w in WITNESSES if w.deletion.module == module][::share]))

    assert found
    assert [outcome.witness.deletion.name for outcome in found if not outcome.is_needed] == []


def test_every_guard_of_the_judge_is_needed():
    assert list(missed(GUARDS)) == []


def test_a_term_without_a_witness_stands_in_its_module_and_has_a_reason():
    for deletion, reason in UNWITNESSED:
        assert deletion.changed(source_of(deletion.module)) != source_of(deletion.module)
        assert reason.strip().endswith(".") is False
        assert len(reason) > 20


def test_terms_have_names_of_their_own():
    names = [w.deletion.name for w in WITNESSES] + [g.deletion.name for g in GUARDS] + [d.name for d, _ in UNWITNESSED]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name",
    [
        "R in alpha",
        "the base-2 maximum",
        "one of two roundings of the scale",
        "cast.eta in the row sum",
        "base 2 of the backward weights",
        "the slack in inverse_sum",
        "the store of the row sum",
        "the entry of a weight to the row sum",
        "the cast of dS",
    ],
)
def test_terms_that_are_easily_forgotten_have_a_witness(name):
    assert name in {w.deletion.name for w in WITNESSES}


def test_a_term_is_back_when_its_deletion_ends():
    def alpha():
        return weight_bounds.log_weight_error(X, NARROW).rescaled

    before = alpha()
    with deleted(R):
        without = alpha()

    assert (without <= before).all()
    assert (without < before).any()
    np.testing.assert_array_equal(alpha(), before)


def test_a_deletion_reaches_caches_properties_and_names_imported_elsewhere():
    far = FP32.at("float32")
    score = struck("score", "error.score_bounds", "return np.where(x.visible, [-delta-]{+0.0 * delta+}, 0.0)")
    reach = struck(
        "reach", "error.contract", 'return [-self.reference_slack if self.reference == "maximum" else -]self.ref'
    )
    before = weight_bounds.log_weight_error(X, far).delta

    with deleted(score, reach):
        assert not score_bounds.score_error(X, far).any()
        assert not weight_bounds.log_weight_error(X, far).delta.any()
        assert contract.Contract(reference_slack=2.0).reference_distance == 0.0

    assert contract.Contract(reference_slack=2.0).reference_distance == 2.0
    np.testing.assert_array_equal(weight_bounds.log_weight_error(X, far).delta, before)


def test_a_text_that_is_not_there_once_is_refused():
    for old, times in (("never written", 0), ("return", source_of("error.bounds").count("return"))):
        deletion = Deletion(name="a term", module="error.bounds", old=old, new="")
        with pytest.raises(TextError, match=f"a term: {times} times in error/bounds.py, not once"), deleted(deletion):
            pass


def test_what_is_struck():
    deletion = struck("a term", "bounds", "growth([-(a, 1), -](b, [-2-]{+1+}))")

    assert (deletion.old, deletion.new) == ("growth((a, 1), (b, 2))", "growth((b, 1))")


def test_the_report_prints_a_table_and_its_totals(capsys, monkeypatch):
    one = WITNESSES[0]
    monkeypatch.setattr(witnesses, "WITNESSES", (one,))

    assert main([]) == 0
    shown = capsys.readouterr().out
    assert f"{one.deletion.module}: {one.deletion.name}" in shown
    assert "1 terms: 0 not shown to be needed" in shown
    assert f"{len(GUARDS)} guards of the judge: 0 not shown to be needed" in shown
    assert f"{len(UNWITNESSED)} terms have a reason instead of a witness" in shown


@pytest.mark.parametrize(("with_term", "without"), [(0.9, 0.99), (1.1, 2.0)])
def test_a_term_that_is_not_needed_is_named(capsys, monkeypatch, with_term, without):
    idle = Outcome(witness=WITNESSES[0], with_term=with_term, without=without)
    monkeypatch.setattr(witnesses, "outcomes", lambda every: [idle])

    assert main(["--module", WITNESSES[0].deletion.module]) == 1
    assert f"1 not shown to be needed\n{WITNESSES[0].deletion.name}" in capsys.readouterr().out
