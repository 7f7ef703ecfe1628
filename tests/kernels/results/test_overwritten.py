"""Results that the next call overwrites are told, of a kernel here and of one in a process of its own."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.kernels import emulate
from attn_spec.isolation import foreign
from attn_spec.kernels.misbehaviour import Misbehaviour, Raised
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import Conventions
from attn_spec.search import property as properties
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.histories import reason_to_overwrite
from tests.kernels.results import overwriting

PROBLEM, OTHER = (Recipe(query_length=3, key_length=5, head_dim=4, seed=seed).problem() for seed in (1, 2))
PROPERTIES = (
    "independence.a_later_call_leaves_an_answer_alone",
    "gradient_independence.calls_in_between_leave_gradients_alone",
)


@pytest.fixture(params=["here", "isolated"])
def subject(request):
    """Return a function from the name of a kernel to its subject, which runs here or in a process of its own."""
    made = resolve if request.param == "here" else foreign.isolated
    return lambda name: Subject(made(f"{overwriting.__file__}:{name}"), "float32")


def interrupted(subject, problem=PROBLEM, other=OTHER):
    return replace(subject, between=lambda own: own(other))(problem)


def gradients(subject):
    """Return the gradients of a problem, plainly and with both passes of another between those of its own."""
    dO = np.random.default_rng(0).integers(-4, 5, PROBLEM.output_shape) / 8
    between = replace(subject, between=lambda own: own.gradients(OTHER, dO))
    return subject.gradients(PROBLEM, dO), between.gradients(PROBLEM, dO)


def test_an_answer_in_memory_of_its_own_is_what_it_was(subject):
    fresh = subject("fresh")
    np.testing.assert_array_equal(interrupted(fresh)["output"], fresh(PROBLEM)["output"])


def test_an_answer_in_one_buffer_is_told_with_what_to_do(subject):
    told = (
        r"^an output is overwritten by the next call: 3 of 3 elements have other values then; "
        r"return memory of its own, or declare the convention overwrites_results=True, as CUDA graphs need$"
    )
    with pytest.raises(Misbehaviour, match=told):
        interrupted(subject("one_buffer"))


def test_an_answer_that_is_given_another_shape_is_told(subject):
    with pytest.raises(Misbehaviour, match="is overwritten by the next call: it has another shape then"):
        interrupted(subject("resized"))


def test_gradients_of_saved_tensors_are_those_of_the_plain_call(subject):
    plain, between = gradients(subject("saved"))
    for name, values in plain.items():
        np.testing.assert_array_equal(between[name], values)


def test_gradients_of_an_overwritten_workspace_are_those_of_the_other_problem(subject):
    plain, between = gradients(subject("workspace"))
    assert all((between[name] != values).any() for name, values in plain.items())


def test_calls_go_on_after_one_in_between_has_failed(subject):
    fresh, seven = subject("fresh"), Recipe(query_length=3, key_length=7, head_dim=4).problem()
    with pytest.raises(Raised, match="seven keys"):
        interrupted(fresh, other=seven)
    np.testing.assert_array_equal(interrupted(fresh)["output"], fresh(PROBLEM)["output"])


def test_answers_are_kept_at_every_depth(subject):
    """Another call may be interrupted by a third; each reads its own results."""
    fresh, found = subject("fresh"), []

    def between(own):
        found.append(interrupted(own, OTHER, PROBLEM)["output"])

    first = replace(fresh, between=between)(PROBLEM)["output"]
    np.testing.assert_array_equal(first, fresh(PROBLEM)["output"])
    np.testing.assert_array_equal(found[0], fresh(OTHER)["output"])


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_properties_ask_only_kernels_whose_results_stay(name):
    made = properties.load_all()[name]
    own = Subject(overwriting.workspace, "float32")
    assert made.applies_to(own)
    declared = replace(own, kernel=replace(own.kernel, conventions=Conventions(overwrites_results=True)))
    assert not made.applies_to(declared)
    assert (
        made.reason_not_to_apply(declared) == "it declares that a later call may overwrite what an earlier one returned"
    )


def test_a_kernel_that_writes_into_its_callers_tensors_is_not_asked():
    writing = Path(__file__).parents[2] / "isolation" / "spying_numpy.py"
    reason = reason_to_overwrite(Subject(resolve(f"{writing}:writing"), "float32"))
    assert reason == "it returns nothing, but writes into tensors of its caller"


@pytest.mark.parametrize("overwrites", [True, False])
def test_an_emulated_kernel_reuses_memory_if_it_declares_so(overwrites):
    declared = emulate("declared", FUSED, conventions={"overwrites_results": overwrites}, supports=("lse",))
    told = pytest.raises(Misbehaviour, match="is overwritten") if overwrites else contextlib.nullcontext()
    with told:
        interrupted(Subject(declared, "float32"))
