"""Attention of tutorials is refuted by a named property with a case that replays, or held."""

import re
from pathlib import Path

import pytest

from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search import cases
from attn_spec.search import property as properties
from attn_spec.search.profiles import Profile
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

TEXTBOOK = Path(__file__).parent / "textbook.py"
PROPERTIES = properties.load_all()
#: Number of problems of a search that refutes nothing.
HELD = pytest.mark.parametrize("examples", [8, pytest.param(30, marks=pytest.mark.exhaustive)])
UNSEEN = "masking.queries_that_see_no_key_follow_the_convention"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, in which cases are stored."""
    monkeypatch.chdir(tmp_path)


def subject(name, dtype="float32", **declared):
    return Subject(resolve(f"{TEXTBOOK}:{name}", **declared), dtype)


def examine(property_id, kernel, examples=100):
    profile = Profile(name="test", examples=examples, floor=1, seconds=60, shrink_seconds=10, seed=0)
    return search(PROPERTIES[property_id], kernel, profile, seed=0)


def refutation(property_id, kernel):
    """Return the case, which was stored, read again, and refutes the kernel again."""
    row, case = examine(property_id, kernel)
    assert row.verdict is Verdict.REFUTED
    again = cases.load(cases.save(case))
    with pytest.raises(AssertionError) as found:
        PROPERTIES[property_id].check(kernel, again.problem)
    assert str(found.value).splitlines()[0] == row.message
    return again


def test_a_fill_of_minus_1e9_makes_the_mean_of_v_of_rows_that_see_nothing():
    case = refutation(UNSEEN, subject("attention", conventions={"empty_row": "zero"}))

    assert case.problem.empty_rows.any()
    assert case.problem.score_shape == (1, 1, 1, 1)


@HELD
def test_it_is_sound_in_float32_once_that_is_declared(examples):
    kernel = subject("attention", conventions={"empty_row": "mean_of_v"})

    for property_id in (
        "accuracy.output_is_within_its_bound",
        UNSEEN,
        "masking.masked_keys_change_nothing",
        "masking.a_mask_of_true_changes_nothing",
        "softmax.weights_sum_to_one",
        "softmax.a_constant_added_to_all_scores_changes_nothing",
        "scaling.the_scale_read_from_the_weights_is_the_one_asked_for",
    ):
        row, _ = examine(property_id, kernel, examples)
        assert row.verdict is Verdict.HELD, (property_id, row.message)


def test_in_float16_the_fill_of_minus_1e9_cannot_even_be_written():
    kernel = subject("attention", "float16", conventions={"empty_row": "mean_of_v"})

    case = refutation("masking.masked_keys_change_nothing", kernel)

    assert re.search("raised RuntimeError: value cannot be converted to type .*Half without overflow", case.message)
    assert examine("softmax.weights_sum_to_one", subject("attention", "float16"))[0].verdict is Verdict.REFUTED


@HELD
def test_without_a_mask_it_is_sound_in_float16(examples):
    kernel = subject("plain", "float16")

    for property_id in ("accuracy.output_is_within_its_bound", "softmax.weights_sum_to_one"):
        row, _ = examine(property_id, kernel, examples)
        assert row.verdict is Verdict.HELD, (property_id, row.message)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_forgotten_scale_is_named(dtype):
    case = refutation("scaling.the_scale_read_from_the_weights_is_the_one_asked_for", subject("without_scale", dtype))

    assert "applied a scale of 1" in case.message
    assert case.problem.head_dim > 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_zero_padding_that_nobody_masks_is_seen_by_constant_values(dtype):
    case = refutation("softmax.weights_sum_to_one", subject("padded_to_16", dtype))

    assert case.problem.key_length % 16
    assert case.problem.key_length == 1
    assert "the truth is 1" in case.message


def test_a_causal_mask_multiplied_into_the_weights_is_seen():
    kernel = subject("causal_by_multiplication")

    future = refutation("causality.future_keys_change_nothing", kernel)
    sums = refutation("softmax.weights_sum_to_one", kernel)

    assert future.problem.causal
    assert sums.problem.causal


def test_a_fill_of_minus_infinity_is_nan_where_nothing_is_seen():
    assert "is nan" in refutation(UNSEEN, subject("without_scale", conventions={"empty_row": "zero"})).message


def test_weights_returned_beside_the_output_are_no_log_sum_exp():
    kernel = subject("with_weights")

    assert not kernel.supports("lse")
    assert examine("softmax.weights_sum_to_one", kernel, examples=20)[0].verdict is Verdict.HELD
