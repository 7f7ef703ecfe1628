"""The lists that other suites' attention tests are parametrized with, read in the files named in ``rows``.

Left out, since no problem expresses them: dropout, packed and paged sequences, quantized inputs, learned sinks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .recipes import Grid, drawn

_CAUSAL = ({}, {"causal": True})
_LAST = {"causal_alignment": "bottom_right"}


def _equal(*dims: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of equal numbers."""
    return tuple((dim, dim) for dim in dims)


def _pairs(first: Sequence[int], second: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(itertools.product(first, second))


def _one(
    Sq: int, Sk: int, D: int, Dv: int | None = None, *, heads: tuple[int, int, int] = (1, 2, 2), **fixed: Any
) -> Grid:
    """Return the grid of a test of one shape."""
    return Grid(lengths=((Sq, Sk),), dims=((D, Dv or D),), heads=(heads,), fixed=fixed)


_FLASH_HEADS = ((1, 2, 2), (1, 2, 1), (1, 6, 2))
_UNEVEN = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512))
_ABOUT_1024 = ((1024, 1024), (1023, 1024), (1024, 1023))
_DECODE = ((1, 239), (3, 799), (127, 512), (127, 513), *_UNEVEN, (1023, 1024))
_FLASH_DIMS = _equal(32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
FLASH_ATTENTION_2 = drawn(
    Grid(
        lengths=(*_UNEVEN, (512, 256), *_ABOUT_1024, (2048, 2048)),
        dims=_FLASH_DIMS,
        heads=_FLASH_HEADS,
        options=(
            _CAUSAL,
            ({}, {"window": "random"}),
            ({}, {"bias": "alibi"}),
            ({}, {"softcap": 50.0, "query_factor": 50.0}),
        ),
        fixed=_LAST,
    ),
    Grid(
        lengths=(*_DECODE, *((Sk, Sq) for Sq, Sk in _DECODE)),
        dims=_FLASH_DIMS,
        options=(({}, {"window": "random"}),),
        fixed={**_LAST, "causal": True},
    ),
)

_HOPPER: dict[str, Any] = {
    "lengths": (
        *(
            (1, 1),
            (64, 128),
            (128, 192),
            (256, 256),
            (239, 1),
            (799, 3),
            (113, 128),
            (384, 256),
            (640, 128),
            (512, 256),
        ),
        *(*_UNEVEN, *_ABOUT_1024, (4096, 4096), (4224, 4224)),
    ),
    "heads": _FLASH_HEADS,
    "options": (_CAUSAL, ({}, {"window": "random"}), ({}, {"softcap": 15.0, "query_factor": 3.75})),
    "fixed": _LAST,
}
FLASH_ATTENTION_3 = drawn(
    Grid(dims=((64, 64), (64, 256), (64, 512), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)), **_HOPPER)
)

_SHORT_TO_LONG = (4, 8, 64, 128, 256, 512, 1024, 2048)
_L1 = ({}, {"scale": "1/D"})
_RAND = {"values": "uniform"}
TORCH_SDPA = drawn(
    Grid(
        lengths=_pairs(_SHORT_TO_LONG, _SHORT_TO_LONG),
        dims=_equal(8, 16, 32, 64, 72, 96, 128),
        options=(_CAUSAL, _L1),
        fixed=_RAND,
    ),
    Grid(
        lengths=_pairs((*_SHORT_TO_LONG, 312), (*_SHORT_TO_LONG, 65, 408)),
        dims=_equal(8, 16, 32, 64, 72, 96, 128),
        options=(_L1,),
        fixed={**_RAND, "bias": "uniform_of_rows"},
    ),
    Grid(
        lengths=_equal(256, 512, 1024),
        dims=_equal(32, 64),
        heads=((1, 2, 2), (1, 4, 2), (1, 10, 2)),
        options=(_CAUSAL, _L1),
        fixed=_RAND,
    ),
)

FLEX_ATTENTION = drawn(
    Grid(
        lengths=((256, 256), (128, 256)),
        dims=((64, 64), (64, 64), (64, 64), (64, 32), (32, 64)),
        heads=((1, 2, 2), (2, 2, 2), (1, 4, 2), (1, 4, 1)),
        options=(
            (
                *(
                    {},
                    {"scale": 0.25},
                    {"causal": True},
                    {"mask": "upper"},
                    {"bias": "relative"},
                    {"bias": "geometric"},
                ),
                *({"bias": "relative", "causal": True}, {"mask": "even_keys"}, {"mask": "halves"}),
                *({"bias": "normal_of_rows"}, {"bias": "normal"}, {"bias": "relative", "mask": "upper"}),
            ),
        ),
    )
)

_WEIRD = (2, 3, 15, 31, 32, 34, 68, 72, 90, 132, 136)
_RANDOM_LENGTHS = np.random.default_rng(0).integers(1, 501, (200, 2)).tolist()
_EIGHTS = tuple(range(8, 256, 8))
_BIASES = (
    (
        {},
        {"bias": "corner"},
        {"causal": True},
        {"causal": True, **_LAST, "ordered": True},
        *({"causal": True, "window": (w - 1, None), **_LAST, "ordered": True} for w in (3, 128, 300)),
        {"causal": True, "bias": "normal_3"},
    ),
)
_TRIPLE: dict[str, Any] = {"options": _BIASES, "fixed": {"factor": 3.0}}
XFORMERS = drawn(
    Grid(lengths=_pairs((32, 256), (32, 64, 256, 1024)), dims=_equal(32, 128, 256), heads=((1, 1, 1),), **_TRIPLE),
    Grid(lengths=(*((M, 128) for M in _WEIRD), *((256, M) for M in _WEIRD)), dims=_equal(32), **_TRIPLE),
    Grid(lengths=((256, 128),), dims=_equal(1, 2, 3, 31, 34, 36, 38, 40, 64, 80, 160, 258, 264, 512), **_TRIPLE),
    Grid(lengths=((256, 128),), dims=((32, 36), (32, 64), (32, 264), (36, 32), (64, 32), (264, 32)), **_TRIPLE),
    Grid(lengths=((16, 1024), (1024, 16)), dims=_equal(32, 128, 256), heads=((1, 1, 1),), **_TRIPLE),
    Grid(
        lengths=tuple((Mq, Mkv) for Mq, Mkv in _RANDOM_LENGTHS),
        dims=_pairs(_EIGHTS, _EIGHTS),
        heads=((1, 2, 2), (2, 3, 3), (1, 5, 5)),
        **_TRIPLE,
    ),
)

_PADDED = {"mask": "quarter_and_half"}
_JAX_DIMS: dict[str, Any] = {"lengths": ((128, 128),), "dims": ((32, 32),)}
JAX_NN = drawn(
    Grid(heads=((2, 4, 4), (2, 4, 2), (2, 4, 1)), **_JAX_DIMS),
    Grid(
        heads=((2, 4, 4),),
        options=(
            (
                *(
                    {"bias": "normal_of_heads"},
                    {"causal": True},
                    _PADDED,
                    {"mask": "lower"},
                    {"causal": True, **_PADDED},
                ),
                *({"bias": "normal_of_heads", "causal": True}, {"causal": True, "window": (3, 0)}, {"window": (3, 0)}),
            ),
        ),
        **_JAX_DIMS,
    ),
)

TRITON_TUTORIAL = drawn(_one(1024, 1024, 64, heads=(1, 1, 1), factor=0.5, scale=0.5, causal=True))
KERNEL_BENCH = drawn(_one(512, 512, 64, heads=(1, 1, 1), values="uniform"))
FLASHINFER_BENCH = drawn(
    Grid(lengths=tuple((1, 2**n) for n in range(4, 12)), dims=_equal(128), heads=((2, 8, 2), (2, 8, 1))),
    Grid(
        lengths=((3, 4), (4, 6), (64, 64), (100, 300), (512, 512), (512, 2048)),
        dims=_equal(128),
        heads=((1, 8, 2), (1, 8, 1)),
        fixed={**_LAST, "causal": True},
    ),
)
FLASHINFER = drawn(
    Grid(
        lengths=_pairs((37, 127, 577, 1024), (501, 2042, 3771, 4932)),
        dims=_equal(64, 128, 256),
        heads=((1, 4, 1), (1, 7, 1)),
        options=(({}, {"causal": True, "ordered": True}),),
        fixed=_LAST,
    )
)

_TENTH = {"factor": 0.1}
_TE_MASKS = ({"causal": True}, {"causal": True, **_LAST}, {"mask": "padding"}, {"mask": "lower_padding"})
_TE_LONG = ((2048, 2048), (2048, 4096))
TRANSFORMER_ENGINE = drawn(
    Grid(lengths=((128, 128), (128, 256)), dims=_equal(64), fixed=_TENTH),
    Grid(lengths=_TE_LONG, dims=_equal(128), fixed=_TENTH),
    Grid(lengths=((1, 2048),), dims=_equal(128, 192, 256, 512, 1024), fixed=_TENTH),
    Grid(lengths=((128, 2048),), dims=_equal(192, 512, 1024), fixed=_TENTH),
    Grid(lengths=_TE_LONG, dims=_equal(64, 128), heads=((1, 2, 2), (1, 2, 1)), options=(_TE_MASKS,), fixed=_TENTH),
    Grid(lengths=((1, 2048),), dims=_equal(128, 256), options=(_TE_MASKS,), fixed=_TENTH),
    Grid(
        lengths=((128, 128), (128, 256), *_TE_LONG),
        dims=_equal(64, 128),
        options=(({}, {"causal": True}),),
        fixed={**_TENTH, "bias": "normal_of_heads"},
    ),
    Grid(
        lengths=((2048, 2048),),
        dims=_equal(64),
        heads=((1, 16, 2),),
        options=(({}, {"causal": True}, {"causal": True, "window": (128, 0)}),),
        fixed=_TENTH,
    ),
    Grid(
        lengths=((128, 128), (128, 256), (1, 2048)), dims=((64, 128), (192, 128), (160, 128), (128, 64)), fixed=_TENTH
    ),
    Grid(lengths=_TE_LONG, dims=((128, 64), (192, 128)), fixed={**_TENTH, "causal": True}),
)

BACKEND_BENCH = drawn(
    Grid(
        lengths=((3, 6),),
        dims=_equal(8),
        heads=((4, 4, 4),),
        options=(({}, {"causal": True}, {"bias": "wide_of_rows"}),),
        fixed={"values": "wide"},
    )
)
ASSERT_CLOSE = drawn(
    Grid(
        lengths=_equal(64, 128, 256, 512, 1024), dims=_equal(64, 128), heads=((1, 2, 2), (2, 4, 4)), options=(_CAUSAL,)
    )
)
