"""Bounds of the forward pass are found once for all readings of the backward pass, without its words."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from attn_spec.bounds.memoized import KEPT, memoized, of_forward_pass
from attn_spec.contract.contract import BACKWARD, ResolvedContract
from attn_spec.contract.presets import FUSED, PRESETS
from attn_spec.contract.readings import gradient_readings
from attn_spec.contract.terms import struck
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.search.drawing.regimes import Recipe

FUSED16 = FUSED.at("float16")


@dataclass(eq=False)
class Forward:
    results: dict[Any, Any] = field(default_factory=dict)


def test_readings_of_the_backward_pass_share_a_result():
    asked: list[ResolvedContract] = []
    found = of_forward_pass(lambda forward, contract: asked.append(contract))
    forward, readings = Forward(), gradient_readings(FUSED16)

    for reading in (FUSED16, *readings):
        found(forward, reading)
    found(forward, replace(FUSED16, row_sum_of="cast"))

    assert len(readings) == 2
    assert asked == [FUSED16.forward_pass, replace(FUSED16, row_sum_of="cast").forward_pass]


def test_results_live_apart_by_intermediates_and_by_what_is_struck():
    asked = []
    found = memoized(lambda forward, x: asked.append(x))
    one, other = Forward(), Forward()

    for forward in (one, other, one):
        found(forward, 1)
    with struck("the error of exp"):
        found(one, 1)
    assert asked == [1, 1, 1]


def test_the_oldest_result_is_forgotten_first():
    asked = []
    found = memoized(lambda forward, x: asked.append(x))
    forward = Forward()

    for x in (*range(KEPT + 1), KEPT, 0):
        found(forward, x)

    assert asked == [*range(KEPT + 1), 0]


class Unread(ResolvedContract):
    """A contract of the forward pass whose words of the backward pass cannot be read."""

    @classmethod
    def of(cls, contract):
        found = object.__new__(cls)
        stages = replace(contract._stages, **dict.fromkeys(BACKWARD.keys() & vars(contract._stages)))
        vars(found).update({**vars(contract), "_hash": contract._hash, "_stages": stages})
        return found

    def __eq__(self, other):
        return self is other or self._hash == other._hash

    __hash__ = ResolvedContract.__hash__


for _name in BACKWARD:
    setattr(Unread, _name, property(lambda _: pytest.fail("a function of the forward pass reads the backward pass")))

RECIPES = (
    Recipe(
        query_length=4,
        key_length=20,
        head_dim=8,
        value_dim=8,
        query_heads=2,
        causal=True,
        bias="normal@BHQK",
        softcap=2.0,
    ),
    Recipe(query_length=3, key_length=6, head_dim=4, value_dim=4, sinks="normal@1H11", window=(2, 0)),
    Recipe(query_length=3, key_length=6, head_dim=4, value_dim=4, rotary="half", alibi_slopes="geometric@1H11"),
)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_a_function_of_the_forward_pass_reads_no_word_of_the_backward_pass(recipe, preset, monkeypatch):
    dtype = "float64" if preset == "fp64" else "float16"
    problem, contract = replace(recipe, dtypes=dtype).problem(), PRESETS[preset].at(dtype)
    output = np.zeros(problem.output_shape)
    found = {f"d{name}": np.zeros(getattr(problem, name).shape) for name in "qkv"}

    monkeypatch.setattr(ResolvedContract, "forward_pass", property(Unread.of))

    assert judge(problem, contract, output=output).measurements
    assert judge_gradients(problem, contract, np.ones(output.shape), found).measurements
