"""The catalogue is complete: each property has its statement, its source and the bug it hunts, and can be exercised."""

import inspect
import re

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from attn_spec.emulation.sound import SOUND
from attn_spec.kernels import kernel as kernels
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.traits import named_by, replaces_score, weighs_linearly
from attn_spec.search.property import load_all

REGISTRY = load_all()
FAMILIES = [
    "accuracy",
    "appending",
    "asked_shapes",
    "causality",
    "chunks",
    "decoding",
    "descales",
    "documents",
    "drafts",
    "dropout",
    "dropout_by_chance",
    "gradient_independence",
    "gradient_laws",
    "gradients",
    "independence",
    "latent",
    "layers",
    "lengths",
    "linear_attention",
    "linearity",
    "masking",
    "online_rescaling",
    "output_scale",
    "permutation",
    "placement",
    "positions",
    "quantisers",
    "scaling",
    "scores",
    "sinks",
    "softmax",
    "special_values",
    "states",
    "statistics",
    "temperature",
    "window_sinks",
]


def test_every_family_has_properties():
    assert sorted({name.partition(".")[0] for name in REGISTRY}) == FAMILIES


def test_every_test_function_is_one_registered_property():
    modules = {inspect.getmodule(property_.check) for property_ in REGISTRY.values()}
    tests = [name for module in modules for name in vars(module) if name.startswith("test_")]
    assert len(tests) == len(set(tests)) == len(REGISTRY)


def test_a_property_has_a_statement_and_its_sources():
    for id_, property_ in REGISTRY.items():
        assert property_.id == id_ == f"{id_.partition('.')[0]}.{property_.check.__name__.removeprefix('test_')}"
        assert re.fullmatch(r"\S.*\w.*[.]", property_.statement), property_.statement
        assert len(property_.statement) <= 120, id_
        assert property_.source, id_
        assert property_.hunts, id_
        assert set(property_.needs) <= {*OPTIONS, *ABILITIES}, id_


def test_statements_are_unique():
    statements = [property_.statement for property_ in REGISTRY.values()]
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("property_", REGISTRY.values(), ids=REGISTRY)
def test_a_property_draws_problems_that_use_what_it_needs(property_, count):
    """For a kernel with every option, and for one that declares no more than the property needs."""
    able = able_of(property_)
    limits = Limits(head_dims=(64,), multiples={"Q": 16, "K": 16})
    declared = frozenset(property_.needs) & set(kernels.DECLARABLE)
    barely = kernels.replace(able, supports=declared, limits=limits)
    for subject in (Subject(kernel, "float32") for kernel in (able, barely)):
        if property_.not_applicable(subject):
            continue
        options = [problem.options() for problem in examples(property_.problems(subject), count)]
        assert options
        assert all(used <= subject.kernel.supports for used in options)


def able_of(property_):
    """Return a kernel with every option but other scores, or one with these for a property that is about them."""
    kernel = resolve("torch_eager")
    other = named_by([replaces_score]) & set(property_.needs) or property_.not_applicable(Subject(kernel, "float32"))
    if set(property_.needs) & named_by([weighs_linearly]):
        return SOUND["linear"]
    if other:
        return SOUND["other_scores"]
    able = (kernel, resolve("torch_tiled"), SOUND["sequential"], resolve("torch_paged:eight_bits"))
    return next(each for each in able if set(property_.needs) & set(OPTIONS) <= each.supports)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("property_", REGISTRY.values(), ids=REGISTRY)
def test_a_property_replays_exactly(property_, count):
    """A check is a pure function of subject and problem: it says the same thing twice about a kernel that is wrong."""
    subject = Subject(kernels.replace(able_of(property_), function=wrong, backward_function=None), "float32")
    for problem in examples(property_.problems(subject), count):
        assert verdict(property_, subject, problem) == verdict(property_, subject, problem)


def wrong(q, k, v, **_):
    """Return the first value of each kv head for every query, and LSE 0: wrong in nearly every way."""
    first = v[:, :, :1] if v.shape[2] else v.new_zeros(*v.shape[:2], 1, v.shape[3])
    out = first.repeat_interleave(q.shape[1] // k.shape[1], dim=1) + 0 * q.sum(dim=-1, keepdim=True)
    return out, 0 * q.detach().sum(dim=-1)


def verdict(property_, subject, problem):
    try:
        property_.check(subject, problem)
    except AssertionError as error:
        return str(error)
    return "held"


def examples(strategy, count):
    found = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def collect(problem):
        found.append(problem)

    collect()
    return found
