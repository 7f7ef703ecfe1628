"""Long answers: blocks of rows are judged as the whole is, and samples say what they may have missed."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import EAGER, FUSED
from attn_spec.judgement.long import blocks
from attn_spec.judgement.long.blocks import ENOUGH, judge_parts, parts_of
from attn_spec.judgement.long.row_sample import RowSample, missed
from attn_spec.judgement.measure import judge
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"batch": 2, "query_heads": 4, "kv_heads": 2, "query_length": 37, "key_length": 50}
SHAPE |= {"head_dim": 8, "value_dim": 5}
OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "rows without keys": {"mask": "empty_middle_rows"},
    "masks by head": {"mask": "random@BHQK", "bias": "normal@1H1K"},
    "rotary": {"rotary": "half"},
    "dropout": {"dropout_keep": "half@BHQK", "dropout_p": 0.5},
    "linear": {"feature_map": "relu"},
}
CONTRACT = replace(EAGER, row_sum_of="either").at("float32")


def answered(problem):
    """Return answers of the float64 formulas, rounded as no kernel would round them better."""
    from attn_spec.bounds.intermediates import intermediates

    x = intermediates(problem)
    rounded = {"output": np.where(x.keys == 0, 0.0, x.O), "lse": x.L[..., 0]}
    return {name: values.astype(np.float32).astype(np.float64) for name, values in rounded.items()}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("memory", [2**28, 2**17, 1])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_blocks_are_judged_as_the_whole_is(options, memory):
    problem = Recipe(**SHAPE, **options).problem()
    right = answered(problem)
    wrong = {name: values.copy() for name, values in right.items()}
    wrong["output"][1, 2, 20:, 3] += 0.5
    wrong["lse"][0, 1, 5] -= 0.5

    judgement = judge_parts(parts_of(problem, **right), CONTRACT, memory=memory)
    whole = judge(problem, CONTRACT, **right)
    assert not judgement.refuted
    assert judgement.exercised
    assert (judgement.rows, judgement.of) == (8 * 37, 8 * 37)
    assert 0 < judgement.ratio <= whole.ratio * (1 + 1e-6)
    judgement, whole = (
        judge_parts(parts_of(problem, **wrong), CONTRACT, memory=memory),
        judge(problem, CONTRACT, **wrong),
    )
    for m in whole.measurements:
        tally = judgement.tallies[m.name]
        assert tally.outside == m.outside.sum() > 0
        assert tally.elements == m.outside.size
        assert tally.worst.index == m.worst
        assert float.fromhex(tally.worst.allowed) == pytest.approx(m.allowed[m.worst], rel=1e-6)
    assert judgement.worst in (tally.worst for tally in judgement.tallies.values())


@pytest.mark.parametrize("most", [2**15, 4 * 76, 16 * 76], ids=["one part", "kv heads", "entries"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_heads_of_few_scores_are_judged_together_as_the_whole_is(options, most, monkeypatch):
    """A kv head has 4 rows and 5 keys of 8 columns; two entries at a time leave one of five."""
    monkeypatch.setattr(blocks, "TOGETHER", most)
    shape = {"batch": 5, "query_heads": 12, "kv_heads": 6, "query_length": 2, "key_length": 5, "head_dim": 8}
    problem = Recipe(**shape, value_dim=4, **options).problem()
    right = answered(problem)
    wrong = {name: values.copy() for name, values in right.items()}
    wrong["output"][4, 11, 1, 3] += 0.5
    wrong["output"][1, 2] += 0.25
    wrong["lse"][2, 7, 0] -= 0.5
    parts = parts_of(problem, together=True, **wrong)

    judgement, whole = judge_parts(parts, CONTRACT, sample=RowSample(2)), judge(problem, CONTRACT, **wrong)

    assert len(parts) == {2**15: 1, 4 * 76: 10, 16 * 76: 3}[most]
    assert not judge_parts(parts_of(problem, together=True, **right), CONTRACT).refuted
    assert judgement.rows == judgement.of == judgement.drawn == 5 * 12 * 2
    for m in whole.measurements:
        tally = judgement.tallies[m.name]
        assert tally.outside == m.outside.sum()
        assert (tally.elements, tally.unmeasured) == (m.outside.size, (m.asked & ~m.measured).sum())
        if tally.outside:
            assert tally.worst.index == m.worst
            assert tally.ratio == pytest.approx(m.ratio, rel=1e-6)
    assert judgement.worst.quantity == "output"


def test_long_heads_sequences_of_some_lengths_and_layers_are_judged_alone():
    long = Recipe(batch=2, query_length=200, key_length=200).problem()
    short = Recipe(batch=8, query_length=2, key_length=3, seqused_q="last_shorter@B111").problem()

    names = ("query_projection", "key_projection", "value_projection", "output_projection")
    layer = Recipe(batch=3, query_heads=2, **dict.fromkeys(names, "normal")).problem()

    assert [len(parts_of(one, together=True)) for one in (long, short, layer)] == [2, 8, 3]


def test_a_layer_is_judged_by_batch_entry():
    names = ("query_projection", "key_projection", "value_projection", "output_projection")
    shape = {"batch": 2, "query_heads": 2, "query_length": 9, "key_length": 11, "head_dim": 4, "value_dim": 4}
    problem = Recipe(**shape, **dict.fromkeys(names, "normal")).problem()
    answer = Subject(resolve("numpy_layer"), "float32")(problem)
    answer["output"][1, 0, 7] += 1.0

    judgement = judge_parts(parts_of(problem, output=answer["output"]), CONTRACT)

    assert judgement.worst.index[:3] == (1, 0, 7)
    assert judgement.tallies["output"].rows_outside == 1


def test_what_is_cleared_at_a_glance_is_not_decided_on_by_the_theorems():
    problem = Recipe(query_length=300, key_length=400, head_dim=16).problem()
    answer = {"output": answered(problem)["output"]}

    judgement = judge_parts(parts_of(problem, **answer), FUSED.at("float32"))
    assert judgement.decided < 10
    answer["output"][0, 0, 17] += 1e-3
    assert judge_parts(parts_of(problem, **answer), FUSED.at("float32")).worst.index[:3] == (0, 0, 17)


def test_an_answer_that_is_all_wrong_is_left_at_some_rows():
    problem = Recipe(query_length=3 * ENOUGH, key_length=8, head_dim=2, value_dim=2).problem()

    judgement = judge_parts(parts_of(problem, output=np.full(problem.output_shape, 9.0)), CONTRACT, memory=2**20)

    assert judgement.refuted
    assert ENOUGH <= judgement.decided < 3 * ENOUGH
    assert judgement.tallies["output"].elements < 6 * ENOUGH


def test_a_sample_has_the_rows_where_defects_like_to_be():
    problem = Recipe(query_length=1000, key_length=300, head_dim=4, mask="empty_middle_rows@11QK").problem()
    q = problem.q.copy()
    q[0, 0, 333] *= 128
    chosen = RowSample(128, seed=3).of(problem.replace(q=q), 0, lse=np.where(np.arange(1000) == 777, 9.0, 0.0))

    assert len(chosen.index) == 128
    assert 64 <= chosen.drawn < 128
    assert {0, 1, 998, 999, 333, 777} <= set(chosen.index)
    assert problem.empty_rows[0, 0, chosen.index].any()
    assert {row % 64 for row in chosen.index} >= {0, 63}
    assert (
        chosen.index
        == RowSample(128, seed=3).of(problem.replace(q=q), 0, lse=np.where(np.arange(1000) == 777, 9.0, 0.0)).index
    ).all()
    assert (chosen.index != RowSample(128, seed=4).of(problem.replace(q=q), 0).index).any()
    assert RowSample(1000).of(problem, 0).is_whole


def test_a_sample_says_what_it_may_have_missed():
    problem = Recipe(query_heads=2, query_length=400, key_length=20, head_dim=4).problem()
    judgement = judge_parts(parts_of(problem, **answered(problem)), FUSED.at("float32"), sample=RowSample(64))

    drawn = judgement.drawn
    assert (judgement.rows, judgement.of) == (128, 800)
    assert 64 <= drawn < 128
    assert judgement.missed(0.1) == missed(0.1, drawn) == 0.9**drawn
    assert str(judgement) == (
        f"128 of 800 rows, {drawn} of them at random: "
        "a defect in 1 % of them is missed with a probability of 0.6 at most"
    )
    whole = judge_parts(parts_of(problem, **answered(problem)), FUSED.at("float32"))
    assert whole.missed(1e-9) == 0
    assert repr(whole).startswith("RowJudgement(output, lse: up to 0.")


def test_how_often_a_sample_misses_a_defect_is_as_often_as_it_says():
    """A defect of 3 % of the rows of one head of two, none of which is in a stratum."""
    problem = Recipe(query_length=400, key_length=4, head_dim=2).problem()
    hit = np.zeros(400, dtype=bool)
    hit[[r for r in range(200, 260) if r % 16 not in (0, 15)][:12]] = True
    runs = 2000
    times = sum(not hit[RowSample(32, seed=seed).of(problem, 0).index].any() for seed in range(runs))

    assert times / runs <= missed(0.03, 16) + 4 * (0.25 / runs) ** 0.5
    assert times > 0


def test_sequences_that_are_judged_whole_hide_no_defect_of_a_long_one():
    """A defect hits 31 rows of a sequence of 1,000, of which 16 are drawn. 15 sequences of 16 rows are judged whole."""
    lengths = np.array([1000, *[16] * 15])[:, None, None, None]
    problem = Recipe(batch=16, query_length=1000, key_length=4, head_dim=2).problem().replace(seqused_q=lengths)
    judgement = judge_parts(parts_of(problem, **answered(problem)), FUSED.at("float32"), sample=RowSample(32))
    hit = np.arange(100, 131)
    runs, first = 500, problem.sequence(0)
    times = sum(not np.isin(RowSample(32, seed=seed).of(first, 0).index, hit).any() for seed in range(runs))

    assert (judgement.of, judgement.drawn, judgement.telling) == (1240, 256, 19)
    assert times / runs <= judgement.missed(len(hit) / 1240) + 4 * (0.25 / runs) ** 0.5
    assert times / runs > missed(len(hit) / 1240, judgement.drawn) + 0.3


@pytest.mark.parametrize("rows", [0, -1, 2.5, True, "all"])
def test_a_sample_of_no_rows_is_refused(rows):
    with pytest.raises(ValueError, match=f"rows must be an integer of 1 or more, not {rows!r}"):
        RowSample(rows)


def test_a_share_is_no_percentage():
    with pytest.raises(ValueError, match="a share of rows must be between 0 and 1, not 5"):
        missed(5, 10)


def test_an_answer_of_gradients_is_refused():
    problem = Recipe(query_length=2, key_length=3).problem()
    with pytest.raises(ValueError, match="an answer may have output and lse, not dq"):
        parts_of(problem, dq=np.zeros(problem.q.shape))
