"""The statistical tier: what a bound lets pass is suspect and replays so, and no sound kernel is."""

from dataclasses import replace

import hypothesis
import pytest
from attn_spec.reports.proof.zoo.mutants import load_all as zoo
from attn_spec.reports.proof.zoo.statistical import BIAS, SIZE
from hypothesis import HealthCheck, Phase

from attn_spec.bounds.intermediates import intermediates
from attn_spec.chance import error_statistics
from attn_spec.contract.contract import Contract
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE, SOUND
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import judged
from attn_spec.search.cases import Case
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Suspicion, load_all
from attn_spec.search.search import search
from attn_spec.search.suspicion import errors, generic_problems, is_generic, not_applicable
from attn_spec.search.verdict import Verdict
from attn_spec.sessions.replay import run
from tests.sound_subjects import SOUND_SUBJECTS

PROPERTIES = load_all()
STATISTICAL = {mutant.id: mutant for mutant in zoo()[0].values() if mutant.verdict is Verdict.SUSPECT}
PROFILE = Profile(name="test", examples=12, floor=3, seconds=60, shrink_seconds=0, seed=0)
SHAPE = {"query_heads": 4, "kv_heads": 2, "query_length": 32, "key_length": 128, "head_dim": 64, "value_dim": 64}

ZOO = """
from attn_spec.reports.proof.zoo.mutants import accumulators_truncate
from attn_spec.emulation.sound import SOUND
truncating, declared = accumulators_truncate, SOUND["toward_zero"]
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def examine(name, kernel, dtype, **changes):
    return search(PROPERTIES[name], Subject(kernel, dtype), replace(PROFILE, **changes), seed=0)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "dtype"), SOUND_SUBJECTS)
def test_no_sound_kernel_is_suspect(name, dtype):
    subject = Subject(SOUND[name], dtype)
    for property_id in (SIZE, BIAS):
        row, _ = examine(property_id, SOUND[name], dtype, examples=4)
        without = not_applicable(subject) or subject.kernel.limits.always
        assert row.verdict is (Verdict.NOT_DECLARED if without else Verdict.HELD), row.message
        assert row.ratio is None or row.ratio < 0.5


def test_errors_that_are_all_allowed_and_of_one_sign_are_not_suspect():
    contract = replace(PRECISE, exp_error=64.0)
    for signs in ("up", "down", "random"):
        kernel = emulate("spent", contract, Order(inaccuracy=1.0, error_signs=signs))
        for property_id in (SIZE, BIAS):
            assert examine(property_id, kernel, "float32", examples=6)[0].verdict is Verdict.HELD


@pytest.mark.parametrize("name", STATISTICAL)
def test_what_the_bound_lets_pass_is_suspect_and_not_refuted(name):
    mutant = STATISTICAL[name]
    subject = Subject(mutant.kernel, mutant.dtype)

    row, case = examine(mutant.named_by, mutant.kernel, mutant.dtype)

    assert row.verdict is Verdict.SUSPECT
    assert row.case == case.id
    with pytest.raises(Suspicion):
        PROPERTIES[mutant.named_by].check(subject, case.problem)
    assert judged(subject, case.problem, subject(case.problem)).ratio < 0.9


def test_a_suspect_is_shrunk_inside_the_domain():
    mutant = STATISTICAL["accumulators_truncate"]
    subject = Subject(mutant.kernel, mutant.dtype)

    row, case = examine(BIAS, mutant.kernel, mutant.dtype, shrink_seconds=20)

    assert row.verdict is Verdict.SUSPECT
    assert case.problem.recipe.seed == 0
    assert is_generic(case.problem)
    assert error_statistics.enough(errors(subject, case.problem).rows)
    assert Case.from_json(case.to_json()).problem.recipe == case.problem.recipe


@pytest.mark.parametrize(
    ("contract", "why"),
    [
        (Contract(rounding="toward_zero"), "does not round to nearest"),
        (Contract(lse_merges=1), "weighs by log-sum-exps"),
        (Contract(output_accumulation="bfloat16"), "accumulates in a format too narrow"),
        (Contract(stored_scores="bfloat16", softmax="bfloat16", exp_error=2.0**20), "rounds scores too coarsely"),
    ],
)
def test_a_contract_outside_the_model_is_not_declared_and_says_why(contract, why):
    kernel = emulate("other", PRECISE, dtypes=("bfloat16",), contract=contract)

    row, case = examine(BIAS, kernel, "bfloat16")

    assert (row.verdict, case) == (Verdict.NOT_DECLARED, None)
    assert why in row.message


@pytest.mark.parametrize(
    ("recipe", "generic"),
    [
        (Recipe(), True),
        (Recipe(regime="offset_q"), True),
        (Recipe(regime="integers"), False),
        (Recipe(regime="normal+v_one"), False),
        (Recipe(shift=30.0), False),
    ],
)
def test_generic_is_what_its_regimes_are(recipe, generic):
    assert is_generic(recipe.problem()) == generic
    assert not is_generic(recipe.problem().replace(recipe=None))


def test_a_problem_that_nobody_drew_is_no_evidence():
    problem = Recipe(**SHAPE).problem().replace(recipe=None)

    with pytest.raises(hypothesis.errors.UnsatisfiedAssumption):
        errors(Subject(SOUND["sequential"], "float32"), problem)


def test_replays_say_what_became_of_a_suspect(tmp_path):
    tmp_path.joinpath("zoo.py").write_text(ZOO)
    case = Case(property_id=BIAS, kernel="zoo.py:truncating", problem=Recipe(**SHAPE).problem())

    suspect = run(case, 60.0)
    assert suspect.code == 3
    assert str(suspect).startswith("still suspect: the bias of the errors towards zero / sigma is ")
    assert run(case, 60.0, kernel="torch_tiled").code == 0
    plain = replace(case, problem=case.problem.replace(recipe=None))
    assert "says nothing about" in run(plain, 60.0).message
    assert (
        "the property does not apply to toward_zero: its contract does"
        in run(case, 60.0, kernel="zoo.py:declared").message
    )


def test_searching_does_not_climb_towards_a_false_alarm(monkeypatch):
    climbed = []
    monkeypatch.setattr(hypothesis, "target", lambda ratio, label: climbed.append(ratio))

    row, _ = examine(SIZE, resolve("numpy_tiled"), "float32")

    assert row.ratio > 0
    assert climbed == []


def test_problems_of_narrow_accumulators_odd_dimensions_and_single_queries_stay_inside_the_domain():
    narrow = Subject(SOUND["float16_accumulator"], "float16")
    odd = Subject(replace(SOUND["sequential"], limits=Limits(head_dims=(80,))), "float32")
    decoding = Subject(replace(SOUND["sequential"], limits=Limits(query_lengths=(1,))), "float32")
    for subject in (narrow, odd, decoding):
        found = []

        @hypothesis.seed(0)
        @hypothesis.settings(
            max_examples=5,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(generic_problems(subject))
        def collect(problem):
            rows = error_statistics.valid_rows(intermediates(problem), subject.contract)  # noqa: B023
            found.append(error_statistics.enough(rows))  # noqa: B023

        collect()
        assert len(found) == 5
        assert all(found)
