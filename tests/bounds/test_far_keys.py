"""Keys far below the maximum of their row: they leave its bound alone, but for merges of log-sum-exps."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.backward.gradient_bounds import gradient_bound
from attn_spec.bounds.forward.bounds import evaluation_error, forward_bound
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import FUSED
from attn_spec.contract.readings import gradient_readings
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.regimes import Recipe

FILLS = (-1e4, -1e9, -3e38)
FAR, NEAR = slice(0, 8), slice(8, 16)
CONTRACT = FUSED.at("float32")


def filled(fill, keys=FAR):
    problem = Recipe(query_length=16, key_length=16, head_dim=8, value_dim=8, bias="zero@11QK").problem()
    bias = np.zeros((1, 1, 16, 16))
    bias[..., keys] = np.float32(fill)
    return problem.replace(bias=bias)


def forward(problem):
    return forward_bound(intermediates(problem), CONTRACT)


def backward(problem):
    x = intermediates(problem)
    cotangent = np.random.default_rng(0).standard_normal(x.O.shape)
    return gradient_bound(x, gradient_intermediates(x, cotangent), gradient_readings(CONTRACT)[0])


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("bound", [forward, backward])
def test_a_fill_costs_no_more_than_a_mask(bound, fill):
    masked = bound(filled(0.0).replace(mask=(np.arange(16) >= 8)[None, None, None]))
    low = bound(filled(fill))

    assert all(low.domain_of(name).all() for name in masked.allowed)
    for name, allowed in masked.allowed.items():
        assert low.allowed[name].max() < 1.2 * allowed.max()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("keys", [FAR, NEAR])
def test_tiles_of_far_keys_before_or_after_the_others_stay_within_it(fill, keys):
    kernel = emulate_both("tiled", PRECISE, Order(kv_tile=4), contract=replace(PRECISE, kv_tile=4))
    subject, problem = Subject(kernel, "float32"), filled(fill, keys)
    dO = randomness(problem).standard_normal(problem.output_shape).astype(np.float32)
    gradients = subject.gradients(problem, dO)

    assert assert_within_bound(subject, problem, subject(problem)).exercised
    assert assert_gradients_within_bound(subject, problem, dO, gradients).exercised


@pytest.mark.parametrize("both", [False, True])
def test_weights_of_far_keys_have_errors_where_all_else_is_zero(both):
    """e^-702 is a number in float64, as wrong as its score: a sum of terms of 1e6, where those of others are of 1."""
    kernel = emulate_both("tiled", PRECISE, Order(kv_tile=4), contract=replace(PRECISE, kv_tile=4), dtypes=("float64",))
    subject, problem = Subject(kernel, "float64"), filled(-702.0).replace(dtypes="float64")
    k, v = problem.k.copy(), np.zeros(problem.v.shape)
    k[:, :, FAR] += 1e6 * (-1.0) ** np.arange(8)
    v[:, :, FAR] = 1.0
    problem = problem.replace(q=np.ones(problem.q.shape), k=k, v=v)
    dO = np.ones(problem.output_shape)

    if both:
        assert assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO)).exercised
    else:
        assert assert_within_bound(subject, problem, subject(problem)).exercised


def test_a_score_that_may_be_nearer_than_it_is_has_no_far_key():
    problem = filled(0.0)
    k = np.zeros(problem.k.shape)
    k[:, :, FAR, :2] = 1e5, -1e5 - 3 * 2.0**-7
    x = intermediates(problem.replace(q=np.full(problem.q.shape, 1e5), k=k))

    assert x.s[..., FAR].max() < x.M.min() - 700 - 30
    assert without_far_keys(x, CONTRACT) is x


def test_the_float64_evaluation_of_a_fill_is_trusted():
    error = evaluation_error(intermediates(filled(-3e38)))
    assert all(allowed.max() < 1e-12 for allowed in error.allowed.values())


@pytest.mark.parametrize("gap", [699.0, 702.0])
def test_far_begins_where_no_format_holds_the_weight(gap):
    x = intermediates(filled(-gap).replace(q=np.zeros((1, 1, 16, 8))))
    assert (without_far_keys(x, CONTRACT) is x) == (gap < 700)


def test_a_row_of_which_all_keys_are_low_has_no_far_one():
    x = intermediates(filled(-1e9, slice(None)))
    assert without_far_keys(x, CONTRACT) is x


def test_merges_of_log_sum_exps_do_look_at_far_keys():
    """L - log sigmoid(L - L') of a far L has lost a near L', as ring attention in PyTorch merges."""
    L, other = np.float32(-1e7), np.float32(1.3)
    difference = L - other
    merged = L - (difference - np.log1p(np.exp(difference)))

    assert merged.dtype == np.float32
    assert abs(merged - other) > 0.25
    x = intermediates(filled(-1e7))
    assert without_far_keys(x, replace(CONTRACT, lse_merges=2)) is x
    assert without_far_keys(x, CONTRACT) is not x


@pytest.mark.parametrize(("value", "inside"), [(1.0, True), (np.float32(1e38), False)])
def test_values_of_far_keys_may_still_overflow(value, inside):
    """A weight of 1 before the maximum is met multiplies them."""
    problem = filled(-1e9)
    v = np.ones(problem.v.shape)
    v[:, :, FAR] = value

    assert forward_bound(intermediates(problem.replace(v=v)), CONTRACT).in_domain.all() == inside


@pytest.mark.parametrize("fill", [0.0, -1e9])
def test_intermediates_are_freed_with_what_is_kept_of_them(fill):
    x = intermediates(filled(fill))
    forward_bound(x, CONTRACT)
    gone = weakref.ref(x)
    del x
    gc.collect()

    assert gone() is None
