"""The terms of an allowed error, by hand and of theorems, and evidence of them on every page."""

import math

import numpy as np
import pytest

from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.bounds.theorems import forward_bound, gradient_bound
from attn_spec.contract.presets import PRESETS
from attn_spec.contract.readings import gradient_readings, readings
from attn_spec.contract.terms import count, struck, term
from attn_spec.judgement.bound_terms import BoundTerm, largest_terms, of_gradient, of_row
from attn_spec.judgement.worst import WorstElement
from attn_spec.search.drawing.regimes import Recipe

CONTRACTS = [name for name in PRESETS if name != "fp64"]


def made_up():
    inner = term("inner", 3.0) + count("roundings", 2)
    return term("outer", inner) + term("small", 0.01) + term("beside", 1.5) + 1.0


def test_shares_are_those_of_the_terms_of_which_no_other_is_a_part():
    found = largest_terms(made_up)

    assert [each.name for each in found] == ["inner", "roundings", "beside"]
    assert [each.share for each in found] == pytest.approx([3 / 7.51, 2 / 7.51, 1.5 / 7.51])
    assert str(found[0]) == "40 % inner"


def test_a_product_is_shared_and_what_is_hardly_there_is_not_named():
    found = largest_terms(lambda: term("first", 10.0) * (1 + term("second", 0.001)) + term("third", 0.005))

    assert [each.name for each in found] == ["first"]
    assert found[0].share == pytest.approx(10.01 / 10.015)


@pytest.mark.parametrize("value", [0.0, math.inf, math.nan])
def test_nothing_is_said_of_a_bound_that_is_no_number(value):
    assert largest_terms(lambda: term("a", 0.0) + value) == largest_terms(lambda: 1.0) == ()


def drawn(**options):
    return Recipe(query_length=3, key_length=9, head_dim=4, **options).problem()


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtypes": "bfloat16", "causal": True},
        {"dtypes": "float16", "softcap": 5.0},
        {"alibi_slopes": "random@BH11"},
        {"feature_map": "elu_plus_one", "dtypes": "bfloat16"},
        {"rotary": "half"},
    ],
    ids=str,
)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_bound_falls_as_its_terms_are_struck_one_after_the_other(contract, options):
    problem = drawn(**options)
    x = intermediates(problem)
    g = gradient_intermediates(x, np.ones(x.output.shape))
    c = PRESETS[contract].at(problem.dtype)
    for bounds in (
        lambda: forward_bound(x, readings(c)[0]).allowed,
        lambda: gradient_bound(x, g, gradient_readings(c)[0]).allowed,
    ):
        for name, whole in bounds().items():
            if not (whole > 0).any() or not np.isfinite(whole).all():
                continue
            at = np.unravel_index(np.argmax(whole), whole.shape)
            found = largest_terms(lambda name=name, at=at, bounds=bounds: float(bounds()[name][at]))
            shares = [each.share for each in found]
            assert shares == sorted(shares, reverse=True)
            assert 0.2 < sum(shares) <= 1 + 1e-9
            with struck(*(each.name for each in found)):
                assert bounds()[name][at] < whole[at]


def test_a_row_is_looked_at_alone_and_one_without_a_key_is_not():
    problem = drawn(dtypes="bfloat16", query_heads=4, kv_heads=2, batch=2)
    fused = readings(PRESETS["fused"].at("bfloat16"))[0]
    alone = problem.take("B", [1]).head(3).rows(np.array([2]))

    found = of_row(problem, fused, "output", (1, 3, 2, 0))
    assert found == of_row(alone, fused, "output", (0, 0, 0, 0))
    assert {each.name for each in found} >= {"the cast of the probabilities", "the output's cast"}
    assert of_row(problem.replace(mask=np.zeros((1, 1, 3, 9), dtype=bool)), fused, "output", (0, 0, 0, 0)) == ()


def test_a_gradient_names_the_roundings_of_the_backward_pass():
    problem = drawn(dtypes="bfloat16")
    fused = gradient_readings(PRESETS["fused"].at("bfloat16"))[0]
    found = of_gradient(problem, fused, (np.ones(problem.output_shape), None), "dv", (0, 0, 3, 0))

    assert {each.name for each in found} >= {"the cast of the probabilities", "a gradient's cast"}


def test_an_element_is_read_from_json_also_of_a_version_that_kept_no_terms():
    fields = dict.fromkeys(("got", "truth", "radius", "allowed", "ulps"), (0.0).hex())
    old = {"quantity": "output", "index": [0, 0, 0, 0], "outside": 1, "elements": 1, "rows": 1, **fields}

    assert WorstElement.from_json(old).bound_terms == ()
    element = WorstElement.from_json({**old, "bound_terms": [["the output's cast", 0.5]]})
    assert element.bound_terms == (BoundTerm("the output's cast", 0.5),)
    assert element.index == (0, 0, 0, 0)
    assert element.lines()[-1] == "  of that   50 % the output's cast"
    assert not any("of that" in line for line in WorstElement.from_json(old).lines())
