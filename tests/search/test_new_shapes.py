"""Preflight measures the cost of a new shape, and a search keeps to few shapes where it is high."""

import time

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.search.new_shapes import FEW, LEAST, Cost, high_cost
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search


def compiled(seconds):
    """Return attention whose first call at a shape takes these seconds."""
    known = set()

    def attention(q, k, v):
        if (shapes := (q.shape, k.shape, v.shape)) not in known:
            known.add(shapes)
            time.sleep(seconds)
        s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)) @ v

    return attention


def declared(function, **facts):
    return kernel(framework="numpy", dtypes=("float32",), contract="fused", name="k", **facts)(function)


SAYS = f"each search keeps to {FEW} signatures, which are shapes with options; signatures=N declares another number"


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_kernel_to_which_each_shape_costs_seconds_gets_few(is_declared):
    function = compiled(2 * LEAST)
    made = declared(function) if is_declared else from_callable(function, framework="numpy", dtypes=("float32",))

    ready = preflight(made)

    assert [subject.kernel.signatures for subject in ready.subjects] == [FEW]
    assert SAYS in ready.cost_of_new_shapes


@pytest.mark.parametrize(
    ("seconds", "facts"),
    [
        (0.0, {}),
        (2 * LEAST, {"signatures": 7}),
        (2 * LEAST, {"largest": {"B": 1, "Q": 8, "K": 8}}),
    ],
    ids=["cheap", "another number is declared", "one shape"],
)
def test_other_kernels_get_what_they_declare(seconds, facts):
    ready = preflight(declared(compiled(seconds), **facts))

    assert [subject.kernel.signatures for subject in ready.subjects] == [facts.get("signatures")]
    assert not ready.cost_of_new_shapes


def test_a_kernel_that_is_slow_at_every_call_has_no_costly_shapes():
    def slow(q, k, v):
        time.sleep(2 * LEAST)
        return compiled(0.0)(q, k, v)

    assert high_cost(Subject(declared(slow), "float32")) is None


def test_a_kernel_that_fails_at_another_shape_has_no_known_cost():
    def of_one_entry(q, k, v):
        if len(q) > 1:
            raise ValueError("one entry")
        return compiled(2 * LEAST)(q, k, v)

    assert high_cost(Subject(declared(of_one_entry), "float32")) is None


def test_the_cost_is_that_of_the_fastest_calls():
    assert Cost(0.5, 0.01).is_high
    assert not Cost(0.5, 0.06).is_high
    assert not Cost(0.04, 0.001).is_high
    assert str(Cost(0.5, 0.01)).startswith("a first call at a shape takes 0.5 s, 50 times as long as the next, so")


def test_a_problem_that_fails_becomes_smaller_than_the_signatures_of_the_search():
    right = compiled(0.0)

    def without_keys_past_16(q, k, v):
        return right(q, k[:, :, :16], v[:, :, :16])

    made = declared(without_keys_past_16, supports=("cross", "dv"), signatures=2)
    property_ = load_all()["accuracy.output_is_within_its_bound"]

    _, case = search(property_, Subject(made, "float32"), PROFILES["ci"], 0)

    assert case.problem.key_length == 17
    assert case.problem.score_shape[:2] == (1, 1)
