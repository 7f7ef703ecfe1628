"""The catalogue is complete: each property states its claim, its source and the bug it hunts, and can be exercised."""

import inspect
import re

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from attn_spec import kernels
from attn_spec.property import load_all
from attn_spec.subject import Subject

REGISTRY = load_all()
FAMILIES = [
    "accuracy",
    "causality",
    "gradients",
    "independence",
    "linearity",
    "masking",
    "online_rescaling",
    "permutation",
    "scaling",
    "softmax",
    "special_values",
    "temperature",
]


def test_every_family_has_properties():
    assert sorted({name.partition(".")[0] for name in REGISTRY}) == FAMILIES


def test_every_test_function_is_one_registered_property():
    modules = {inspect.getmodule(claim.check) for claim in REGISTRY.values()}
    tests = [name for module in modules for name in vars(module) if name.startswith("test_")]
    assert len(tests) == len(set(tests)) == len(REGISTRY)


@pytest.mark.parametrize("claim", REGISTRY.values(), ids=REGISTRY)
def test_a_property_states_what_it_claims(claim):
    assert claim.id == f"{claim.id.partition('.')[0]}.{claim.check.__name__.removeprefix('test_')}"
    assert re.fullmatch(r"\S.*\w.*[.]", claim.statement), claim.statement
    assert len(claim.statement) <= 120
    assert claim.source
    assert claim.hunts
    assert set(claim.needs) <= set(kernels.OPTIONS)


def test_statements_are_unique():
    statements = [claim.statement for claim in REGISTRY.values()]
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize("claim", REGISTRY.values(), ids=REGISTRY)
def test_a_property_draws_problems_that_use_what_it_needs(claim):
    """For a kernel with every option, and for one that declares no more than the property needs."""
    able = kernels.resolve("torch_eager")
    barely = kernels.replace(able, supports=frozenset(claim.needs), head_dims=(64,), length_multiple=16)
    for kernel in (able, barely):
        found = []

        @hypothesis.settings(
            max_examples=8, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HealthCheck
        )
        @given(claim.problems(Subject(kernel, "float32")))
        def collect(problem, found=found):
            found.append(problem)

        collect()
        assert found
        assert all(problem.options() <= kernel.supports for problem in found)


@pytest.mark.parametrize("claim", REGISTRY.values(), ids=REGISTRY)
def test_a_property_replays_exactly(claim):
    """A check is a pure function of subject and problem: it says the same thing twice about a kernel that is wrong."""
    kernel = kernels.replace(kernels.resolve("torch_eager"), function=wrong)
    failures = [failure_of(claim, Subject(kernel, "float32")) for _ in range(2)]
    assert failures[0] == failures[1]


def wrong(q, k, v, **options):
    """Attention of the first key alone, and LSE 0: wrong in nearly every way."""
    group = q.shape[1] // k.shape[1]
    out = v[:, :, :1].repeat_interleave(group, dim=1).expand(*q.shape[:3], v.shape[3]) + 0 * q.sum(-1, keepdim=True)
    return out.contiguous(), q.detach().float().sum(-1) * 0


def failure_of(claim, subject):
    texts = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=6, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=HealthCheck
    )
    @given(claim.problems(subject))
    def check(problem):
        try:
            claim.check(subject, problem)
        except AssertionError as error:
            texts.append(str(error))

    check()
    return texts
