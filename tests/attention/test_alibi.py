"""ALiBi: numbers by hand, the bias that it is, what a kernel may count from, and what its slopes may be."""

import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition, enclosure
from attn_spec.bounds.forward.score_bounds import row_shift, score_error
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FP32, FUSED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import assert_gradients_within_bound, assert_rows_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import Refutation
from tests.one_head import one_head

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 5, "key_length": 9, "head_dim": 4, "value_dim": 3}


def with_slopes(**fields):
    return Recipe(**{"dtypes": "float32", **SHAPE, "alibi_slopes": "random@BH11", "seed": 1, **fields}).problem()


def written_out(problem):
    """Write the terms of ALiBi as a bias, by loops of their own."""
    offset = problem.key_length - problem.query_length if problem.causal_alignment == "bottom_right" else 0
    bias = np.zeros(problem.score_shape)
    for b, h, i, j in np.ndindex(bias.shape):
        m = np.broadcast_to(problem.alibi_slopes, (*bias.shape[:2], 1, 1))[b, h, 0, 0]
        bias[b, h, i, j] = -m * abs(i + offset - j)
    return bias


def test_by_hand():
    """q = k = 0 and m = log 2: the key at distance n weighs 2^-n."""
    problem = one_head(
        [[0.0]], [[0.0], [0.0], [0.0]], [[0.0], [0.0], [7.0]], alibi_slopes=np.full((1, 1, 1, 1), math.log(2))
    )

    assert float(definition.attention(problem, 60)[0, 0, 0, 0]) == pytest.approx(7 * (1 / 4) / (1 + 1 / 2 + 1 / 4))
    assert float(definition.log_sum_exp(problem, 60)[0, 0, 0]) == pytest.approx(math.log(1.75))


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
def test_it_is_the_bias_that_it_adds(alignment):
    problem = with_slopes(causal_alignment=alignment, window=(6, 2), alibi_slopes="geometric@1H11")
    written = problem.replace(alibi_slopes=None, bias=written_out(problem))

    truth = definition.attention(problem, 80)
    with mp.workprec(80):
        difference = abs(truth - definition.attention(written, 80)).max()
    assert difference < 2.0**-75
    assert np.allclose(intermediates(problem).s, intermediates(written).s, rtol=1e-15)


def test_the_enclosure_holds_the_definition():
    problem = with_slopes(causal=True, bias="normal@11QK", softcap=5.0)
    truth, found = definition.attention(problem, 120), enclosure.enclose(problem, 100)["output"]

    with mp.workprec(160):
        gap = abs(truth - definition.exact(found.value) - definition.exact(found.low))
        assert all(float(g) <= r + 2.0**-90 for g, r in zip(gap.ravel(), found.radius.ravel(), strict=True))


def test_slopes_of_0_change_nothing():
    problem = with_slopes(alibi_slopes="zero@1111")
    assert (intermediates(problem).s == intermediates(problem.replace(alibi_slopes=None)).s).all()


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_slopes_are_at_least_0(value):
    with pytest.raises(ProblemError, match="alibi_slopes must not contain a negative number, NaN or an infinity"):
        with_slopes().replace(alibi_slopes=np.full((1, 1, 1, 1), value))


def test_slopes_are_one_for_each_head():
    with pytest.raises(ProblemError, match=r"alibi_slopes must be a float64 array broadcastable to \[B, Hq, 1, 1\]"):
        with_slopes().replace(alibi_slopes=np.zeros((1, 1, 5, 9)))


def test_scores_of_a_row_may_all_be_larger():
    """m j for - m (i - j) is larger by m i; that bound holds where keys may be counted from any of them."""
    problem = with_slopes(causal=True, causal_alignment="bottom_right")
    x, near, far = intermediates(problem), FUSED.at("float32"), problem.key_length - problem.query_length

    shift = row_shift(x, near)
    assert (shift[..., 0] >= problem.alibi_slopes[..., 0] * (np.arange(5) + far)).all()
    assert not row_shift(x, replace(near, alibi="distance")).any()
    assert (score_error(x, replace(near, alibi="distance")) <= score_error(x, near)).all()


@pytest.mark.parametrize("origin", ["query", "first", "last"])
@pytest.mark.parametrize("exponent", ["natural", "base2"])
def test_kernels_that_count_from_anywhere_are_within_their_bounds(origin, exponent):
    executes = replace(PRECISE, exponent=exponent)
    kernel = emulate_both("counting", executes, Order(alibi_from=origin), dtypes=("float32",))
    subject = Subject(kernel, "float32")
    for seed in range(4):
        problem = with_slopes(causal=True, alibi_slopes="steep@1H11", seed=seed, query_length=9, key_length=40)
        assert_within_bound(subject, problem, subject(problem))
        dO = cotangent(subject, problem)
        assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


def test_a_contract_of_distances_refutes_what_counts_from_the_first_key():
    """The query stands at key 899 and sees four: m j is rounded where it is large, - m (i - j) where it is small."""
    whole_rows = replace(FP32, kv_tile=None)
    order, far = Order(alibi_from="first", kv_tile=None), replace(whole_rows, alibi="distance")
    problem = with_slopes(causal=True, causal_alignment="bottom_right", query_length=1, key_length=900, window=(3, 0))
    subjects = [
        Subject(emulate_both("far", whole_rows, order, dtypes=("float32",), contract=contract), "float32")
        for contract in (whole_rows, far)
    ]

    assert_within_bound(subjects[0], problem, subjects[0](problem))
    with pytest.raises(Refutation, match="allowed error"):
        assert_within_bound(subjects[1], problem, subjects[1](problem))


def test_rows_among_others_are_held_to_their_bound_where_distances_are_multiplied():
    """If keys are counted from any key, hidden ones may make products as large as no bound of the row counts."""
    problem = with_slopes(causal=True, causal_alignment="bottom_right", query_length=1)
    rows = {"output": intermediates(problem).O + 0.01}
    for alibi in ("positions", "distance"):
        contract = replace(PRECISE, alibi=alibi)
        subject = Subject(emulate_both("rows", contract, dtypes=("float32",)), "float32")
        if alibi == "distance":
            with pytest.raises(Refutation, match="allowed error"):
                assert_rows_within_bound(subject, problem, rows)
        else:
            assert_rows_within_bound(subject, problem, rows)
