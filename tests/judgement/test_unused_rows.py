"""Rows behind a sequence, and keys behind its last one: judged if a convention says what is there, and never else."""

import time

import numpy as np
import pytest

from attn_spec.attention import error_free, error_free_gradients
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.contract.presets import PRESETS
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.gradient_blocks import judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.oracle import float64_gradients
from attn_spec.numbers import bits
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

C = PRESETS["fp32"].at("float32")
ZERO = Conventions(unused_rows="zero")
SHAPE = {"batch": 3, "query_heads": 2, "query_length": 4, "key_length": 5, "head_dim": 4, "value_dim": 3}


@pytest.fixture(scope="module", name="problem")
def _problem() -> Problem:
    return (
        Recipe(**SHAPE, kv_heads=1, causal=True, causal_alignment="bottom_right", seed=3)
        .problem()
        .replace(seqused_q=_lengths(4, 2, 0), seqused_k=_lengths(5, 3, 2))
    )


def _lengths(*numbers):
    return np.array(numbers).reshape(-1, 1, 1, 1)


def rounded(x):
    return bits.nearest(x, "float32")


def answer_of(problem):
    truth = analysis_of(problem).oracle()
    return {name: rounded(x.value) for name, x in truth.items()}


@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "in blocks"])
def test_rows_behind_a_sequence_are_judged_if_they_are_declared_zero(problem, in_blocks):
    answer = answer_of(problem)
    behind = np.broadcast_to(~problem.there[..., None], answer["output"].shape)
    odd = {
        **answer,
        "output": np.where(behind, 7.0, answer["output"]),
        "lse": np.where(problem.there, answer["lse"], 3.0),
    }

    def refuted(found, conventions):
        if in_blocks:
            return judge_parts(parts_of(problem, **found), C, conventions=conventions).refuted
        return judge(problem, C, **found, conventions=conventions).refuted

    assert not refuted(answer, Conventions())
    assert not refuted(answer, ZERO)
    assert not refuted(odd, Conventions())
    assert refuted(odd, ZERO)


@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("size", [1.0, 2.0**120])
def test_a_row_behind_its_sequence_may_be_nan_where_its_scores_overflow(problem, size, in_blocks):
    """A score of -inf that is no number before it is hidden; an emulated kernel was accused of its NaN."""
    q = np.where(problem.there[..., None], problem.q, size)
    large = problem.replace(q=rounded(q), k=rounded(problem.k * 256))
    odd = answer_of(large)["output"]
    odd[1, 0, 2] = np.nan
    if in_blocks:
        judgement = judge_parts(parts_of(large, output=odd), C, conventions=ZERO)
        silent = judgement.silent_share > 0
    else:
        judgement = judge(large, C, output=odd, conventions=ZERO)
        silent = any(one.silent for one in judgement.measurements)

    assert judgement.refuted == (size == 1.0)
    assert not silent


@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_gradients_of_what_is_not_there_are_judged_if_they_are_declared_zero(problem, name, in_blocks):
    dO = rounded(np.random.default_rng(1).standard_normal(problem.output_shape))
    found = {"dq": np.zeros(problem.q.shape), "dk": np.zeros(problem.k.shape), "dv": np.zeros(problem.v.shape)}
    truth = judge_gradients(problem, C, dO, found).measurements
    found = {one.name: rounded(one.truth.value) for one in truth}
    odd = {**found, name: found[name].copy()}
    odd[name][2, :, -1] = 7.0

    def refuted(gradients, conventions):
        if in_blocks:
            parts = gradient_parts_of(problem, dO, gradients)
            return judge_gradient_parts(parts, C, conventions=conventions).refuted
        return judge_gradients(problem, C, dO, gradients, conventions=conventions).refuted

    assert not refuted(found, ZERO)
    assert refuted(odd, ZERO)
    if not in_blocks:
        assert not refuted(odd, Conventions())


def test_a_mean_of_values_is_not_asked_for_where_values_lie_behind_the_sequence():
    problem = Recipe(**{**SHAPE, "batch": 1}, seqused_k="none@B111").problem()
    mean = Conventions(empty_row="mean_of_v")

    judgement = judge(problem, C, output=np.full(problem.output_shape, np.nan), conventions=mean)

    assert not judgement.refuted
    assert not judgement.exercised


def test_a_batch_of_many_short_sequences_is_judged_at_once():
    rng = np.random.default_rng(0)
    numbers = {n: _lengths(*rng.integers(0, 4, 67)) for n in ("seqused_q", "seqused_k")}
    problem = Recipe(batch=67, query_heads=4, kv_heads=2, query_length=3, key_length=3, head_dim=64, value_dim=64)
    problem = problem.problem().replace(**numbers, causal=True, causal_alignment="bottom_right")

    start = time.monotonic()
    judgement = judge(problem, C, **answer_of(problem))

    assert not judgement.refuted
    assert judgement.exercised
    assert time.monotonic() - start < 20  # about a second; machines that run many tests are slow


@pytest.mark.parametrize("long", [False, True], ids=["balls", "error-free products"])
def test_a_sink_is_in_the_row_sum_of_no_query_behind_its_sequence(problem, long):
    """The truth of a batch with sinks is that of its sequences alone, in every tier and in dsinks."""
    with_sinks = problem.replace(sinks=np.array([0.5, -np.inf]).reshape(1, 2, 1, 1))
    rng = np.random.default_rng(5)
    dO, dL = rng.standard_normal(problem.output_shape), rng.standard_normal(problem.score_shape[:3])
    whole, total = _tiers(with_sinks, dO, dL, long=long), 0.0
    for b, (n, e) in enumerate(((4, 5), (2, 3), (0, 2))):
        crop = np.s_[b : b + 1, :, :n]
        alone = Problem(
            q=problem.q[crop], k=problem.k[b : b + 1, :, :e], v=problem.v[b : b + 1, :, :e],
            causal=True, causal_alignment="bottom_right", sinks=with_sinks.sinks, dtypes=problem.dtypes,
        )  # fmt: skip
        of_sequence = _tiers(alone, dO[crop], dL[crop], long=long)
        for forward, _ in of_sequence:
            assert whole[0][0]["output"].value[crop] == pytest.approx(forward["output"].value, abs=1e-12)
            assert whole[0][0]["lse"].value[crop] == pytest.approx(forward["lse"].value, abs=1e-12)
        total = total + of_sequence[-1][1]["dsinks"].value

    for forward, gradients in whole:
        assert (forward["lse"].value[np.broadcast_to(~problem.there, problem.score_shape[:3])] == -np.inf).all()
        assert gradients["dsinks"].value == pytest.approx(total, abs=1e-12)
        assert gradients["dsinks"].value[0, 1] == 0


def _tiers(problem, dO, dL, *, long):
    """Return the truth of answers and of gradients in float64, and from balls or from error-free products."""
    forward, backward = analysis_of(problem), gradient_analysis_of(problem, dO, dL)
    known = analysis_of(problem).intermediates
    others = (
        (error_free.enclose(problem), error_free_gradients.enclose_gradients(problem, dO, dL))
        if long
        else (enclose(problem, 113), enclose_gradients(problem, dO, 113, dL))
    )
    return [(forward.oracle.first, float64_gradients(known, backward.backward)), others]
