"""Masks against matrices written by hand, and the laws of their algebra."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_spec.problem import masks, patterns

#: Four queries, six keys; # is attended to.
BY_HAND = {
    "everything": (masks.everything(), "###### ###### ###### ######"),
    "causal top left": (masks.causal(), "#..... ##.... ###... ####.."),
    "causal bottom right": (masks.causal("bottom_right"), "###... ####.. #####. ######"),
    "window (1, 0) top left": (masks.window(1, 0), "#..... ##.... .##... ..##.."),
    "window (1, 0) bottom right": (masks.window(1, 0, "bottom_right"), ".##... ..##.. ...##. ....##"),
    "window (0, 2) top left": (masks.window(0, 2), "###... .###.. ..###. ...###"),
    "window (0, 2) bottom right": (masks.window(0, 2, "bottom_right"), "..###. ...### ....## .....#"),
    "window (None, 1)": (masks.window(None, 1), "##.... ###... ####.. #####."),
    "window (2, None)": (masks.window(2, None), "###### ###### ###### .#####"),
    "window (0, 0)": (masks.window(0, 0), "#..... .#.... ..#... ...#.."),
    "window unbounded": (masks.window(None, None), "###### ###### ###### ######"),
    "window (1, 0), a sink": (masks.window(1, 0, sinks=1), "#..... ##.... ###... #.##.."),
    "window (0, 0), 2 sinks": (masks.window(0, 0, "bottom_right", 2), "###... ##.#.. ##..#. ##...#"),
    "window (0, 1), 3 sinks": (masks.window(0, 1, sinks=3), "##.... ###... ####.. #####."),
    "chunks of 2": (masks.chunked(2), "##.... ##.... ..##.. ..##.."),
    "chunks of 4 bottom right": (masks.chunked(4, "bottom_right"), "####.. ####.. ....## ....##"),
    "chunks of 1": (masks.chunked(1, "bottom_right"), "..#... ...#.. ....#. .....#"),
    "chunks of 9": (masks.chunked(9), "###### ###### ###### ######"),
    "padding 2": (masks.padding(2), "##.... ##.... ##.... ##...."),
    "padding 0": (masks.padding(0), "...... ...... ...... ......"),
    "padding 9": (masks.padding(9), "###### ###### ###### ######"),
    "strided 2": (masks.strided(2), "#.#.#. .#.#.# #.#.#. .#.#.#"),
    "strided 3, near 2": (masks.strided(3, 2), "##.#.. ###.#. .###.# #.###."),
    "strided 3 bottom right": (masks.strided(3, 1, "bottom_right"), "..#..# #..#.. .#..#. ..#..#"),
    "blocks of 2": (masks.blocks(2, [[1, 0, 1], [0, 1, 0]]), "##..## ##..## ..##.. ..##.."),
    "blocks of 4, cut at the edge": (masks.blocks(4, [[0, 1]]), "....## ....## ....## ....##"),
    "document": (masks.document([0, 0, 1, 2], [0, 1, 1, 1, 0, 3]), "#...#. #...#. .###.. ......"),
    "documents with padding": (masks.document([0, -1, 1, -1], [0, 1, -1, 1, 0, -1]), "#...#. ...... .#.#.. ......"),
    "causal in two documents": (
        masks.causal() & masks.document([0, 0, 1, 1], [0, 0, 1, 1, 1, 1]),
        "#..... ##.... ..#... ..##..",
    ),
    "causal or the first key": (masks.causal("top_left") | masks.padding(2), "##.... ##.... ###... ####.."),
    "the future": (~masks.causal(), ".##### ..#### ...### ....##"),
}


def matrix(drawing):
    return np.array([[cell == "#" for cell in row] for row in drawing.split()])


@pytest.mark.parametrize("case", BY_HAND)
def test_dense_is_the_matrix_drawn_by_hand(case):
    mask, drawing = BY_HAND[case]

    np.testing.assert_array_equal(mask.dense(4, 6), matrix(drawing), strict=True)


def test_more_queries_than_keys_leave_empty_rows_at_the_start_when_bottom_right():
    np.testing.assert_array_equal(masks.causal("bottom_right").dense(4, 2), matrix(".. .. #. ##"))
    np.testing.assert_array_equal(masks.causal("top_left").dense(4, 2), matrix("#. ## ## ##"))


#: Parents, the first key of the tree, and the keys that each draft attends to, of six.
TREES = {
    "chain": ([-1, 0, 1, 2], 2, "###... ####.. #####. ######"),
    "star": ([-1, -1, -1], 2, "###... ##.#.. ##..#."),
    "a branch": ([-1, 0, 0, 2], 1, "##.... ###... ##.#.. ##.##."),
    "two branches": ([-1, 0, -1, 2], 2, "###... ####.. ##..#. ##..##"),
    "no prefix": ([-1, 0], 0, "#..... ##...."),
    "the last drafts are keys": ([-1, 0, 1, 1, 2], -2, "...... ...... #..... .#.... #.#..."),
    "behind the keys": ([-1, 0], 8, "###### ######"),
    "before the keys": ([-1, 0], -5, "...... ......"),
    "no draft": ([], 3, ""),
}


@pytest.mark.parametrize("name", TREES)
def test_a_draft_attends_to_the_prefix_and_its_ancestors(name):
    parents, first, expected = TREES[name]
    found = masks.drafts(np.array(parents, dtype=int), first, 6)

    np.testing.assert_array_equal(found, matrix(expected) if expected else np.zeros((0, 6), bool))


@pytest.mark.parametrize("name", patterns.TREES)
@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_a_parent_comes_before_its_child(name, n):
    parents = patterns.TREES[name](np.random.default_rng(0), n)
    of_tree = masks.ancestors(parents)

    assert parents.shape == (n,)
    assert ((parents >= -1) & (parents < np.arange(n))).all()
    for node in range(n):
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        assert np.flatnonzero(of_tree[node]).tolist() == sorted(path)
    chain = masks.drafts(patterns.TREES["chain"](np.random.default_rng(0), n), 4, n + 4)
    np.testing.assert_array_equal(chain, masks.causal("bottom_right").dense(n, n + 4))


def test_places_before_the_first_key_are_in_chunks_of_their_own():
    """Four queries are aligned with the keys -2, -1, 0 and 1; truncated quotients would put all into one chunk."""
    np.testing.assert_array_equal(masks.chunked(4, "bottom_right").dense(4, 2), matrix(".. .. ## ##"))
    np.testing.assert_array_equal(masks.chunked(1, "bottom_right").dense(4, 2), matrix(".. .. #. .#"))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_zero_lengths(shape):
    assert masks.causal("bottom_right").dense(*shape).shape == shape
    assert (masks.everything() & ~masks.padding(1)).dense(*shape).shape == shape


MASKS = st.recursive(
    st.sampled_from([masks.everything(), masks.padding(2), masks.causal(), masks.causal("bottom_right")])
    | st.builds(masks.window, st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))
    | st.builds(masks.window, st.just(1), st.just(0), st.sampled_from(masks.ALIGNMENTS), st.integers(0, 3))
    | st.builds(masks.chunked, st.integers(1, 4), st.sampled_from(masks.ALIGNMENTS)),
    lambda inner: (
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        | inner.map(lambda mask: ~mask)
    ),
    max_leaves=4,
)
LENGTHS = st.tuples(st.integers(0, 5), st.integers(0, 5))


def equal(a, b, lengths):
    return np.array_equal(a.dense(*lengths), b.dense(*lengths))


@given(a=MASKS, b=MASKS, c=MASKS, lengths=LENGTHS)
def test_masks_are_a_boolean_algebra(a, b, c, lengths):
    assert equal(a & b, b & a, lengths)
    assert equal(a | b, b | a, lengths)
    assert equal((a & b) & c, a & (b & c), lengths)
    assert equal(a & (b | c), (a & b) | (a & c), lengths)
    assert equal(~(a & b), ~a | ~b, lengths)
    assert equal(~~a, a, lengths)
    assert equal(a & masks.everything(), a, lengths)
    assert equal(a | ~a, masks.everything(), lengths)


@given(lengths=LENGTHS, alignment=st.sampled_from(masks.ALIGNMENTS))
def test_causal_is_the_window_without_a_right_side(lengths, alignment):
    assert equal(masks.causal(alignment), masks.window(None, 0, alignment), lengths)


@given(mask=MASKS, lengths=LENGTHS)
def test_the_name_is_an_expression_for_the_mask(mask, lengths):
    assert equal(eval(repr(mask), vars(masks).copy()), mask, lengths)  # noqa: S307 - the repr under test


def test_a_dense_mask_is_the_callers_own():
    mask = masks.everything()
    mask.dense(2, 2)[:] = False

    assert mask.dense(2, 2).all()


def test_the_diagonal_offset():
    assert masks.diagonal_offset("top_left", 4, 6) == 0
    assert masks.diagonal_offset("bottom_right", 4, 6) == 2
    assert masks.diagonal_offset("bottom_right", 6, 4) == -2
