"""A contract that leaves a choice is kept in one of its readings, and the row and the certificate say in which."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import EAGER, FP32, FUSED, UNDECLARED
from attn_spec.contract.readings import gradient_readings, readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.passes import TwoPasses
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement import measure
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Row, Verdict

PROPERTY = load_all()["accuracy.log_sum_exp_is_within_its_bound"]
PROFILE = Profile(name="test", examples=12, floor=1, seconds=30, shrink_seconds=0, seed=0)
EITHER = replace(FUSED, exponent="natural", row_sum_of="either")


def examined(executes, declares, dtype="bfloat16", **arguments):
    """Return the row of a kernel that does one thing and declares less."""
    made = emulate("k", executes, Order(kv_tile=16), dtypes=(dtype,), contract=declares, **arguments)
    return search(PROPERTY, Subject(made, dtype), PROFILE, 0)[0]


@pytest.mark.parametrize(
    ("row_sum_of", "words"),
    [("cast", "fused(exponent='natural', row_sum_of='cast')"), ("uncast", "fused(exponent='natural')")],
)
def test_a_row_says_which_row_sum_held(row_sum_of, words):
    row = examined(replace(PRECISE, row_sum_of=row_sum_of), EITHER)

    assert row.verdict is Verdict.HELD
    assert words in row.readings
    assert Row.from_json(row.to_json()).readings == row.readings


def test_a_contract_without_a_choice_has_no_readings():
    assert examined(PRECISE, replace(FUSED, exponent="natural")).readings == ()


def test_one_of_several_contracts_must_explain_all_of_an_answer():
    """The output of one alternative and the log-sum-exp of another are refuted, though each alone is explained."""
    coarse_output = replace(PRECISE, output_accumulation="bfloat16")
    coarse_lse = replace(PRECISE, lse="bfloat16")
    contract = replace(coarse_output, alternatives=(coarse_lse,)).at("float32")
    p = Recipe(query_length=8, key_length=33, head_dim=16, value_dim=8).problem()
    one, other = (Subject(emulate("k", c), "float32")(p) for c in (coarse_output, coarse_lse))

    def refuted(**answer):
        return measure.judge(p, contract, **answer).refuted

    assert not refuted(output=one["output"], lse=one["lse"])
    assert not refuted(output=other["output"], lse=other["lse"])
    assert not refuted(lse=other["lse"])
    assert not refuted(output=one["output"])
    assert refuted(output=one["output"], lse=other["lse"])


def test_a_kernel_that_declares_nothing_may_be_of_any_kind():
    eager = replace(EAGER, exp_error=8.0, subnormals="kept")
    for executes, order, steps in (
        (eager, Order(kv_tile=None), {}),
        (PRECISE, Order(), {}),
        (replace(PRECISE, normalize="by_lse"), Order(), {"steps": TwoPasses}),
    ):
        made = emulate("k", executes, order, dtypes=("bfloat16",), contract=UNDECLARED, **steps)
        row, _ = search(PROPERTY, Subject(made, "bfloat16"), PROFILE, 0)
        assert row.verdict is Verdict.HELD, row.message
        assert row.readings


def test_readings_are_the_choices_and_the_alternatives():
    resolved = UNDECLARED.at("bfloat16")

    assert len(readings(EITHER.at("bfloat16"))) == 2
    assert len(readings(FUSED.at("bfloat16"))) == 1
    assert len(readings(resolved)) >= 1 + len(resolved.alternatives)
    assert all(c.alternatives == () and c.row_sum_of != "either" for c in readings(resolved))
    assert all("either" not in (c.delta, c.backward_weights, c.score_gradients_of) for c in gradient_readings(resolved))


def test_a_cast_that_changes_nothing_is_not_tried():
    either = dict.fromkeys(("row_sum_of", "score_gradients_of"), "either")

    assert len(gradient_readings(replace(FP32, **either).at("float32"))) == 1
    assert len(gradient_readings(replace(FUSED, **either).at("bfloat16"))) == 8
    assert len(gradient_readings(replace(FUSED, **either, weight_gradients="work").at("bfloat16"))) == 4
    assert len(gradient_readings(replace(FUSED, stored_scores="input").at("bfloat16"))) == 1


def test_the_reading_that_measures_something_is_preferred():
    """The first alternative says nothing about scores beyond float16; the second does, and refutes zeros."""
    narrow = replace(FUSED, score_accumulation="float16")
    p = Recipe(regime="overflow_float16", query_length=2, key_length=3).problem()
    contract = replace(narrow, alternatives=(FUSED,)).at("float32")

    right = measure.judge(p, contract, output=Subject(emulate("k", PRECISE), "float32")(p)["output"])

    assert right.exercised
    assert not right.refuted
    assert not measure.judge(p, narrow.at("float32"), output=np.zeros(right.measurements[0].got.shape)).exercised
