"""Gradients of long problems: blocks of rows are judged as the whole is."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import EAGER, FP64
from attn_spec.judgement.long import blocks
from attn_spec.judgement.long.gradient_blocks import MemoryExceededError, judge_gradient_parts
from attn_spec.judgement.long.gradient_glance import is_glanced
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.long.key_sample import KeySample
from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.judgement.measure import judge_gradients
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 19, "key_length": 26}
SHAPE |= {"head_dim": 6, "value_dim": 5}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "rows without keys": {"mask": "empty_middle_rows"},
    "masks by head, a broadcast bias": {"mask": "random@BHQK", "bias": "normal@1H1K"},
    "a bias of rows": {"bias": "normal@11QK", "softcap": 3.0},
    "a bias of all": {"bias": "normal@BHQK", "window": (4, 2)},
    "one number": {"bias": "normal@1111"},
    "ALiBi": {"alibi_slopes": "geometric@1H11"},
    "dropout": {"dropout_keep": "half@BHQK", "dropout_p": 0.5},
    "rotary": {"rotary": "half"},
    "rotary from a corner": {"rotary": "interleaved", "causal": True, "causal_alignment": "bottom_right"},
    "rotary, a broadcast bias": {"rotary": "half", "rotary_dim": 4, "bias": "normal@1H1K"},
    "cosine": {"score_gamma": "ten@1H11"},
    "bilinear": {"score_weight": "normal"},
    "linear": {"feature_map": "relu"},
}
CONTRACT = replace(EAGER, delta="output", backward_weights="recomputed", score_gradients_of="uncast").at("float32")


def cotangents(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal(problem.output_shape), rng.integers(-8, 8, problem.score_shape[:3]) / 8


def found(problem: Problem, dO: np.ndarray, dL: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the float64 gradients, rounded as no kernel would round them better."""
    gradients = gradient_intermediates(intermediates(problem), dO, dL).gradients
    return {name: x.astype(np.float32).astype(np.float64) for name, x in gradients.items()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("memory", [2**28, 2**17])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_blocks_are_judged_as_the_whole_is(options, memory):
    problem = Recipe(**SHAPE, **options).problem()
    memory = 2**28 if {"score_weight", "score_gamma", "feature_map"} & options.keys() else memory
    dO, dL = cotangents(problem)
    dL = dL if "softcap" in options or not options else None
    right = found(problem, dO, dL)
    wrong = {name: x.copy() for name, x in right.items()}
    for x in wrong.values():
        x[-1, -1, x.shape[2] // 2 :, -1] += 0.5 * (1 + np.abs(x).max())

    for answer in (right, wrong):
        judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer, dL), CONTRACT, memory=memory)
        whole = judge_gradients(problem, CONTRACT, dO, answer, dL)
        assert judgement.exercised
        assert judgement.refuted == whole.refuted
        assert judgement.refuted == (answer is wrong)
        assert (judgement.rows, judgement.of) == (8 * 19, 8 * 19)
        assert (judgement.keys, judgement.of_keys) == (4 * 26, 4 * 26)
        for m in whole.measurements:
            tally = judgement.tallies[m.name]
            assert tally.outside == m.outside.sum()
            assert (tally.elements, tally.unmeasured) == (m.outside.size, (~m.measured).sum())
            if answer is right and is_glanced(problem) and problem.bias is None:
                assert tally.ratio <= m.ratio * (1 + 1e-4) <= max(tally.share, m.name == "dq")
                continue
            # One alpha for all heads of a batch entry widens the whole a little more.
            assert tally.ratio == pytest.approx(m.ratio, rel=1e-4)
            assert tally.worst.index == m.worst
            assert float.fromhex(tally.worst.allowed) == pytest.approx(m.allowed[m.worst], rel=1e-5)


@pytest.mark.parametrize("short", [None, "q", "k"])
def test_blocks_of_cosine_scores_are_judged_as_the_whole_is(short):
    """Without the gradient of gamma. A vector shorter than any clamp has no bound: other rows, or other heads, do."""
    problem = Recipe(**SHAPE, score_gamma="ten@1H11").problem()
    if short is not None:
        vectors = getattr(problem, short).copy()
        vectors[0, 1, 3] = 2.0**-100
        problem = problem.replace(**{short: vectors})
    dO, _ = cotangents(problem)
    right = {name: x for name, x in found(problem, dO, None).items() if name != "dscore_gamma"}
    wrong = {name: x.copy() for name, x in right.items()}
    for x in wrong.values():
        x[1, 0, 5, 2] += 0.5 * (1 + np.abs(x).max())

    for answer in (right, wrong):
        judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT, memory=2**14)
        whole = judge_gradients(problem, CONTRACT, dO, answer)
        assert judgement.refuted == whole.refuted == (answer is wrong)
        for m in whole.measurements:
            tally = judgement.tallies[m.name]
            assert (tally.outside, tally.unmeasured) == (m.outside.sum(), (~m.measured).sum())
            assert tally.ratio == pytest.approx(m.ratio, rel=1e-4)
            assert m.measured[1].all()  # of the other batch entry
        assert bool(sum((~m.measured).sum() for m in whole.measurements)) == (short is not None)


@pytest.mark.parametrize(("short", "unmeasured"), [("q", (6, 156, 130)), ("k", (228, 156, 130))])
def test_a_hidden_vector_without_a_bound_silences_the_gradients_that_may_be_nan(short, unmeasured):
    """No score has the vector, whose operand may be infinite: 0 times that is NaN, in all keys of a head or rows."""
    problem, visible = Recipe(**SHAPE, score_gamma="ten@1H11").problem(), np.ones((1, 1, 19, 26), dtype=bool)
    vectors = getattr(problem, short).copy()
    vectors[0, 1, 3] = 2.0**-100
    visible[(..., 3, slice(None)) if short == "q" else (..., 3)] = False
    problem = problem.replace(**{short: vectors}, mask=visible)
    dO, _ = cotangents(problem)
    answer = {name: x for name, x in found(problem, dO, None).items() if name != "dscore_gamma"}

    whole = judge_gradients(problem, CONTRACT, dO, answer)
    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT, memory=2**20)
    assert tuple((~m.measured).sum() for m in whole.measurements) == unmeasured
    assert tuple(judgement.tallies[m.name].unmeasured for m in whole.measurements) == unmeasured


def test_underflow_is_raised_by_dropout_in_any_block_of_rows():
    """Gradients of 2^-190 underflow; of the last row, a block of its own, every weight is dropped."""
    keep = np.arange(9)[:, None] < np.full(11, 8)
    problem = Recipe(query_length=9, key_length=11, head_dim=4, rotary="half", size=2.0**-70).problem()
    problem = problem.replace(dropout_keep=keep[None, None], dropout_p=0.75)
    dO = 2.0**-50 * cotangents(problem)[0]
    answer = found(problem, dO, None)
    answer["dk"][...] = 2.0**-149

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT, memory=1)
    (whole,) = (m for m in judge_gradients(problem, CONTRACT, dO, answer).measurements if m.name == "dk")
    assert 0 < whole.ratio == pytest.approx(judgement.tallies["dk"].ratio, rel=1e-4)


@pytest.mark.parametrize("most", [2**15, 4 * 80], ids=["one part", "kv heads"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 5.0}], ids=str)
def test_heads_of_few_scores_are_judged_together_as_the_whole_is(options, most, monkeypatch):
    """A kv head has 4 rows and 6 keys of 8 columns."""
    monkeypatch.setattr(blocks, "TOGETHER", most)
    shape = {"batch": 3, "query_heads": 12, "kv_heads": 6, "query_length": 2, "key_length": 6, "head_dim": 8}
    problem = Recipe(**shape, value_dim=4, **options).problem()
    dO, dL = cotangents(problem)
    right = found(problem, dO, dL)
    wrong = {name: x.copy() for name, x in right.items()}
    for x in wrong.values():
        x[2, -1, 1, 3] += 0.5 * (1 + np.abs(x).max())

    for answer in (right, wrong):
        parts = gradient_parts_of(problem, dO, answer, dL, together=True)
        judgement, whole = judge_gradient_parts(parts, CONTRACT), judge_gradients(problem, CONTRACT, dO, answer, dL)
        assert len(parts) == {2**15: 1, 4 * 80: 6}[most]
        assert judgement.refuted == whole.refuted == (answer is wrong)
        assert (judgement.rows, judgement.of, judgement.keys, judgement.of_keys) == (72, 72, 108, 108)
        for m in whole.measurements:
            tally = judgement.tallies[m.name]
            assert tally.outside == m.outside.sum()
            # One alpha for all heads of a batch entry widens the whole a little more.
            assert tally.ratio == pytest.approx(m.ratio, rel=1e-4)
            assert tally.worst.index == m.worst


def test_a_row_at_a_time():
    problem = Recipe(query_heads=2, kv_heads=1, query_length=9, key_length=11, head_dim=4, causal=True).problem()
    dO, dL = cotangents(problem)
    right = found(problem, dO, dL)

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, right, dL), CONTRACT, memory=1)
    assert judgement.exercised
    assert not judgement.refuted
    whole = judge_gradients(problem, CONTRACT, dO, right, dL)
    assert 0 < judgement.ratio <= whole.ratio * (1 + 1e-5)


def test_a_layer_is_judged_whole():
    names = ("query_projection", "key_projection", "value_projection", "output_projection")
    shape = {"batch": 2, "query_heads": 2, "query_length": 9, "key_length": 11, "head_dim": 4, "value_dim": 4}
    problem = Recipe(**shape, **dict.fromkeys(names, "normal")).problem()
    dO, _ = cotangents(problem)
    wrong = found(problem, dO, None)
    wrong["dkey_projection"][-1, -1, -1, -1] += 9.0

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, wrong), CONTRACT)
    assert judgement.worst.quantity == "dkey_projection"
    assert judgement.worst.index == tuple(n - 1 for n in wrong["dkey_projection"].shape)
    assert judgement.tallies["dq"].outside == 0


@pytest.mark.parametrize("options", [{"score_weight": "normal"}, {"feature_map": "relu"}], ids=str)
def test_what_has_to_be_judged_whole_asks_for_memory(options):
    problem = Recipe(query_length=64, key_length=64, head_dim=4, **options).problem()
    dO, _ = cotangents(problem)
    parts = gradient_parts_of(problem, dO, found(problem, dO, None))

    assert not judge_gradient_parts(parts, CONTRACT).refuted
    with pytest.raises(
        MemoryExceededError, match=r"64 queries and 64 keys .* takes about 3 MiB, not 0.25 .* give at most 5"
    ):
        judge_gradient_parts(parts, CONTRACT, memory=2**16)


@pytest.mark.parametrize(("queries", "fits"), [(5, True), (6, False)])
def test_as_many_queries_as_the_refusal_says_are_judged(queries, fits):
    problem = Recipe(query_length=queries, key_length=64, head_dim=4, feature_map="relu").problem()
    dO, _ = cotangents(problem)
    parts = gradient_parts_of(problem, dO, found(problem, dO, None))

    with contextlib.nullcontext() if fits else pytest.raises(MemoryExceededError, match=r"give at most 5 queries$"):
        judge_gradient_parts(parts, CONTRACT, memory=2**16)
    with pytest.raises(MemoryExceededError, match=r"allow more memory$"):
        judge_gradient_parts(parts, CONTRACT, memory=2**10)


def test_a_float64_answer_is_held_against_an_enclosure():
    """All of the answer is held against an enclosure, or none of it."""
    problem = Recipe(query_length=5, key_length=6, head_dim=3, value_dim=2, dtypes="float64").problem()
    dO, _ = cotangents(problem)
    gradients = gradient_intermediates(intermediates(problem), dO).gradients
    parts, c = gradient_parts_of(problem, dO, gradients), FP64.at("float64")

    judgement, whole = judge_gradient_parts(parts, c), judge_gradients(problem, c, dO, gradients)
    assert not judgement.refuted
    for m in whole.measurements:
        assert judgement.tallies[m.name].ratio == pytest.approx(m.ratio, rel=1e-3)
        assert float.fromhex(judgement.tallies[m.name].worst.radius) < 1e-2 * m.allowed[m.worst]
    with pytest.raises(MemoryExceededError, match="or float64 is too coarse for their contract"):
        judge_gradient_parts(parts, c, memory=2**10)


def test_a_row_outside_the_domain_is_not_measured_nor_what_it_adds_to():
    """One row of scores beyond float16 is enough for dK and dV of its group; dQ of other rows has nothing of it."""
    c = replace(CONTRACT, score_accumulation="float16", stored_scores="float16")
    problem = Recipe(query_heads=4, kv_heads=2, query_length=30, key_length=20, head_dim=4).problem()
    q = problem.q.copy()
    q[0, 1, 17] *= 2.0**18
    problem = problem.replace(q=q)
    dO, _ = cotangents(problem)
    wrong = {name: np.full(x.shape, np.nan) for name, x in found(problem, dO, None).items()}

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, wrong), c, memory=2**17)
    whole = judge_gradients(problem, c, dO, wrong)
    for m in whole.measurements:
        tally = judgement.tallies[m.name]
        assert (tally.outside, tally.unmeasured) == (m.outside.sum(), (~m.measured).sum())
        assert tally.unmeasured == (4 if m.name == "dq" else tally.elements / 2)


def test_some_keys_and_a_sample_of_rows():
    problem = Recipe(query_heads=2, kv_heads=1, query_length=200, key_length=40, head_dim=4).problem()
    dO, _ = cotangents(problem)
    answer = found(problem, dO, None)
    parts, keys = gradient_parts_of(problem, dO, answer), KeySample(9)
    chosen = keys.of(problem.k[0, 0], problem.v[0, 0], 1).index
    seen, unseen = chosen[4], np.setdiff1d(np.arange(40), chosen)[0]

    judgement = judge_gradient_parts(parts, CONTRACT, keys=keys, sample=RowSample(32))
    assert not judgement.refuted
    assert (judgement.rows, judgement.of, judgement.keys, judgement.of_keys) == (64, 400, 9, 40)
    assert (judgement.keys_drawn, judgement.keys_missed(0.1)) == (5, 0.9**5)
    assert judgement.missed(0.1) == 0.9**judgement.drawn
    assert str(judgement).startswith("64 of 400 rows, ")
    chance = "a defect in 1 % of them is missed with a probability of 1 at most"
    assert str(judgement).endswith(f"; 9 of 40 keys, 5 of them at random: {chance}")
    answer["dv"][0, 0, unseen] += 1
    assert not judge_gradient_parts(parts, CONTRACT, keys=keys).refuted
    answer["dk"][0, 0, seen, 2] += 1
    refuted = judge_gradient_parts(parts, CONTRACT, keys=keys)
    assert refuted.worst.index == (0, 0, seen, 2)
    assert str(refuted) == "all 400 rows; 9 of 40 keys"
    allowed = judge_gradients(problem, CONTRACT, dO, answer).measurements
    (whole,) = (m.allowed for m in allowed if m.name == "dk")
    tally = judge_gradient_parts(parts, CONTRACT, keys=keys).tallies["dk"]
    assert float.fromhex(tally.worst.allowed) == pytest.approx(whole[0, 0, seen, 2], rel=1e-5)


def test_rows_alone_are_not_summed():
    problem = Recipe(query_heads=2, kv_heads=1, query_length=200, key_length=40, head_dim=4).problem()
    dO, _ = cotangents(problem)
    answer = {"dq": found(problem, dO, None)["dq"]}

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT, sample=RowSample(32))
    assert (judgement.rows, judgement.decided, judgement.keys) == (64, 2, 0)
    answer["dq"][0, 1, 199] += 1
    assert judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT, sample=RowSample(32)).worst.index[
        :3
    ] == (0, 1, 199)


def test_one_reading_has_to_explain_all_parts():
    """The sharper one does not explain gradients of half the precision in the second head."""
    problem = Recipe(query_heads=2, query_length=12, key_length=15, head_dim=4).problem()
    dO, _ = cotangents(problem)
    one = replace(CONTRACT, gradients="float16")
    answer = found(problem, dO, None)
    both = replace(CONTRACT, alternatives=(one,))
    answer["dq"][0, 1] = answer["dq"][0, 1].astype(np.float16)

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, answer), both)
    assert not judgement.refuted
    assert judgement.contract == one
    assert judge_gradient_parts(gradient_parts_of(problem, dO, answer), CONTRACT).refuted


def test_a_refuted_answer_is_left_at_some_parts():
    problem = Recipe(batch=3, query_length=1100, key_length=3, head_dim=2, value_dim=2).problem()
    dO, _ = cotangents(problem)
    wrong = {name: x + 9.0 for name, x in found(problem, dO, None).items()}

    judgement = judge_gradient_parts(gradient_parts_of(problem, dO, wrong), CONTRACT)
    assert judgement.refuted
    assert (judgement.rows, judgement.of) == (1100, 3300)
