"""Kernels that skip hidden tiles: which tiles those are, that the answer is that of dense attention, what it costs."""

import numpy as np
import pytest
import torch
from attn_spec.implementations import numpy_block_sparse, numpy_naive, torch_flex
from attn_spec.implementations.numpy_block_sparse import FULL, HIDDEN, PARTIAL, TILE, block_map, block_sparse_attention

from attn_spec.problem import masks
from tests.implementations.kernel_inputs import inputs

#: Masks of n queries and keys, for tiles of 16.
SPARSE = {
    "window": lambda n: masks.window(20, 0),
    "strided": lambda n: masks.strided(17, 3),
    "strided by two tiles": lambda n: masks.strided(32, 16) & masks.causal(),
    "blocks": lambda n: masks.blocks(16, np.random.default_rng(0).random((-(-n // 16), -(-n // 16))) < 0.4),
    "blocks of another size": lambda n: masks.blocks(
        12, np.random.default_rng(1).random((-(-n // 12), -(-n // 12))) < 0.4
    ),
}


def dense(mask, n):
    return mask.dense(n, n)[None, None]


def visited(n, mask):
    q, k, v = inputs(0, B=1, Hq=1, Hkv=1, Sq=n, Sk=n, D=2, Dv=2)
    return block_sparse_attention(q, k, v, mask=dense(mask, n))[2]


def test_a_block_map_by_hand():
    """Four queries and five keys in tiles of two: the last column of tiles is one key wide.

    ##.#.
    ##...
    ....#
    .#..#
    """
    allowed = np.array([[c == "#" for c in row] for row in ("##.#.", "##...", "....#", ".#..#")])

    assert block_map(allowed, 2).tolist() == [[FULL, PARTIAL, HIDDEN], [PARTIAL, HIDDEN, FULL]]
    assert block_map(allowed[None, :, :0], 2).shape == (1, 2, 0)


def test_two_tiles_of_one_key_by_hand():
    """Scores log 3 and 0 in tiles of one: 3/4 and 1/4 of the values 4 and 8; with the second hidden, one visit."""
    q, k, v = (np.array(x).reshape(1, 1, -1, 1) for x in ([1.0], [np.log(3), 0.0], [4.0, 8.0]))
    out, lse, visits = block_sparse_attention(q, k, v, tile=1, scale=1.0)
    assert (out.item(), lse.item(), visits) == (pytest.approx(5.0), pytest.approx(np.log(4)), 2)

    v[0, 0, 1] = np.nan
    out, lse, visits = block_sparse_attention(q, k, v, tile=1, scale=1.0, mask=np.array([[[[True, False]]]]))
    assert (out.item(), lse.item(), visits) == (4.0, pytest.approx(np.log(3)), 1)


@pytest.mark.parametrize("n", [32, 45])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_is_dense_under_the_same_mask(name, n):
    q, k, v = inputs(Sq=n, Sk=n)
    mask = dense(SPARSE[name](n), n)
    expected = numpy_naive.attention(q, k, v, mask=mask)
    by_blocks = numpy_block_sparse.attention(q, k, v, mask=mask)
    by_function = torch_flex.attention(*map(torch.from_numpy, (q, k, v)), mask=torch.from_numpy(mask))

    for out, lse in (by_blocks, [x.numpy() for x in by_function]):
        np.testing.assert_allclose(out, expected[0], rtol=0, atol=1e-14 * 40)
        np.testing.assert_allclose(lse, expected[1], rtol=1e-14, atol=1e-14)


def test_a_mask_alone_hides_nothing_else_from_the_bottom_right_corner():
    """Nine queries and two keys: the first query is aligned with seven keys before the first."""
    q, k, v = (torch.from_numpy(x) for x in inputs(Sq=9, Sk=2))
    seen = {"mask": torch.ones(1, 1, 9, 2, dtype=torch.bool), "causal_alignment": "bottom_right"}

    assert torch.equal(torch_flex.attention(q, k, v, **seen)[0], torch_flex.attention(q, k, v)[0])


@pytest.mark.parametrize("name", SPARSE)
def test_what_is_visited_is_what_some_query_sees(name):
    n = 3 * TILE
    seen = SPARSE[name](n).dense(n, n).reshape(3, TILE, 3, TILE).any(axis=(1, 3))

    assert visited(n, SPARSE[name](n)) == seen.sum()


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_the_work_of_a_window_grows_as_n_times_s(tiles):
    """A window of s = 16 m + 1 keys up to the query: of N tiles of queries each sees m + 1, fewer the first m.

    That is N (m + 1) - m (m + 1) / 2 visits, of 16^2 (D + Dv) multiplications each, where dense attention has N^2.
    """
    mask = masks.window(TILE * tiles, 0)
    for N in (8, 16, 32):
        assert visited(N * TILE, mask) == N * (tiles + 1) - tiles * (tiles + 1) // 2
    assert visited(8 * TILE, masks.everything()) == 64
    assert visited(8 * TILE, masks.causal()) == 36


def test_the_work_of_blocks_and_strides_is_that_of_what_they_see():
    """N blocks on the diagonal cost N. A stride of N tiles and the tiles at the diagonal cost N and two beside each.

    A stride of less than a tile leaves no tile hidden, and saves nothing.
    """
    N = 6
    n = N * TILE

    assert visited(n, masks.blocks(TILE, np.eye(N))) == N
    assert visited(n, masks.strided(n, 2)) == N + 2 * (N - 1)
    assert visited(n, masks.strided(TILE)) == N * N


def test_gradients_visit_the_same_tiles():
    """Keys and values of hidden tiles may be NaN, and get no gradient."""
    n = 3 * TILE
    q, k, v = inputs(B=1, Hq=2, Hkv=1, Sq=n, Sk=n)
    mask = dense(masks.blocks(TILE, [[1, 0, 0], [1, 0, 1], [0, 0, 1]]), n)
    k[:, :, TILE : 2 * TILE], v[:, :, TILE : 2 * TILE] = np.nan, np.nan
    out, lse = numpy_block_sparse.attention(q, k, v, mask=mask)
    dq, dk, dv = numpy_block_sparse.gradients(np.ones_like(out), q, k, v, out, lse, mask=mask)

    assert np.isfinite(out).all()
    assert all(np.isfinite(x).all() for x in (dq, dk, dv))
    assert not dk[:, :, TILE : 2 * TILE].any()
    assert not dv[:, :, TILE : 2 * TILE].any()
    assert dv.any(axis=(1, 3)).sum() == 2 * TILE
