"""The power of a verdict: planted errors are seen where the bound is smaller than they are, and what hides them."""

import json

import numpy as np
import pytest

from attn_spec.contract.presets import PRESETS, UNDECLARED
from attn_spec.judgement.planted_errors import Power, Unseen, line
from attn_spec.judgement.power import Planting, power
from attn_spec.problem.conventions import DEFAULTS
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"batch": 2, "query_heads": 2, "kv_heads": 2, "query_length": 16, "head_dim": 16, "value_dim": 16}


def planted(contract, *, dtype="bfloat16", gradients=False, **recipe):
    """Return the power at one problem."""
    problem = Recipe(dtypes=dtype, **SHAPE | {"key_length": 64} | recipe).problem()
    backward = {"cotangent": np.ones(problem.output_shape), "gradients": ("dq", "dk", "dv")} if gradients else {}
    one = Planting(problem=problem, contract=contract.at(dtype), conventions=DEFAULTS, lse=True, **backward)
    return power([one], dtype=dtype, where="here")


def test_gross_errors_of_a_small_problem_are_all_seen():
    found = planted(PRESETS["fused"])

    assert {"zeros", "the mean of the values", "the next row", "another kv head", "another batch entry"} <= set(
        found.planted
    )
    assert {"a key lost at the end", "10 % of the keys lost in the middle", "the scale 1 % off"} <= set(found.planted)
    assert found.seen == len(found.planted)
    assert str(found) == f"{found.seen} of {found.seen} planted errors"


def test_what_is_not_seen_is_told_with_what_hides_it():
    found = planted(PRESETS["eager"], key_length=2048)

    (one,) = (each for each in found.unseen if each.words == "the scale 1 % off")
    assert one.ratio < 1 < found.seen
    assert one.hidden_by in {"stored_scores='bfloat16'", "softmax='bfloat16'"}
    assert one.sharper > one.ratio
    assert f"{found.seen} of {len(found.planted)} planted errors; not seen: " in str(found)
    assert f"the scale 1 % off ({one.ratio:.2g} of the error allowed, hidden by {one.hidden_by})" in str(found)


def test_a_narrower_promise_sees_more():
    loose, narrow = (planted(contract, key_length=2048) for contract in (UNDECLARED, PRESETS["fp32"]))

    assert set(loose.planted) == set(narrow.planted)
    assert loose.seen < narrow.seen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"causal": True}, "with the diagonal a key earlier"),
        ({"window": (3, 2)}, "with an edge of its window a key off"),
        ({"bias": "normal@11QK"}, "without bias"),
        ({"softcap": 2.0}, "without softcap"),
        ({"mask": "random@11QK"}, "with its mask inverted"),
    ],
)
def test_what_an_option_may_lose_is_planted(options, words):
    found = planted(PRESETS["fused"], **options)

    assert words in found.planted
    assert words not in [one.words for one in found.unseen]


def test_errors_of_gradients_are_planted_one_by_one():
    found = planted(PRESETS["fused"], gradients=True)

    assert {"dq of zeros", "dk of the next row", "dv of the next head", "a key lost at the end"} <= set(found.planted)
    assert not found.unseen


def test_an_error_that_changes_no_rounded_number_is_none():
    """With one key all rows have the value, which is the mean, and there is no key to lose."""
    found = planted(PRESETS["fused"], key_length=1)

    assert {"zeros", "another kv head"} <= set(found.planted)
    assert not {"the next row", "the mean of the values", "a key lost at the end"} & set(found.planted)


def test_an_error_is_seen_where_one_of_several_problems_refutes_it():
    c = PRESETS["eager"].at("bfloat16")
    long, short = (Recipe(dtypes="bfloat16", **SHAPE, key_length=n).problem() for n in (2048, 8))
    each = [
        power([Planting(problem=p, contract=c, conventions=DEFAULTS)], dtype="bfloat16", where="")
        for p in (long, short)
    ]
    both = power(
        [Planting(problem=p, contract=c, conventions=DEFAULTS) for p in (long, short)], dtype="bfloat16", where=""
    )

    hidden = [{one.words for one in found.unseen} for found in each]
    assert {one.words for one in both.unseen} <= hidden[0]
    assert "a key lost at the end" in hidden[0] - hidden[1]
    assert "a key lost at the end" not in {one.words for one in both.unseen}


def test_the_line_names_the_first_that_is_not_seen():
    unseen = Unseen(words="zeros", ratio=0.5, hidden_by="kv_tile=1", sharper=2.0)
    found = [
        Power(dtype="float32", where="small problems", planted=("a", "b"), unseen=()),
        Power(dtype="bfloat16", where="here", planted=("zeros", "c", "d"), unseen=(unseen, unseen)),
    ]

    assert line(found[:1]) == "power: 2 of 2 planted errors would be refuted"
    assert line(found) == (
        "power: 3 of 5 planted errors would be refuted; not seen: "
        "zeros (0.5 of the error allowed, hidden by kv_tile=1), bfloat16, here, and 1 more"
    )
    assert Power.from_json(json.loads(json.dumps(found[1].to_json()))) == found[1]
