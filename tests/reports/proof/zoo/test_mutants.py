"""The properties have teeth: each mutant is refuted by the property that names it, and nothing sound is accused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.proof.zoo import mutants, quantised_writes

from attn_spec.contract.quantisers import Quantiser
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.emulation.split import NormalizedSplitAttention, SplitAttention
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.problem.traits import adds_to_scores, named_by, replaces_score, weighs_linearly
from attn_spec.search import assertions
from attn_spec.search import property as properties
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES, Profile
from attn_spec.search.property import Refutation
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from tests.sound_subjects import SOUND_SUBJECTS

MUTANTS, CONTROLS = mutants.load_all()
PROPERTIES = properties.load_all()
#: Every gradient, with cotangents on both outputs.
GRADIENTS = "gradients.the_cotangent_of_the_log_sum_exp_is_honored"
#: Sound kernels with descales, with outputs in 8 bits, and of paged calls, which some properties are about.
DESCALED = emulate(
    "descaled",
    PRECISE,
    supports=("scale", "causal", "gqa", "cross", "dv", "lse", "seqused_k", *FACTORS, *DESCALE_AXES),
)
EIGHT = replace(PRECISE, output="float8_e4m3fn", output_overflow="saturates")
SCALED = emulate("scaled", EIGHT, supports=("scale", "causal", "gqa", "cross", "dv", "lse", "o_scale"))
PAGED = emulate("paged", PRECISE, presentation="paged", supports=("causal", "gqa", "cross", "dv", "lse"))
#: A sound kernel that makes codes of queries and keys, for properties of quantisers.
QUANTISING = emulate(
    "quantising",
    replace(PRECISE, quantisers=Quantiser.of_both(block=8, division_error=0.0)),
    supports=("scale", "causal", "gqa", "cross", "dv", "lse", "seqused_k"),
)
#: One with codes of vectors that are rotated, and a scale for each block of columns.
BY_COLUMNS = emulate(
    "by_columns",
    replace(
        PRECISE,
        quantisers=Quantiser.of_both(
            format="float4_e2m1fn",
            block=1,
            columns=4,
            scale_dtype="float8_e4m3fn",
            second_level="head",
            rotates="hadamard",
            signs=(1, -1, -1),
        ),
    ),
    supports=("scale", "causal", "gqa", "cross", "dv", "lse"),
)
#: A sound kernel of calls that append, for properties of these.
APPENDING = emulate(
    "appending",
    PRECISE,
    presentation="append_paged",
    supports=("causal", "causal_alignment", "gqa", "cross", "lse", "rotary"),
)
#: One that rounds new keys and values to caches of 8 bits.
ROUNDING = emulate(
    "rounding",
    PRECISE,
    dtypes=("q:bfloat16,kv:float8_e4m3fn",),
    presentation="append_paged",
    supports=("causal", "gqa", "cross", "k_descale", "v_descale", "descale_by_head"),
    conventions={"cache_overflow": "saturates"},
)
#: One that makes the scales of what it appends.
APPENDING_SCALES = quantised_writes.made("appending_scales", "int8", "append_paged")
#: One that a user asks for.
SHAPE = AskedShape.parse("B=2,Hq=4,Hkv=2,Sq=37,Sk=40,D=8")
ACCURATE = "accuracy.output_is_within_its_bound"
MERGED = "online_rescaling.the_maximum_may_move_anywhere"


def examine(name, kernel, dtype, examples, shapes=(SHAPE,), **changes):
    """Return the verdict of one property after at most ``examples`` problems, and the case, without shrinking."""
    profile = Profile(name="test", examples=examples, floor=1, seconds=300, shrink_seconds=0, seed=0)
    return search(replace(PROPERTIES[name], **changes), Subject(kernel, dtype, shapes=shapes), profile, seed=0)


def words(message):
    """Return the words and numbers of a message, in alphabetical order."""
    return sorted(re.findall(r"[\w.+-]+", message))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_property_that_names_it_refutes_the_mutant(name):
    mutant = MUTANTS[name]

    examples = PROFILES["ci"].examples if mutant.family == "sizes" else 400
    row, case = examine(mutant.named_by, mutant.kernel, mutant.dtype, examples, mutant.shapes)

    assert row.verdict is mutant.verdict
    subject = Subject(mutant.kernel, mutant.dtype)

    def check_often():  # what one that counts its calls does depends on how many came before, and some draw
        for _ in range(200):
            PROPERTIES[mutant.named_by].check(subject, case.problem)

    with pytest.raises(AssertionError):
        check_often()


def examples(few, many):
    """Parametrize the number of problems of a search: few, and in an exhaustive test many."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.exhaustive)])


@pytest.mark.one_in(6)
@examples(3, 25)
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_sound_kernel_passes_every_property(name, examples):
    """Each that it concerns; one has other scores, and their parameters, and takes the rest in an exhaustive test."""
    of_scores = bool(set(PROPERTIES[name].needs) & named_by([replaces_score])) or "parameters" in name
    kernels = ["other_scores"] * (of_scores or examples > 3) + ["sequential"] * (not of_scores)
    kernels = ["linear"] if set(PROPERTIES[name].needs) & named_by([weighs_linearly]) else kernels

    for kernel in kernels:
        others = (PAGED, DESCALED, SCALED, QUANTISING, BY_COLUMNS, APPENDING, ROUNDING, APPENDING_SCALES)
        subjects = (
            Subject(each, "float32" if "float32" in each.dtypes else each.dtypes[0])
            for each in (SOUND[kernel], *others)
        )
        chosen = next(each for each in subjects if PROPERTIES[name].applies_to(each))
        row, _ = examine(name, chosen.kernel, chosen.dtype, examples)
        assert row.verdict is Verdict.HELD, row.message


@pytest.mark.one_in(6)
@examples(2, 8)
@pytest.mark.parametrize(("kernel", "dtype"), SOUND_SUBJECTS)
def test_every_sound_kernel_is_within_its_bounds(kernel, dtype, examples):
    for name in ("accuracy.output_is_within_its_bound", "accuracy.log_sum_exp_is_within_its_bound"):
        row, _ = examine(name, SOUND[kernel], dtype, examples)
        assert row.verdict is Verdict.HELD, row.message


@pytest.mark.one_in(6)
@examples(2, 12)
@pytest.mark.parametrize(("kernel", "dtype"), SOUND_SUBJECTS)
def test_every_sound_kernel_is_within_its_gradient_bounds(kernel, dtype, examples):
    row, _ = examine(GRADIENTS, SOUND[kernel], dtype, examples)
    assert row.verdict is Verdict.HELD, row.message


@examples(8, 60)
@pytest.mark.parametrize("name", ["padded_columns_visible", "activations_saturate", "weights_as_quotient"])
def test_normal_problems_never_show_a_defect_that_its_own_property_finds(name, examples):
    """Gradients of the mutant are right to the last bit of the bound as long as scores stay where randn puts them."""
    mutant = MUTANTS[name]

    def normal(subject):
        return assertions.differentiable(subject, without=("scale", "empty", adds_to_scores), regimes=["normal"])

    row, _ = examine(GRADIENTS, mutant.kernel, mutant.dtype, examples, problems=normal)
    assert row.verdict is Verdict.HELD, row.message


@pytest.mark.one_in(8)
@examples(1, 4)
@pytest.mark.parametrize("name", CONTROLS)
def test_an_unusual_kernel_that_is_right_passes_every_property_that_applies(name, examples):
    control = CONTROLS[name]
    verdicts = {}

    for property_id in PROPERTIES:
        row, _ = examine(property_id, control.kernel, control.dtype, examples)
        verdicts[property_id] = row.verdict
        assert row.verdict is not Verdict.REFUTED, (property_id, row.message)

    assert sum(verdict is Verdict.HELD for verdict in verdicts.values()) > 30


@examples(6, 25)
@pytest.mark.parametrize("name", [name for name in CONTROLS if name.startswith("keys_split")])
def test_splits_that_are_merged_rightly_are_within_their_bounds_at_every_dtype(name, examples):
    for dtype in CONTROLS[name].dtypes:
        kernel = replace(CONTROLS[name].at(dtype), slowness=16.0)  # which adds column by column in tiles of few keys
        for property_id in (ACCURATE, MERGED, "temperature.equal_scores_give_the_mean_of_the_visible_values"):
            row, _ = examine(property_id, kernel, dtype, examples)
            assert row.verdict is Verdict.HELD, (dtype, property_id, row.message)


def test_splits_merged_through_outputs_differ_from_the_others_by_roundings_alone():
    problem = Recipe(query_length=5, key_length=40, mask="empty_middle_rows", seed=1).problem()
    sides = {}
    for steps in (SplitAttention, NormalizedSplitAttention):
        kernel = emulate(steps.__name__, PRECISE, Order(kv_tile=4), steps=steps)
        sides[steps] = Subject(kernel, "float32")(problem)

    one, other = sides.values()
    assert not np.array_equal(one["output"], other["output"])
    np.testing.assert_allclose(one["output"], other["output"], rtol=0, atol=2.0**-20)
    np.testing.assert_allclose(one["lse"], other["lse"], rtol=0, atol=2.0**-20)


def test_every_property_names_a_mutant():
    assert set(PROPERTIES) - {mutant.named_by for mutant in MUTANTS.values()} == set()


def test_no_two_mutants_have_one_name():
    """The later one would take the place of the earlier one, which nobody would miss."""
    told = {"family": "elsewhere", "source": "made up", "named_by": "", "dtype": "float32"}
    with pytest.raises(ValueError, match="of sizes and one of elsewhere are both called tail_past_many_keys; rename"):
        mutants._add("tail_past_many_keys", "Another story.", lambda dtype: resolve("numpy_naive"), **told)


SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|arXiv \d{4}\.\d{4,5}|made up: .+|wafer.ai: .+|triton-lang/triton: .+")
EVERY = (*MUTANTS.values(), *CONTROLS.values())


@pytest.mark.parametrize("family", sorted({mutant.family for mutant in EVERY}))
def test_every_mutant_has_a_story_and_a_source(family):
    for mutant in (mutant for mutant in EVERY if mutant.family == family):
        assert SOURCE.match(mutant.source), mutant.id
        assert mutant.story.endswith("."), mutant.id
        assert len(mutant.story) < 120, mutant.id
        assert {dtype: mutant.at(dtype).dtypes for dtype in mutant.dtypes} == {
            dtype: (dtype,) for dtype in mutant.dtypes
        }
        assert mutant.kernel.dtypes == (mutant.dtype,), mutant.id


def test_stories_and_ids_are_told_once():
    stories = [mutant.story for mutant in (*MUTANTS.values(), *CONTROLS.values())]

    assert len(stories) == len(set(stories))
    assert not set(MUTANTS) & set(CONTROLS)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", {**MUTANTS, **CONTROLS})
def test_a_mutant_is_found_by_its_name(name):
    found = resolve(f"attn_spec.reports.proof.zoo.mutants:{name}")

    assert found.name == {**MUTANTS, **CONTROLS}[name].kernel.name
    assert name not in vars(mutants)


def test_a_mutant_has_no_memory_of_other_calls_than_its_own():
    problem = Recipe(query_length=2, key_length=40).problem()
    first, second = (Subject(mutants.staging_buffer_reused, "float32") for _ in range(2))

    again = [first(problem)["output"] for _ in range(2)]
    np.testing.assert_array_equal(second(problem)["output"], again[0])
    assert not np.array_equal(*again)


def test_an_unknown_mutant_is_a_clear_error():
    with pytest.raises(KernelError, match=r"^no mutant is called 'causal_topleft'; did you mean 'causal_top_left'"):
        resolve("attn_spec.reports.proof.zoo.mutants:causal_topleft")
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        mutants.__wrapped__  # noqa: B018 - the lookup is the test


def test_a_mutant_at_a_dtype_where_it_is_none_is_an_error():
    made = MUTANTS["scores_overflow_float16"]

    with pytest.raises(ValueError, match=r"^scores_overflow_float16 is a defect at float16, not at bfloat16$"):
        made.at("bfloat16")
    with pytest.raises(ValueError, match=r"^scores_overflow_float16 is a defect at float16, not at float32$"):
        replace(made, dtype="float32")


@pytest.mark.parametrize("name", ["causal_top_left", "staging_buffer_reused", "delta_not_awaited", "merge_overflows"])
def test_a_refuted_mutant_is_refuted_again_by_the_stored_case(name):
    mutant = MUTANTS[name]
    _, case = examine(
        mutant.named_by, resolve(f"attn_spec.reports.proof.zoo.mutants:{name}"), mutant.dtype, examples=60
    )

    with pytest.raises(Refutation) as refuted:
        PROPERTIES[case.property_id].check(Subject(resolve(case.kernel), mutant.dtype), case.problem)
    # A mutant that counts its calls may swap before and after.
    assert words(str(refuted.value)) == words(case.message)
