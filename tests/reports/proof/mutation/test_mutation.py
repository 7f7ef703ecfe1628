"""The mutation run: what is drawn, what kills and what survives."""

from pathlib import Path

import pytest
from attn_spec.reports.proof.mutation import report as mutation
from attn_spec.reports.proof.mutation import sample as mutation_sample
from attn_spec.reports.proof.mutation import trial
from attn_spec.reports.proof.mutation.report import MutationError, main, run
from attn_spec.reports.proof.mutation.sample import MODULES, Mutant, path_of, places, sampled
from attn_spec.reports.proof.mutation.survivors import REASONS

from attn_spec.problem import masks


def source_of(module):
    return Path(module.__file__).read_text(encoding="utf-8")


def test_a_sample_is_that_of_its_seed():
    every = places(["problem.masks", "contract.readings"])

    drawn = [mutant.change for mutant in sampled(every, 3, seed=0)]

    assert drawn == [mutant.change for mutant in sampled(every, 3, seed=0)]
    assert len(set(drawn)) == 3
    assert drawn != [mutant.change for mutant in sampled(every, 3, seed=1)]


def test_an_edit_elsewhere_leaves_the_sample_as_it_is(monkeypatch):
    first = [mutant.change for mutant in sampled(places(["problem.masks"]), 20, seed=0)]
    edited = source_of(masks).replace("def everything()", "OTHER = 1 + 2 + 3\n\n\ndef everything()")
    monkeypatch.setattr(mutation_sample, "source_of", lambda _: edited)

    again = [mutant.change for mutant in sampled(places(["problem.masks"]), 20, seed=0)]

    kept = [change for change in again if "OTHER" not in change]
    assert 10 < len(kept) < 20
    assert kept == first[: len(kept)]


def test_annotations_and_defaults_of_types_are_not_mutated():
    """``X | None`` in an annotation is never evaluated."""
    every = [place for place in places(["judgement.measure"]) if place[1] == "core/ReplaceBinaryOperator_BitOr_BitAnd"]

    changed = list(sampled(every, 100, seed=0))

    assert len(changed) < len(every)
    assert not any("& None" in mutant.change for mutant in changed)


def test_decorators_are_not_mutated():
    """A frozen field is never set, and a cached value is found again, so that neither mutation changes a result."""
    every = [
        place
        for place in places(["judgement.measure", "bounds.forward.bounds"])
        if place[1] == "core/ReplaceTrueWithFalse"
    ]

    changed = list(sampled(every, 100, seed=0))

    assert changed
    assert not any("\n+@" in mutant.change for mutant in changed)


def test_a_mutant_is_killed_by_the_test_that_notices_it_and_others_survive():
    source = source_of(masks)
    broken = Mutant("problem.masks", "core/AddNot", source + "\nraise ValueError\n")
    equal = Mutant("problem.masks", "none", source + "\nUNUSED = 1\n")

    as_it_is, killed, survived = run([None, broken, equal], tests=("problem/masks",))

    assert as_it_is.killed_by is None
    assert killed.killed_by is not None
    assert survived.killed_by is None
    assert str(survived).endswith("problem.masks: SURVIVED")
    assert not hasattr(masks, "UNUSED")


def test_a_mutant_that_never_ends_is_killed_even_if_it_stops_the_clock():
    """The limit of a kernel's call stops the clock when it ends."""
    endless = "\nimport signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass\n"

    (found,) = run([Mutant("problem.masks", "none", source_of(masks) + endless)], tests=("problem/masks",), limit=1)

    assert found.killed_by is not None


def test_a_mutant_that_ends_its_process_is_killed_by_that():
    dying = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"

    (found,) = run([Mutant("problem.masks", "none", source_of(masks) + dying)], tests=("problem/masks",))

    assert found.killed_by == "the death of the process, exit code -11"


def test_whoever_asks_for_the_source_of_a_mutant_gets_the_mutated_one():
    """Witnesses delete terms from the source that the loader gives."""
    mutant = Mutant("problem.masks", "none", source_of(masks) + "\nUNUSED = 1\n")

    assert trial._Mutated(mutant).get_source("attn_spec.problem.masks") == mutant.source


def test_every_reason_is_of_a_line_that_stands_in_its_module():
    missing = [
        (module, line[1:])
        for module, change in REASONS
        for line in change.splitlines()
        if line.startswith("-") and line[1:] not in mutation_sample.source_of(module).splitlines()
    ]

    assert not missing, "take these reasons out of survivors.py, or write them for the lines as they are now"


def test_a_survivor_without_a_reason_fails_the_run(monkeypatch, capsys):
    monkeypatch.setattr(mutation, "run", lambda sample, *_: (mutation.Outcome(one, None, 0.0) for one in sample))

    assert main(["--mutants", "2", "--module", "problem.masks", "--jobs", "1"]) == 1

    shown = capsys.readouterr().out
    assert shown.count("problem.masks: SURVIVED\ncore/") == 2
    assert shown.count("no reason is known") == 2
    assert "0 of 2 mutants killed (0%); 2 without a reason" in shown


def test_tests_that_fail_without_a_mutation_are_named(monkeypatch):
    monkeypatch.setattr(mutation, "run", lambda *_: (one for one in [mutation.Outcome(None, "test_x", 0.0)]))

    with pytest.raises(MutationError, match="the tests fail without a mutation: test_x; mend that first"):
        main(["--mutants", "1", "--module", "problem.masks"])


def test_missing_tests_are_named():
    with pytest.raises(MutationError, match=r"no test file .*test_nothing.py: run this in a checkout"):
        list(run([None], tests=("nothing",)))


def test_every_module_exists():
    assert all(path_of(module).exists() for module in MODULES)
