"""Random sound kernels are accused of nothing, and the same search refutes one that does a little less than it says."""

import functools
import itertools
from dataclasses import fields, replace

import pytest
from attn_spec.reports.proof.validation import false_alarms
from attn_spec.reports.proof.validation.false_alarms import Alarms, examine, main, run, summary, theorems
from attn_spec.reports.proof.validation.random_kernels import random_kernel

from attn_spec.contract.contract import CHOICES, Contract
from attn_spec.kernels.kernel import DECLARABLE
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTIES = load_all()
OUTPUT = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
DQ_DK = "gradients.query_and_key_gradients_are_within_their_bounds"
DV = "gradients.value_gradients_are_within_their_bounds"
#: Stages of a kernel of float32 throughout, and what must notice that one of them is tf32.
STAGES = {
    "multiplicands": OUTPUT,
    "score_accumulation": OUTPUT,
    "stored_scores": LSE,
    "softmax": LSE,
    "row_sum": LSE,
    "probabilities": OUTPUT,
    "output_accumulation": OUTPUT,
    "lse": LSE,
    "score_gradients": DQ_DK,
    "gradient_accumulation": DV,
    "partial_gradients": DV,
}

#: Fields in which quantisers of appended tokens differ, and the properties that judge caches of these.
APPENDED = {"format", "largest", "epsilon", "least_scale", "scale_dtype", "division_error", "rounding"}
OF_APPENDED = (
    "appending.new_tokens_are_quantised_as_declared",
    "appending.later_calls_attend_to_what_earlier_ones_have_quantised",
)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", name="uniform")
def _uniform():
    """Return the first random kernel that declares float32 for every stage, rounding to nearest, and gradients."""
    for drawn in map(random_kernel, itertools.count()):
        c = drawn.declares.at(drawn.dtype)
        uniform = {getattr(c, stage) for stage in STAGES} == {"float32"} and c.rounding == "nearest"
        uniform &= c.multiplicand_pieces == 1 and not c.alternatives
        if uniform and drawn.dtype == "float32" and drawn.kernel.supports >= {"backward", "gqa", "dv"}:
            return drawn
    raise AssertionError


def verdict(property_id, kernel, examples=60):
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=0, seed=0)
    return search(PROPERTIES[property_id], Subject(kernel, "float32"), profile, seed=0)[0].verdict


@pytest.fixture(scope="module")
def unchanged(uniform):
    """Return the cached verdict of a property on that kernel, which several stages ask for."""
    return functools.cache(lambda property_id: verdict(property_id, uniform.kernel))


def share(seed):
    """Return the few properties with which the sample examines the kernel of a seed."""
    return theorems()[(seed + 1) % 17 :: 17]


def families_of(seed):
    """Return the families of those of these properties that apply to the kernel."""
    drawn = random_kernel(seed)
    subject = Subject(drawn.kernel, drawn.dtype)
    return {property_.id.partition(".")[0] for property_ in share(seed) if property_.applies_to(subject)}


def sample(families):
    """Return some seeds, and the first seed for each of the families that these leave out."""
    seeds = list(range(1, 20, 2))
    left = families.difference(*map(families_of, seeds))
    for seed in itertools.count(2, 2):
        if not left:
            return seeds
        if found := left & families_of(seed):
            left, seeds = left - found, [*seeds, seed]
    raise AssertionError


@pytest.mark.parametrize("examples", [2, pytest.param(false_alarms.PROFILE.examples, marks=pytest.mark.exhaustive)])
def test_random_sound_kernels_are_accused_of_nothing(examples, monkeypatch):
    """A sample: a dozen kernels or more, each with another few of the properties, together of every family."""
    monkeypatch.setattr(false_alarms, "PROFILE", replace(false_alarms.PROFILE, examples=examples))
    # Few random kernels declare dropout by chance, or append; asked shapes are none of a search without shapes.
    left_out = {"asked_shapes", "dropout_by_chance", "appending"}
    families = {property_.id.partition(".")[0] for property_ in theorems()} - left_out
    total, seeds = Alarms(), sample(families)

    for seed in seeds:
        total.add(examine(random_kernel(seed), share(seed)))

    assert total.refuted == [], summary(total)
    assert total.kernels == len(seeds) >= 10
    assert total.examples > 15 * examples
    assert sum(total.by_family.values()) == sum(total.by_dtype.values()) == total.examples
    assert families <= set(total.by_family)
    assert set(total.by_dtype) == {"float64", "float32", "float16", "bfloat16"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name, row in PRESENTATIONS.items() if row.appends])
def test_random_sound_kernels_that_append_are_accused_of_nothing(name):
    total = run(20, 3, families=("appending",), presentation=name)

    assert total.refuted == [], summary(total)
    assert total.by_family == {"appending": total.examples}
    assert total.examples >= 20


def test_random_sound_kernels_that_make_scales_of_what_they_append_are_accused_of_nothing():
    drawn = [random_kernel(seed, "append") for seed in range(60)]
    quantising = [one for one in drawn if any(own.is_of_appended for own in one.executes.quantisers)]
    first = quantising[0]

    assert 6 < len(quantising) < 30
    for name in APPENDED:
        assert len({getattr(own, name) for one in quantising for own in one.executes.quantisers}) > 1, name
    total = examine(first, [PROPERTIES[name] for name in OF_APPENDED])
    assert total.refuted == [], summary(total)
    assert total.examples >= 2 * false_alarms.PROFILE.examples


@pytest.mark.one_in(6)
@pytest.mark.parametrize("stage", STAGES)
def test_a_random_kernel_with_one_stage_a_format_narrower_than_declared_is_refuted(uniform, unchanged, stage):
    narrower = "bfloat16" if stage == "lse" else "tf32"  # torch has no tf32
    worse = random_kernel(uniform.seed, **{stage: narrower})

    assert worse.declares == uniform.declares
    assert unchanged(STAGES[stage]) is Verdict.HELD
    assert verdict(STAGES[stage], worse.kernel) is Verdict.REFUTED


def test_kernels_are_drawn_by_their_seed_and_differ():
    drawn = [random_kernel(seed) for seed in range(60)]

    assert random_kernel(7).declares == drawn[7].declares
    assert random_kernel(7).order == drawn[7].order
    assert len({repr((one.declares, one.order)) for one in drawn}) == 60


def test_every_field_convention_and_ability_is_drawn():
    """Random kernels declare or execute whatever a contract can say; a third and more of them are BSHD."""
    drawn = [random_kernel(seed) for seed in range(1000)]
    every = [c for one in drawn for c in (one.executes, one.declares, *one.declares.alternatives)]

    for name in {item.name for item in fields(Contract)} - {"output"}:  # which no kernel may return otherwise
        assert len({getattr(c, name) for c in every}) > 1, name
    for name, allowed in CHOICES.items():
        if name not in STAGES and len(allowed) < 4:
            assert {getattr(c, name) for c in every} >= set(allowed), name
    for name in CONVENTIONS:
        assert len({getattr(one.kernel.conventions, name) for one in drawn}) > 1, name
    assert set.union(*({*one.kernel.supports} for one in drawn)) == set(DECLARABLE)
    assert {one.kernel.presentation for one in drawn} == set(PRESENTATIONS)
    for name in ("head_dims", "multiples", "exclusive"):
        assert len({repr(getattr(one.kernel.limits, name)) for one in drawn}) > 1, name
    assert 330 < sum(one.kernel.presentation == "BSHD" for one in drawn) < 500


@pytest.mark.parametrize("name", ["append", "states_pair"])
def test_a_kernel_in_a_presentation_differs_from_that_of_its_seed_in_how_it_is_called(name):
    for seed in range(12):
        drawn, other = random_kernel(seed, name), random_kernel(seed)
        assert drawn.kernel.presentation == name
        assert drawn.executes.softmax == other.executes.softmax
        drawn.kernel.contract_for(drawn.dtype)


def test_a_refutation_is_printed_with_all_it_takes_to_repeat_it(uniform, monkeypatch, capsys):
    worse = random_kernel(uniform.seed, row_sum="tf32")
    monkeypatch.setattr(false_alarms, "random_kernel", lambda *_: worse)
    monkeypatch.setattr(false_alarms, "theorems", lambda: [PROPERTIES[OUTPUT], PROPERTIES[LSE]])

    status = main(["--examples", "1"])

    printed = capsys.readouterr().out
    assert status == 1
    for text in (
        "FALSE ALARM",
        "accuracy.",
        f"random_kernel({uniform.seed}), float32, {uniform.kernel.presentation}",
        "Order(kv_tile=",
        "Recipe(",
        "1 random",
    ):
        assert text in printed


def test_a_run_is_a_function_of_its_seed_and_stops_when_it_has_enough(monkeypatch, capsys):
    monkeypatch.setattr(false_alarms, "theorems", lambda: [PROPERTIES[OUTPUT]])
    watched = []

    one, same = (run(6, seed=3, watch=lambda so_far: watched.append(so_far.examples)) for _ in range(2))

    assert (one.examples, one.kernels, one.by_dtype) == (same.examples, same.kernels, same.by_dtype)
    assert watched == [4, 8, 4, 8]
    assert main(["--examples", "6", "--seed", "3"]) == 0
    assert "8 examples on 2 random sound kernels: 0 refuted" in capsys.readouterr().out


def test_layers_alone_are_examined_by_the_families_that_are_named():
    total = run(16, 6, families=("layers",), layers=True)

    assert set(total.by_family) == {"layers"}
    assert (total.examples, total.kernels) == (16, 1)
    assert total.refuted == []


def test_a_family_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--family", "sideways"])

    assert "argument --family: invalid choice: 'sideways'" in capsys.readouterr().err
