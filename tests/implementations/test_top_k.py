"""Top-k attention: which selections are right, and that the answer is that of attention under the selection.

Scores that a kernel computes are off by e_j at most. A set is what the k largest of some such scores are if and only if
s_j + e_j >= s_l - e_l for each key j in it and each allowed l outside: a number t between the least of the one side and
the largest of the other is a score that each j may reach and no l need exceed. Nothing else can be said of near ties.
"""

import math

import numpy as np
import pytest
from attn_spec.implementations.numpy_top_k import attention, selected, top_k_attention

from attn_spec.attention import definition
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.forward.score_bounds import score_error
from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import FP64
from attn_spec.judgement import measure
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

REGIMES = ("normal", "ties", "integers", "large", "cancellation")
#: Options beside k, by name.
BESIDE = {
    "plain": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "mask": {"mask": "random@BHQK"},
    "blocks": {"mask": "blocks@11QK", "causal": True},
}


def drawn(dtype="float32", regime="normal", **options):
    return Recipe(
        batch=2, query_heads=4, kv_heads=2, query_length=9, key_length=21, head_dim=8, value_dim=3,
        dtypes=dtype, regime=regime, seed=1, **options,
    ).problem()  # fmt: skip


def called(problem, top_k):
    """Return out, lse and selection of the kernel, as exact values."""
    subject = Subject(attention, problem.dtype)
    tensors = [x.astype(problem.dtype) for x in (problem.q, problem.k, problem.v)]
    given = {"causal": problem.causal, "causal_alignment": problem.causal_alignment, "mask": problem.mask}
    out, lse, kept = top_k_attention(*tensors, top_k=top_k, **given)
    return subject.contract, {"output": out.astype(float), "lse": lse.astype(float)}, kept


def is_right(problem, contract, kept, top_k):
    """Return whether a selection holds k allowed keys, or all, and is one that errors of scores explain."""
    x = intermediates(problem)
    e = score_error(x, contract) + score_error(x, FP64.at("float64"))
    number = np.minimum(problem.visible.sum(axis=-1), top_k)
    if (kept & ~problem.visible).any() or (kept.sum(axis=-1) != number).any():
        return False
    least = np.where(kept, x.s + e, np.inf).min(axis=-1)
    largest = np.where(problem.visible & ~kept, x.s - e, -np.inf).max(axis=-1)
    return bool((least >= largest).all())


# By hand.


def test_the_better_of_two_keys_has_all_the_weight():
    """Scores 0 and log 3: of k = 1 the second value remains, of k = 2 a quarter of 4 and three of 8."""
    q, k, v = (np.array(x).reshape(1, 1, -1, 1) for x in ([1.0], [0.0, math.log(3)], [4.0, 8.0]))

    for top_k, out, lse, kept in ((1, 8.0, math.log(3), [False, True]), (2, 7.0, math.log(4), [True, True])):
        found = top_k_attention(q, k, v, top_k=top_k, scale=1.0)
        assert found[0].item() == pytest.approx(out)
        assert found[1].item() == pytest.approx(lse)
        assert found[2].ravel().tolist() == kept


def test_of_equal_scores_the_first_keys_are_kept():
    s = np.array([[1.0, 2.0, 1.0, 1.0, 2.0]])
    every = np.ones(s.shape, dtype=bool)

    assert selected(s, every, 2).tolist() == [[False, True, False, False, True]]
    assert selected(s, every, 4).tolist() == [[True, True, True, False, True]]
    assert selected(s, every, 9).all()
    assert not selected(s, every, 0).any()


def test_hidden_keys_take_no_place():
    s, allowed = np.array([[5.0, 4.0, 3.0, 2.0]]), np.array([[False, True, False, True]])

    assert selected(s, allowed, 1).tolist() == [[False, True, False, False]]
    assert selected(s, allowed, 3).tolist() == [[False, True, False, True]]


def test_the_output_jumps_where_two_scores_change_places():
    """Scores 0 and +-2^-40 of values 1 and -1: no bound on the output can be small there."""
    q, v = np.ones((1, 1, 1, 1)), np.array([1.0, -1.0]).reshape(1, 1, 2, 1)
    outputs = [
        top_k_attention(q, np.array([0.0, x]).reshape(1, 1, 2, 1), v, top_k=1)[0].item()
        for x in (2.0**-40, -(2.0**-40))
    ]

    assert outputs == [-1.0, 1.0]


# Against the truth.


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("beside", BESIDE)
def test_the_answer_is_attention_under_a_right_selection(dtype, regime, beside):
    problem = drawn(dtype, regime, **BESIDE[beside])
    for top_k in (1, 3, 21):
        contract, answer, kept = called(problem, top_k)
        assert is_right(problem, contract, kept, top_k)
        judged = measure.judge(problem.replace(mask=kept, causal=False), contract, **answer)
        assert judged.exercised
        assert not judged.refuted


WRONG = {
    "the smallest scores": lambda s, allowed, k: selected(-s, allowed, k),
    "one key too many": lambda s, allowed, k: selected(s, allowed, k + 1),
    "one key too few": lambda s, allowed, k: selected(s, allowed, k - 1),
    "the largest sizes": lambda s, allowed, k: selected(abs(s), allowed, k),
    "hidden keys take places": lambda s, allowed, k: selected(s, np.ones_like(allowed), k) & allowed,
    "hidden keys are kept": lambda s, allowed, k: selected(s, np.ones_like(allowed), k),
    "the selection of the first head": lambda s, allowed, k: selected(s[:, :1], allowed, k),
    "the selection of the next query": lambda s, allowed, k: selected(np.roll(s, 1, axis=2), allowed, k),
    "every key down to the k-th score": lambda s, allowed, k: (
        allowed & (s >= np.sort(np.where(allowed, s, -np.inf), axis=-1)[..., -k, None])
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_selection_is_refused(name):
    """One that shares ties keeps more than k keys where there are some: another convention, and not this one."""
    found = set()
    for regime in ("normal", "ties"):
        problem = drawn(regime=regime, mask="random@11QK")
        s, contract = intermediates(problem).s, Subject(attention, "float32").contract
        found.add(is_right(problem, contract, WRONG[name](s, problem.visible, 3), 3))
        assert is_right(problem, contract, selected(s, problem.visible, 3), 3)

    assert False in found


@pytest.mark.parametrize(("gap", "right"), [(0.0, True), (2.0**-26, True), (2.0**-12, False)])
def test_of_near_ties_either_key_may_be_kept(gap, right):
    """Scores of about 1 in float32: half a unit in the last place is 2^-25."""
    problem = one_head([[1.0, gap]], [[1.0, 0.0], [1.0, 1.0]], [[0.0], [1.0]], dtypes="float32", scale=1.0)
    contract = Subject(attention, "float32").contract

    assert is_right(problem, contract, np.array([[[[False, True]]]]), 1)
    assert is_right(problem, contract, np.array([[[[True, False]]]]), 1) == right


def test_away_from_ties_the_gradient_is_that_under_the_selection():
    """A step that changes no selection changes the output as attention under it does: quotients of differences."""
    problem, step, dO = drawn("float64"), 2.0**-20, np.ones((2, 4, 9, 3))
    kept = called(problem, 3)[2]
    dq = gradients(problem.replace(mask=kept), dO, 120)["dq"].astype(float)

    def moved(sign):
        q = problem.q.copy()
        q[0, 0, 0, 0] += sign * step
        other = problem.replace(q=q)
        assert (called(other, 3)[2] == kept).all()
        return called(other, 3)[1]["output"].sum()

    assert (moved(1) - moved(-1)) / (2 * step) == pytest.approx(dq[0, 0, 0, 0], rel=1e-6)


def test_all_keys_are_softmax_attention():
    problem = drawn("float64", causal=True)
    out = called(problem, 21)[1]["output"]

    assert np.abs(out - definition.attention(problem, 120).astype(float)).max() < 1e-14
