"""A cleared answer is within its bound; most sound answers are cleared at a glance, and no wrong one."""

from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.proof.validation.random_kernels import random_kernel

from attn_spec.attention.enclosure import enclose
from attn_spec.bounds.forward.bounds import forward_bound
from attn_spec.bounds.forward.least_bounds import least_lse_error, least_output_error
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import PRESETS
from attn_spec.contract.readings import readings
from attn_spec.judgement.long import glance as glances
from attn_spec.judgement.long.engine import NUMPY
from attn_spec.judgement.long.float64_scores import U, float64_scores
from attn_spec.judgement.long.glance import glance, is_plain, shares
from attn_spec.judgement.measure import judge
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import Conventions
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_heads": 2, "query_length": 6, "head_dim": 8, "value_dim": 5}
OPTIONS = (
    {},
    {"causal": True, "causal_alignment": "bottom_right", "query_heads": 4, "kv_heads": 2},
    {"bias": "minus_inf", "softcap": 2.0, "scale": 1.5},
    {"mask": "random", "alibi_slopes": "geometric@1H11"},
)
PROBLEMS = [
    Recipe(**{**SHAPE, "regime": regime, "key_length": keys, "seed": keys, **options}).problem()
    for regime in ("normal", "activations", "rising+v_alternating", "one_hot+v_wide", "cancellation")
    for keys, options in zip((1, 7, 40, 200), OPTIONS, strict=True)
]


@pytest.mark.parametrize("cut_operands", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_the_truth_lies_within_the_radii(problem, cut_operands):
    seen, truth = glance(problem, cut_operands=cut_operands), enclose(problem, 120)
    rows = seen.keys > 0

    for name in ("output", "lse"):
        value, radius = getattr(seen, name).value, getattr(seen, name).radius
        assert (np.abs(value - truth[name].value)[rows] <= radius[rows]).all()
        assert (radius[rows] < 2.0**-30 * (1 + np.abs(value[rows]).max())).all()
    x = intermediates(problem)
    assert (seen.size <= (x.P @ np.abs(x.v)) * (1 + 2.0**-40))[rows].all()


def contracts():
    for contract in PRESETS.values():
        yield from readings(contract.at("float32"))
    for seed in range(60):
        drawn = random_kernel(seed)
        yield from readings(replace(drawn.declares, operands="input").at(drawn.dtype))


@pytest.mark.parametrize("problem", PROBLEMS[::3], ids=repr)
def test_every_contract_allows_at_least_the_part(problem):
    x, compared = intermediates(problem), 0
    size, keys = x.P @ np.abs(x.v), x.keys
    for c in dict.fromkeys(contracts()):
        bound = forward_bound(x, c)
        output = least_output_error(
            c, problem.dtype, keys=keys, key_length=problem.key_length, o=np.abs(x.O), size=size
        )
        lse = least_lse_error(c, keys=keys[..., 0], lse=np.abs(x.L[..., 0]))
        rows = keys[..., 0] > 0
        assert not (output > bound.allowed["output"])[rows].any()  # a bound that is no number refutes nothing either
        assert not (lse > bound.allowed["lse"])[rows].any()
        compared += 1
    assert compared > 60


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_most_rows_of_a_sound_kernel_are_cleared_and_no_row_of_a_wrong_one(dtype):
    subject = Subject(resolve("torch_tiled"), dtype)
    problem = Recipe(query_length=64, key_length=300, head_dim=32, value_dim=32, dtypes=dtype, causal=True).problem()
    answer = subject(problem)
    (contract, *_) = readings(subject.contract)

    assert (shares(problem, contract, answer) <= 1).mean() > 0.9
    outside = answer | {"output": answer["output"] + judge(problem, contract, **answer).measurements[0].allowed * 2.01}
    assert (shares(problem, contract, outside) > 1).all()


@pytest.mark.parametrize(("keys", "additions"), [(20, 20), (128, 128), (300, 128 + 3), (1000, 128 + 8)])
def test_the_radius_counts_additions_of_parts_and_of_their_sums(keys, additions):
    """No order of additions that a library takes comes near their count, so no answer shows it."""
    problem = Recipe(query_length=2, key_length=keys, head_dim=4, value_dim=3, regime="normal").problem()
    seen, scores = glance(problem), float64_scores(problem, NUMPY)
    counted = 2 * scores.log_weight_error + (2 * additions + 4) * U

    assert (seen.output.radius >= counted[..., None] * seen.size).all()
    assert (seen.lse.radius >= scores.log_weight_error + additions * U).all()


@pytest.mark.parametrize("options", [*OPTIONS[1:], {"window": (3, 2)}], ids=str)
def test_rows_are_looked_at_without_the_keys_that_none_of_them_sees(monkeypatch, options):
    lengths = {**SHAPE, "query_length": 40, "key_length": 50}
    problem = Recipe(**{**lengths, "causal": True, "causal_alignment": "bottom_right", **options}).problem()
    c, answer, keys = PRESETS["fused"].at("float32"), Subject(resolve("numpy_naive"), "float32")(problem), []

    def looked_at(of, *args, **kwargs):
        keys.append(of.key_length)
        return glance(of, *args, **kwargs)

    whole = shares(problem, c, answer)
    monkeypatch.setattr(glances, "TOGETHER", 8)
    monkeypatch.setattr(glances, "glance", looked_at)
    np.testing.assert_allclose(shares(problem, c, answer), whole, rtol=1e-6)
    assert keys[0] < keys[-1] <= 50


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_not_cleared(wrong):
    problem = Recipe(query_length=2, key_length=3).problem()
    c = PRESETS["fused"].at("float32")
    answer = {"output": np.full(problem.output_shape, wrong), "lse": np.full(problem.score_shape[:3], wrong)}

    for name, values in answer.items():
        assert np.isinf(shares(problem, c, {name: values})).all()
    empty = problem.replace(mask=np.zeros((1, 1, 1, 3), dtype=bool))
    assert np.isinf(shares(empty, c, {"output": np.zeros(problem.output_shape)})).all()
    assert np.isinf(shares(problem.replace(v=np.full(problem.v.shape, np.nan)), c, answer)).all()


def test_the_base_of_the_logarithm():
    problem = Recipe(query_length=5, key_length=30).problem()
    c, L = PRESETS["fused"].at("float32"), intermediates(problem).L[..., 0]
    base_2 = Conventions(lse_base="2")

    assert (shares(problem, c, {"lse": L / np.log(2)}, base_2) < 0.5).all()
    assert (shares(problem, c, {"lse": L}) < 0.5).all()
    assert (shares(problem, c, {"lse": L}, base_2) > 1).all()


def test_other_formulas_are_left_to_their_theorems():
    for options in ({"rotary": "half"}, {"feature_map": "relu"}, {"dropout_keep": "half"}):
        assert not is_plain(Recipe(query_length=2, key_length=3, head_dim=4, **options).problem())
    assert all(map(is_plain, PROBLEMS))
