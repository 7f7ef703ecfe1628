"""Masks as models use them: decoding step by step, prefixes, padding, strides; numbers that a reader can verify."""

import math

import numpy as np
import pytest
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.problem import masks
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

BITS = 120


def output(problem):
    return definition.attention(problem, BITS)


def agree(one, other):
    with mp.workprec(BITS):
        return abs(one - other).max() < 2.0 ** (10 - BITS)


# Decoding.


def test_two_steps_by_hand():
    """Keys log 3 and 0, values 4 and 8: the first query sees one key, the second both, at 3/4 and 1/4."""
    k, v = [[math.log(3)], [0.0]], [[4.0], [8.0]]
    whole = output(one_head([[1.0], [1.0]], k, v, scale=1.0, causal=True))
    steps = [output(one_head([[1.0]], k[:n], v[:n], scale=1.0)).item() for n in (1, 2)]

    assert [float(x) for x in whole.ravel()] == [float(x) for x in steps]
    assert [float(x) for x in steps] == pytest.approx([4.0, 5.0], rel=1e-15)


@pytest.mark.parametrize("queries", [4, 7])
@pytest.mark.parametrize("cut", [1, 3])
def test_teacher_forcing_is_decoding_and_chunks_are_the_whole(queries, cut):
    """From the bottom-right corner, queries i .. j of n beside the keys up to j are rows i .. j of the whole."""
    n = 7
    problem = Recipe(
        query_length=queries, key_length=n, head_dim=3, value_dim=2, dtypes="float64",
        causal=True, causal_alignment="bottom_right",
    ).problem()  # fmt: skip
    whole, first = output(problem), n - queries

    for i in range(queries):
        step = problem.take("Q", [i]).take("K", range(first + i + 1))
        assert agree(output(step), whole[:, :, i : i + 1])
        assert agree(output(step.replace(causal=False)), whole[:, :, i : i + 1])
    for rows in (range(cut), range(cut, queries)):
        chunk = problem.take("Q", rows).take("K", range(first + rows[-1] + 1))
        assert agree(output(chunk), whole[:, :, rows[0] : rows[-1] + 1])
    # From the top-left corner the second chunk would see the first keys alone.
    late = problem.take("Q", range(cut, queries)).replace(causal_alignment="top_left")
    assert not agree(output(late), whole[:, :, cut:])


def test_a_prefix_is_the_same_before_every_continuation():
    """Other keys behind the third leave the first three queries alone, and reach every later one."""
    problem = Recipe(query_length=6, key_length=6, head_dim=3, dtypes="float64", causal=True).problem()
    behind = (np.arange(6) >= 3)[:, None]
    other = problem.replace(k=np.where(behind, 1.5, problem.k), v=np.where(behind, -0.5, problem.v))
    one, two = output(problem)[0, 0], output(other)[0, 0]

    assert agree(one[:3], two[:3])
    assert abs(one[3:] - two[3:]).min() > 1e-3


# Padding.


def leaked(scores, padded):
    """Return the weight of unmasked keys of zeros: each scores 0, whatever the query."""
    return padded / (padded + math.fsum(map(math.exp, scores)))


def test_one_padded_key_by_hand():
    """A score of log 3 beside that of one padded key: a quarter of the weight leaks, of the value 8 remains 6."""
    k, v = [[math.log(3)], [0.0]], [[8.0], [0.0]]
    shown = one_head([[1.0]], k, v, scale=1.0)
    hidden = shown.replace(mask=np.array([[[[True, False]]]]))

    assert leaked([math.log(3)], 1) == pytest.approx(0.25)
    assert float(output(shown).item()) == pytest.approx(6.0, rel=1e-15)
    assert float(output(hidden).item()) == 8.0


@pytest.mark.parametrize(("real", "padded", "share"), [(1, 1, 1 / 2), (1, 3, 3 / 4), (4, 12, 3 / 4), (60, 4, 1 / 16)])
def test_of_equal_scores_padding_takes_its_share_of_the_keys(real, padded, share):
    """q = 0: every key scores 0, as one of padding does; the output shrinks by the share, and keeps its direction."""
    problem = one_head([[0.0]], np.zeros((real + padded, 1)), [[1.0, -2.0]] * real + [[0.0, 0.0]] * padded)

    assert leaked([0.0] * real, padded) == pytest.approx(share)
    found = output(problem)[0, 0, 0].astype(float)
    assert found == pytest.approx([1 - share, -2 * (1 - share)], rel=1e-15)


@pytest.mark.parametrize("padded", [1, 8, 64])
def test_what_leaks_is_the_share_of_the_padding_in_the_row_sum(padded):
    """Without the mask every output is 1 - leak times what it is with it; below 0, scores let more leak than above."""
    rng, n = np.random.default_rng(0), 8
    q, k, v = (rng.standard_normal((n, 3)) for _ in range(3))
    zeros = np.zeros((padded, 3))
    shown = one_head(q, np.vstack([k, zeros]), np.vstack([v, zeros]))
    hidden = output(shown.replace(mask=masks.padding(n).dense(n, n + padded)[None, None]))[0, 0]
    leaks = [leaked(row @ k.T / math.sqrt(3), padded) for row in q]

    assert np.allclose(output(shown)[0, 0].astype(float), hidden.astype(float) * (1 - np.array(leaks))[:, None], 1e-14)
    assert leaked([-2.0] * n, padded) > padded / (n + padded) > leaked([2.0] * n, padded)


# Strides and blocks.


@pytest.mark.parametrize("stride", [2, 3])
def test_strided_attention_is_one_dense_attention_for_each_remainder(stride):
    """Queries and keys that leave one remainder see each other and nothing else."""
    problem = Recipe(query_length=7, key_length=7, head_dim=3, value_dim=2, dtypes="float64").problem()
    whole = output(problem.replace(mask=masks.strided(stride).dense(7, 7)[None, None]))

    for remainder in range(stride):
        chosen = range(remainder, 7, stride)
        assert agree(output(problem.take("Q", chosen).take("K", chosen)), whole[:, :, remainder::stride])


def test_blocks_on_the_diagonal_are_dense_attentions_side_by_side():
    problem = Recipe(query_length=7, key_length=7, head_dim=3, value_dim=2, dtypes="float64").problem()
    whole = output(problem.replace(mask=masks.blocks(3, np.eye(3)).dense(7, 7)[None, None]))

    for rows in (range(3), range(3, 6), range(6, 7)):
        assert agree(output(problem.take("Q", rows).take("K", rows)), whole[:, :, rows[0] : rows[-1] + 1])


def test_a_sliding_window_is_the_mask_of_its_band():
    problem = Recipe(query_length=7, key_length=7, head_dim=3, dtypes="float64").problem()
    band = [[0 <= i - j <= 2 for j in range(7)] for i in range(7)]

    windowed = output(problem.replace(window=(2, 0)))
    assert (windowed == output(problem.replace(mask=np.array(band)[None, None]))).all()


# Long contexts.


def test_each_chunk_of_keys_is_an_attention_of_its_own():
    """Chunks start at key 0, so that the first of three queries at the end of seven keys is alone in its chunk."""
    problem = Recipe(
        query_length=3, key_length=7, head_dim=3, value_dim=2, dtypes="float64", causal_alignment="bottom_right"
    ).problem()
    whole = output(problem.replace(attention_chunk=5))

    for rows, keys in ((range(1), range(5)), (range(1, 3), range(5, 7))):
        assert agree(output(problem.take("Q", rows).take("K", keys)), whole[:, :, rows[0] : rows[-1] + 1])


def test_a_window_with_sinks_is_attention_over_both():
    """The last query sees two sinks and the last three of eight keys: a cache whose other keys were evicted."""
    problem = Recipe(
        query_length=1, key_length=8, head_dim=3, dtypes="float64", causal=True, causal_alignment="bottom_right"
    ).problem()
    streamed = output(problem.replace(window=(2, None), window_sinks=2))

    assert agree(streamed, output(problem.take("K", [0, 1, 5, 6, 7])))


def test_sinks_pass_the_left_edge_of_a_window_and_nothing_else():
    problem = Recipe(query_length=4, key_length=4, window=(0, None), window_sinks=2).problem()

    def seen(**options):
        return ["".join(".#"[key] for key in row) for row in problem.replace(**options).visible[0, 0].astype(int)]

    assert seen() == ["####", "####", "####", "##.#"]
    assert seen(causal=True) == ["#...", "##..", "###.", "##.#"]
    assert seen(window=(0, 0)) == ["#...", "##..", "###.", "##.#"]
    assert seen(attention_chunk=2) == ["##..", "##..", "..##", "...#"]
    assert seen(window_sinks=0) == seen(window_sinks=None) == ["####", ".###", "..##", "...#"]
