"""Dropout: numbers by hand, what it is on average, what it may be; kernels that multiply what they like are sound."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from attn_spec.reports.proof.plain.dropout import output_raised
from mpmath import mp

from attn_spec.attention import definition, enclosure
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.forward.dropout_bounds import factor_fits, factor_roundings
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import EAGER, FUSED
from attn_spec.contract.roundoff import gamma
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import StoredWeights, TiledGradients
from attn_spec.emulation.dropout import DROPOUT
from attn_spec.emulation.kernels import SUPPORTS, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.analysis import analysis_of
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 9, "head_dim": 4, "value_dim": 3}


def dropping(**fields):
    drawn = {"dtypes": "float32", **SHAPE, "dropout_keep": "half@BHQK", "dropout_p": 0.3, "seed": 1}
    return Recipe(**drawn | fields).problem()


def kept(*keys):
    return np.array(keys, dtype=bool)[None, None, None]


def test_by_hand():
    """q = 0: two keys weigh 1/2 each. One is kept with p = 1/4, so its value counts 1/2 / (3/4) = 2/3 times."""
    problem = one_head([[0.0]], [[1.0], [2.0]], [[3.0], [5.0]], dropout_keep=kept(True, False), dropout_p=0.25)
    found = gradients(problem, np.ones((1, 1, 1, 1)), 80)

    assert float(definition.attention(problem, 80).item()) == 2.0
    assert float(definition.log_sum_exp(problem, 80).item()) == pytest.approx(math.log(2))
    assert [float(x) for x in found["dv"].ravel()] == pytest.approx([2 / 3, 0])
    # dP = (4, 0), delta = 2, dS = (1, -1) and dq = 1 * 1 - 1 * 2.
    assert float(found["dq"].item()) == pytest.approx(-1)


def test_on_average_over_all_masks_it_is_attention_without():
    problem = one_head([[0.7]], [[1.0], [-2.0], [0.5]], [[3.0], [5.0], [-4.0]])
    with mp.workprec(80):
        total, p = mp.zero, mp.mpf(0.3)
        for mask in itertools.product([False, True], repeat=3):
            share = mp.fprod(1 - p if one else p for one in mask)
            total += share * definition.attention(problem.replace(dropout_keep=kept(*mask), dropout_p=0.3), 80).item()
        assert abs(total - definition.attention(problem, 80).item()) < 2.0**-70


def test_a_mask_and_its_complement_add_up_to_attention_without():
    problem = dropping()
    other = problem.replace(dropout_keep=~problem.dropout_keep)
    plain = problem.replace(dropout_keep=None, dropout_p=None)

    with mp.workprec(80):
        both = definition.attention(problem, 80) + definition.attention(other, 80)
        assert abs(both - definition.attention(plain, 80) / (1 - mp.mpf(0.3))).max() < 2.0**-70


def test_enclosures_hold_the_definition():
    problem = dropping(causal=True, bias="normal@11QK", softcap=5.0)
    dO = np.random.default_rng(2).standard_normal((*problem.score_shape[:3], 3))
    pairs = [(definition.attention(problem, 120), enclosure.enclose(problem, 100)["output"])]
    found = enclose_gradients(problem, dO, 100)
    pairs += [(truth, found[name]) for name, truth in gradients(problem, dO, 120).items()]

    for truth, enclosed in pairs:
        with mp.workprec(160):
            gap = abs(truth - definition.exact(enclosed.value) - definition.exact(enclosed.low))
            assert all(float(g) <= r + 2.0**-90 for g, r in zip(gap.ravel(), enclosed.radius.ravel(), strict=True))


def test_gradients_are_those_of_the_output():
    """Along a random direction of q, k and v, by a difference over 2^-60."""
    problem, rng = dropping(head_dim=2, query_heads=2, kv_heads=1, batch=1, key_length=4), np.random.default_rng(3)
    dO = rng.standard_normal((*problem.score_shape[:3], 3))
    found = gradients(problem, dO, 200)
    steps = {name: rng.integers(-3, 4, getattr(problem, name).shape) * 2.0**-20 for name in "qkv"}

    with mp.workprec(200):
        sides = [
            (definition.exact(dO) * definition.attention(problem.replace(**moved), 200)).sum()
            for sign in (1, -1)
            for moved in [{n: getattr(problem, n) + sign * step for n, step in steps.items()} | {"dtypes": "float64"}]
        ]
        slope = sum((found[f"d{name}"] * definition.exact(step)).sum() for name, step in steps.items())
        assert abs((sides[0] - sides[1]) / 2 - slope) < 1e-12 * abs(slope)


def test_the_mean_of_equal_scores_is_dropped_too():
    problem = dropping()
    equal = analysis_of(problem).of_equal_scores.problem

    assert (equal.dropout_keep == problem.dropout_keep).all()
    assert equal.dropout_p == 0.3


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, "half"])
def test_p_is_at_least_0_and_less_than_1(value):
    with pytest.raises(ProblemError, match="dropout_p must be a number from 0 up to 1, less than 1, or None"):
        dropping().replace(dropout_p=value)


def test_p_alone_says_nothing():
    with pytest.raises(
        ProblemError, match="dropout_p is a parameter of dropout_keep; give dropout_keep too, or leave dropout_p out"
    ):
        dropping().replace(dropout_keep=None)


@pytest.mark.parametrize(("p", "roundings"), [(None, 0), (0.5, 0), (0.75, 0), (0.1, 1), (1 - 2.0**-20, 1)])
def test_powers_of_two_are_not_rounded(p, roundings):
    assert len(factor_roundings(intermediates(dropping(dropout_p=p)), FUSED.at("float32"), "softmax")) == roundings


@pytest.mark.parametrize("p", [0.1, 0.9, 0.99, 0.9975])
def test_a_rounded_p_moves_the_inverse_of_what_it_leaves_by_no_more_than_the_theorem_says(p):
    """Near 1, p (1 + u) leaves far less of 1 - p than a factor (1 + u)^(p / (1 - p)) has room for."""
    c = replace(PRECISE, softmax="float16").at("float32")
    u, factors = FORMATS["float16"].unit_roundoff, factor_roundings(intermediates(dropping(dropout_p=p)), c, "softmax")

    assert gamma(*factors) >= (1 - p) / (1 - p * (1 + u)) * (1 + u) ** 3 - 1
    assert gamma(*factors) <= (1 - p) / (1 - p * (1 + u)) * (1 + u) ** 5 - 1


@pytest.mark.parametrize(("p", "fits"), [(0.9, True), (0.9975, True), (0.9995, False), (1 - 2.0**-20, False)])
def test_what_a_format_cannot_hold_is_outside_the_domain(p, fits):
    contract = EAGER.at("float16")
    assert factor_fits(intermediates(dropping(dropout_p=p, dtypes="float16")), contract) == fits


@pytest.mark.parametrize("p", [0.5, 0.7, 0.9])
def test_score_gradients_that_underflow_before_they_are_raised_are_within_their_bounds(p):
    """Cast to float16, (1 - p) dS loses up to 2^-25, and dQ = dS k / (1 - p) with |k| about 12 more by 1 / (1 - p)."""
    subject, rng, most = Subject(output_raised, "float16"), np.random.default_rng(0), 0.0
    for distance in rng.uniform(9, 15, 40):
        v, dO = (bits.nearest(rng.uniform(0.05, 1, shape), "float16") for shape in ((2, 1), (1, 1, 1, 1)))
        problem = one_head([[1.0]], [[0.0], [float(np.float16(-distance))]], v.tolist(), dtypes="float16")
        problem = problem.replace(dropout_keep=kept(True, False), dropout_p=p)
        found = subject.gradients(problem, dO)
        assert_gradients_within_bound(subject, problem, dO, found)
        most = max(most, abs(found["dq"] - float(gradients(problem, dO, 80)["dq"].item())).item())
    assert most > 0.5 * 2.0**-25 * 9 / (1 - p)  # there is something to forgive


@pytest.mark.parametrize("multiplied", ["weights", "probabilities", "values", "output", "gradients"])
@pytest.mark.parametrize(("executes", "steps"), [(PRECISE, TiledGradients), (EAGER, StoredWeights)])
def test_kernels_that_multiply_what_they_like_are_within_their_bounds(multiplied, executes, steps):
    order = Order(dropout_on=multiplied, kv_tile=None if executes is EAGER else 4)
    contract = executes if executes is EAGER else replace(executes, kv_tile=4)
    declared = {"dtypes": ("float16",), "supports": (*SUPPORTS, *DROPOUT), "contract": contract}
    subject = Subject(emulate_both("dropping", executes, order, gradients=steps, **declared), "float16")
    for seed in range(4):
        problem = dropping(seed=seed, dtypes="float16", regime="normal+v_wide" if seed % 2 else "normal")
        dO = cotangent(subject, problem)
        assert assert_within_bound(subject, problem, subject(problem)).exercised
        assert assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO)).exercised
