"""Savings of tiles: costs by hand, and the memory that NumPy asks for."""

import pytest
from attn_spec.reports.statistics import memory


@pytest.mark.parametrize("n", [1, 7, 256])
def test_costs_by_hand(n):
    """n keys of one dimension in one tile: the tiles differ by the division, rescaling and bytes of S and P."""
    eager, tiled = memory.eager_cost(n, 1), memory.tiled_cost(n, 1)

    assert eager.flops == 2 * n * n + 6 * n * n + 2 * n * n
    assert tiled.flops == 2 * n * n + 5 * n * n + 2 * n * n + 4 * n + n
    assert eager.bytes == 4 * (3 * n + n + 4 * n * n)
    assert tiled.bytes == 4 * (n + 2 * n + n + n)


def test_memory_of_tiles_grows_with_n_and_that_of_eager_attention_with_its_square():
    """Allocated memory is counted, which is the same on any machine."""
    eager = [memory.traced("numpy_naive", n) for n in (512, 1024)]
    tiled = [memory.traced("numpy_tiled", n) for n in (512, 1024)]

    assert eager[0] > memory.least_eager(512)
    assert eager[1] > 3.5 * eager[0]
    assert tiled[1] < 2 * tiled[0]
    assert tiled[1] < memory.least_eager(1024) / 2


@pytest.mark.exhaustive
def test_tiles_hold_less_than_a_twentieth_of_what_eager_attention_does_at_16384_keys():
    assert memory.traced("numpy_tiled", 16384) < memory.least_eager(16384) / 20
