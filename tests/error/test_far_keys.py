"""Keys far below the maximum of their row: they leave its bound alone, but for merges of log-sum-exps."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.forward import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.error.bounds import forward_bound
from attn_spec.error.far_keys import without_far_keys
from attn_spec.error.intermediates import intermediates
from attn_spec.error.presets import FUSED
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.regimes import Recipe

FILLS = (-1e4, -1e9, -3e38)
FAR, NEAR = slice(0, 8), slice(8, 16)
CONTRACT = FUSED.at("float32")


def filled(fill, keys=FAR):
    problem = Recipe(query_length=16, key_length=16, head_dim=8, value_dim=8, bias="zero@11QK").problem()
    bias = np.zeros((1, 1, 16, 16))
    bias[..., keys] = np.float32(fill)
    return problem.replace(bias=bias)


@pytest.mark.parametrize("fill", FILLS)
def test_a_fill_costs_no_more_than_a_bias_of_zero(fill):
    plain, low = (forward_bound(intermediates(filled(x)), CONTRACT) for x in (0.0, fill))

    assert low.in_domain.all()
    for name, allowed in low.allowed.items():
        assert allowed.max() < 4 * plain.allowed[name].max()


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("keys", [FAR, NEAR])
def test_tiles_of_far_keys_before_or_after_the_others_stay_within_it(fill, keys):
    kernel = emulate("tiled", PRECISE, Order(kv_tile=4), contract=replace(PRECISE, kv_tile=4))
    subject, problem = Subject(kernel, "float32"), filled(fill, keys)

    assert assert_within_bound(subject, problem, subject(problem)).exercised


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
