"""Savings of tiles: operations and bytes counted from formulas, and the memory that a call needs beside its inputs.

Eager attention stores scores and weights, n^2 numbers each; tiles keep a part of them at a time (Rabe and Staats, arXiv
2112.05682; Dao et al., arXiv 2205.14135). For NumPy, ``tracemalloc`` measures the memory that a call allocates. PyTorch
allocates from the system, so that the growth of a fresh process's largest resident size is measured, which Linux
reports.
"""

from __future__ import annotations

import multiprocessing
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec.kernels.resolve import resolve

#: Bytes of a number.
FLOAT32 = 4
#: Queries and keys of a head, and its dimensions D = Dv.
LENGTHS, DIM = (1024, 2048, 4096, 8192, 16384), 64
#: Beyond this length eager attention is not run: its scores alone would take gigabytes.
LONGEST_EAGER = 4096
#: Queries, and keys, of a tile.
TILE = 256
#: Arguments beside q, k, v of each kernel measured, tiled or eager.
TILED: dict[str, dict[str, Any]] = {"numpy_tiled": {"q_tile": TILE, "kv_tile": TILE}, "torch_tiled": {}}
EAGER: dict[str, dict[str, Any]] = {"numpy_naive": {}, "torch_eager": {}}
#: Files in which Linux reports the memory of a process.
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cost:
    """Operations on numbers, and bytes moved to and from the memory that holds the inputs."""

    flops: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes that one call held at once, its result included."""

    kernel: str
    n: int
    bytes: int


def eager_cost(n: int, d: int) -> Cost:
    """Count the cost of S = scale Q K^T, P = softmax(S), O = P V, each stored.

    Two products take 2 n^2 d operations each, the scale one for each entry. The softmax takes four for each entry
    (maximum, difference, exponential, sum) and one for its division. S and P are written and read once.
    """
    return Cost(flops=4 * n * n * d + 6 * n * n, bytes=FLOAT32 * (4 * n * n + 4 * n * d))


def tiled_cost(n: int, d: int, tile: int = TILE) -> Cost:
    """Count the cost of attention in tiles, where each tile of queries reads all keys and values.

    Each entry costs as much as in eager attention, less the division. Each query and tile of keys costs a maximum, an
    exponential, and d + 1 products that rescale the sum and the output. At the end there are d divisions. S and P stay
    with the processor.
    """
    tiles = -(-n // tile)
    flops = 4 * n * n * d + 5 * n * n + n * tiles * (d + 3) + n * d
    return Cost(flops=flops, bytes=FLOAT32 * (2 * n * d + 2 * tiles * n * d + n))


def least_eager(n: int) -> int:
    """Return the bytes of scores and weights, which exist together while one is made of the other."""
    return 2 * FLOAT32 * n * n


def peaks(lengths: Sequence[int] = LENGTHS) -> Iterator[Peak]:
    """Yield the memory of each kernel, one head in float32; of eager ones up to :data:`LONGEST_EAGER`.

    Kernels of PyTorch are left out where the system does not report resident sizes.
    """
    fresh = multiprocessing.get_context("spawn")
    for kernel in (*TILED, *EAGER):
        own = [n for n in lengths if kernel in TILED or n <= LONGEST_EAGER]
        if resolve(kernel).framework == "numpy":
            yield from (Peak(kernel=kernel, n=n, bytes=traced(kernel, n)) for n in own)
        elif _CLEAR.exists():
            with ProcessPoolExecutor(1, mp_context=fresh) as process:
                yield from (Peak(kernel=kernel, n=n, bytes=process.submit(resident, kernel, n).result()) for n in own)


def traced(kernel: str, n: int) -> int:
    """Return the most bytes that a call of a NumPy kernel holds, beside q, k and v of n rows each."""
    inputs, function = _inputs(n), resolve(kernel).function
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        function(*inputs, **_arguments(kernel))
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


def resident(kernel: str, n: int) -> int:
    """Return the growth, in bytes, of this process's largest resident size in a call of a kernel of PyTorch."""
    import torch

    function = resolve(kernel).function
    function(*map(torch.from_numpy, _inputs(1)), **_arguments(kernel))  # a first call loads the operators
    inputs = [torch.from_numpy(x) for x in _inputs(n)]
    return growth(lambda: function(*inputs, **_arguments(kernel)))


def growth(call: Callable[[], object]) -> int:
    """Return the bytes by which the largest resident size of this process grows in a call; Linux only."""
    _CLEAR.write_text("5")
    before = _largest_resident()
    call()
    return _largest_resident() - before


def _largest_resident() -> int:
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    return 1024 * int(kilobytes)


def _inputs(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 1, n, DIM), dtype=np.float32) for _ in range(3)]


def _arguments(kernel: str) -> dict[str, Any]:
    return (TILED | EAGER)[kernel]
