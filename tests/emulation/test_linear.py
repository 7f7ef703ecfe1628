"""Emulated linear attention is within its bounds where one rounding or one order of sums decides."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.attention.scores import FEATURE_MAPS
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.linear import SUPPORTS, LinearAttention, LinearGradients
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement import measure
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

SHAPE = {"query_heads": 2, "kv_heads": 1, "query_length": 5, "key_length": 9, "head_dim": 16, "value_dim": 3}


def linear(contract):
    declared = {"supports": SUPPORTS, "always": ("feature_map",)}
    kernel = emulate_both("linear", contract, steps=LinearAttention, gradients=LinearGradients, **declared)
    return Subject(kernel, "float32")


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("contract", [replace(PRECISE, exponent="base2"), replace(PRECISE, delta="probabilities")])
def test_both_passes_are_within_their_bounds(contract, feature_map):
    subject = linear(contract)
    problem = Recipe(**SHAPE, dtypes="float32", feature_map=feature_map, seed=3).problem()
    dO = cotangent(subject, problem)

    assert assert_within_bound(subject, problem, subject(problem)).exercised
    assert assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO)).exercised


def test_delta_of_weights_has_the_error_of_their_sum():
    """The weight of a key without a value is near 1: dw = -delta / N, and each of both has the error of exp(-LSE)."""
    contract = replace(PRECISE, lse="float16", delta="probabilities")
    subject, dO, most = linear(contract), np.ones((1, 1, 1, 1)), 0.0
    for n in range(40):
        problem = one_head([[1.0]], [[500.0 + n], [2.0**-7]], [[0.0], [1.0]], feature_map="relu", dtypes="float32")
        found = subject.gradients(problem, dO)
        assert assert_gradients_within_bound(subject, problem, dO, found).exercised
        most = max(most, measure.judge_gradients(problem, subject.contract, dO, found).ratio)

    assert most > 0.6  # more than the error of one of them
