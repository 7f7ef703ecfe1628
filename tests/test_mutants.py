"""The properties have teeth: each mutant is refuted by the property that names it, and nothing sound is accused."""

import re
from dataclasses import replace

import pytest
from attn_spec.reports import mutants
from attn_spec.reports.sound import SOUND

from attn_spec import claims
from attn_spec import property as properties
from attn_spec.profiles import Profile
from attn_spec.search import search
from attn_spec.subject import Subject
from attn_spec.verdict import Verdict

MUTANTS, CONTROLS = mutants.load_all()
PROPERTIES = properties.load_all()
#: Every gradient, with cotangents on both outputs.
GRADIENTS = "gradients.the_cotangent_of_the_log_sum_exp_is_honored"


def examine(name, kernel, dtype, examples, **changes):
    """The verdict of one property after at most so many problems, and the case, without shrinking."""
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(replace(PROPERTIES[name], **changes), Subject(kernel, dtype), profile, seed=0)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Cases in flight are written to the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_property_that_names_it_refutes_the_mutant(name):
    mutant = MUTANTS[name]

    row, case = examine(mutant.named_by, mutant.kernel, mutant.dtype, examples=400)

    assert row.verdict is Verdict.REFUTED
    with pytest.raises(AssertionError):
        PROPERTIES[mutant.named_by].check(Subject(mutant.kernel, mutant.dtype), case.problem)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_sound_kernel_passes_every_property(name):
    row, _ = examine(name, SOUND["sequential"], "float32", examples=25)

    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize(("kernel", "dtype"), [(name, dtype) for name in SOUND for dtype in SOUND[name].dtypes])
def test_every_sound_kernel_is_within_its_bounds(kernel, dtype):
    for name in ("accuracy.output_is_within_its_bound", "accuracy.log_sum_exp_is_within_its_bound"):
        row, _ = examine(name, SOUND[kernel], dtype, examples=8)
        assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize(("kernel", "dtype"), [(name, dtype) for name in SOUND for dtype in SOUND[name].dtypes])
def test_every_sound_kernel_is_within_its_gradient_bounds(kernel, dtype):
    row, _ = examine(GRADIENTS, SOUND[kernel], dtype, examples=12)
    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize("name", ["padded_columns_visible", "activations_saturate", "weights_as_quotient"])
def test_normal_problems_never_show_a_defect_that_its_own_property_finds(name):
    """Gradients of the mutant are right to the last bit of the bound as long as scores stay where randn puts them."""
    mutant = MUTANTS[name]

    def normal(subject):
        return claims.differentiable(subject, without=("bias", "scale", "empty"), regimes=["normal"])

    row, _ = examine(GRADIENTS, mutant.kernel, mutant.dtype, examples=60, problems=normal)
    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.parametrize("name", CONTROLS)
def test_an_unusual_kernel_that_is_right_passes_every_property_it_claims(name):
    control = CONTROLS[name]
    verdicts = {}

    for claim in PROPERTIES:
        row, _ = examine(claim, control.kernel, control.dtype, examples=4)
        verdicts[claim] = row.verdict
        assert row.verdict is not Verdict.REFUTED, (claim, row.message)

    assert sum(verdict is Verdict.HELD for verdict in verdicts.values()) > 30


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_property_names_a_mutant(name):
    assert name in {mutant.named_by for mutant in MUTANTS.values()}


@pytest.mark.parametrize("name", {**MUTANTS, **CONTROLS})
def test_every_mutant_has_a_story_and_a_source(name):
    mutant = {**MUTANTS, **CONTROLS}[name]

    assert re.match(
        r"[\w.-]+/[\w.-]+#\d+|arXiv \d{4}\.\d{4,5}|made up: .+|wafer.ai: .+|triton-lang/triton: .+", mutant.source
    )
    assert mutant.story.endswith(".")
    assert len(mutant.story) < 120
    assert mutant.dtype in mutant.kernel.dtypes


def test_stories_and_ids_are_told_once():
    stories = [mutant.story for mutant in (*MUTANTS.values(), *CONTROLS.values())]

    assert len(stories) == len(set(stories))
    assert not set(MUTANTS) & set(CONTROLS)
