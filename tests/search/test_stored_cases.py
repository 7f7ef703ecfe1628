"""A stored case of a property is tried first, if it is still a problem of the kernel's."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search import cases
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.stored_cases import MOST, StoredCases
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["accuracy.output_is_within_its_bound"]
DECLARED = {"framework": "numpy", "dtypes": ("float32",), "contract": "fused", "supports": ("cross",), "name": "mine"}


def sound(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def last_key_lost(q, k, v):
    return sound(q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > 1 else sound(q, k, v)


def subject(function=last_key_lost, **changes):
    return Subject(kernel(**{**DECLARED, **changes})(function), "float32")


@pytest.fixture
def found(folder):
    """Return the case that a search of the wrong kernel stores."""
    row, case = search(PROPERTY, subject(), PROFILES["smoke"], 0)
    assert row.verdict is Verdict.REFUTED
    cases.save(case)
    return case


def test_a_kernel_that_is_not_mended_is_refuted_by_the_problem_that_refuted_it(found):
    row, case = StoredCases().refuting(PROPERTY, subject())

    assert (row.verdict, row.examples, row.case) == (Verdict.REFUTED, 1, found.id)
    assert case.problem.digest() == found.problem.digest()
    assert row.message == found.message.splitlines()[0]
    assert row.hints == case.hints == found.hints == ("right for the same problem without its last key",)
    assert not list(cases.HOME.glob("in-flight/*"))


def test_a_kernel_that_is_mended_is_searched(found):
    assert StoredCases().refuting(PROPERTY, subject(sound)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"supports": ()},
        {"conventions": {"causal_alignment": "bottom_right"}},
        {"contract": "eager"},
        {"head_dims": (64,)},
        {"presentation": "BSHD"},
        {"name": "another"},
    ],
)
def test_a_kernel_that_declares_something_else_is_searched(found, changes):
    """The stored problem may not be the kernel's any more: a failed call would look like a refutation."""
    assert StoredCases().refuting(PROPERTY, subject(**changes)) is None


def test_another_property_and_another_dtype_are_searched(found):
    assert StoredCases().refuting(load_all()["softmax.weights_sum_to_one"], subject()) is None
    assert StoredCases().refuting(PROPERTY, replace(subject(), dtype="float16")) is None


def test_a_property_about_chance_is_searched_anew(found):
    """A problem that made a sound kernel suspect once would make it so for ever."""
    assert StoredCases().refuting(replace(PROPERTY, false_alarm=1e-9), subject()) is None


def test_a_case_that_cannot_be_read_is_passed_over(found):
    (cases.HOME / "cases" / "00000000.json").write_text("{")

    assert StoredCases().refuting(PROPERTY, subject()) is not None


def test_no_more_than_a_few_are_tried(found):
    calls = []

    def counted(q, k, v):
        calls.append(q.shape)
        return sound(q, k, v)

    for seed in range(MOST + 2):
        recipe = replace(found.problem.recipe, seed=seed + 10)
        cases.save(replace(found, problem=recipe.problem()))
    StoredCases().refuting(PROPERTY, subject(counted))

    assert len(calls) == MOST
