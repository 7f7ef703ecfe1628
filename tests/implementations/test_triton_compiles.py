"""The Triton kernels compile for GPUs that need not be present, into instructions of the arithmetic they declare.

Run as a module, in a process where nothing interprets, this file compiles for one target and prints which
instructions it found; the tests run it so.
"""

import importlib.util
import itertools
import sys

import pytest

from tests.implementations.ahead_of_time import TARGETS, found_in, printed

KERNELS = ("forward", "backward_queries", "backward_keys")
FIELDS = ("element", "products", "options", "widths", "Dv", "which")
#: Case -> element type, format of products, whether every option is on, columns of the parts of q and k (rotary where
#: there are several), head dimension of v, which tile.
CASES = {
    "fp16": ("fp16", "torch.float16", True, (12, 12, 16), 24, 0),
    "bf16": ("bf16", "torch.bfloat16", True, (32, 32), 64, 0),
    "bf16, large tile": ("bf16", "torch.bfloat16", False, (128,), 128, -1),
    **{f"bf16, tile {which}": ("bf16", "torch.bfloat16", False, (64,), 64, which) for which in range(7)},
    "fp32": ("fp32", "torch.float32", True, (128,), 128, 0),
    "fp32, turned": ("fp32", "torch.float32", True, (64, 64), 128, 0),
    "tf32": ("fp32", "tf32", True, (63,), 72, 0),
}
#: Cases to compile for each target when not every case is: each case for one of them.
SHARE = {
    ("cuda", 80): ("fp16", "fp32"),
    ("cuda", 90): ("bf16, large tile", "tf32", "fp32, turned"),
    ("hip", "gfx942"): ("bf16",),
}
EVERY = dict.fromkeys(TARGETS, tuple(CASES))
#: Every tile that the autotuner tries.
TILES = [case for case in CASES if "tile " in case]
#: Bytes of shared memory that one program may use; of other cases 64 KiB.
SHARED = {"bf16, large tile": 128 * 2**10, "bf16, tile 6": 96 * 2**10, "fp32, turned": 80 * 2**10}
#: Part of every matrix instruction of a case; CUDA has none for float32.
ARITHMETIC = {
    "cuda": {"fp16": ".f32.f16.f16", "bf16": ".f32.bf16.bf16", "fp32": None, "tf32": ".f32.tf32.tf32"},
    "hip": {"fp16": "_f16", "bf16": "_bf16", "fp32": "x4_f32", "tf32": "_xf32"},
}


def compiled(triton_tiled, name, target, *, element, products, options, widths, Dv, which):
    """Compile a kernel ahead of time, as Triton would at its first call, with one of the tiles of its autotuner.

    Without options, what is optional is None, and every integer is 1, which Triton makes a constant.
    """
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    tile, jitted = triton_tiled.TILES[which], getattr(triton_tiled, name).fn
    strides = ("i64", "i64", "i64", "i64" if options else "constexpr")
    tensors = dict.fromkeys(("v", "out", "dout", "dv"), (f"*{element}", strides))
    parts = dict.fromkeys(("q", "k", "dq", "dk"), (tensors["v"],) * len(widths))
    angles = ((("*fp32", strides),) * 2 if len(widths) > 1 else "constexpr",) * 2
    types = (
        tensors
        | parts
        | {"angles": angles, "da": ("*fp32", strides), **dict.fromkeys(("lse", "dlse", "delta"), "*fp32")}
    )
    added = (("*i8", strides), tensors["v"], ("*fp32", strides), ("*i8", strides), "fp32")
    types |= {"geometry": ("i32",) * 10, "scoring": ("fp32", "fp32", *added)}
    fixed = {**tile.kwargs, "WIDTHS": widths, "Dv": Dv, "FORMAT": products}
    values = {(name,): value for name, value in fixed.items()}
    values |= dict.fromkeys([("angles", at) for at in (0, 1)]) if len(widths) == 1 else {}
    if not options:
        types |= {"geometry": ("constexpr",) * 10, "scoring": ("fp32", *["constexpr"] * 6)}
        types |= dict.fromkeys(("da", "dlse"), "constexpr")
        values |= dict.fromkeys([("da",), ("dlse",), *(("scoring", at) for at in range(1, 7))])
        last = [(name, 1, 3) for name in tensors] + [(name, at, 1, 3) for name in parts for at in range(len(widths))]
        values |= dict.fromkeys([*last, *(("geometry", at) for at in range(8))], 1) | {("geometry", 8): None}
    names = jitted.arg_names
    signature = {key: types.get(key, "constexpr") for key in names}
    constants = {(names.index(key), *path): value for (key, *path), value in values.items() if key in names}
    source = ASTSource(jitted, signature, constants)
    return compile_source(source, target=target, options={"num_warps": tile.num_warps, "num_stages": tile.num_stages})


def main(backend, arch, *cases):
    from attn_spec.implementations import triton_tiled

    def compile_case(name, target):
        kernel, case = name.split(", ", maxsplit=1)
        return compiled(triton_tiled, kernel, target, **dict(zip(FIELDS, CASES[case], strict=True)))

    printed(backend, arch, [f"{name}, {case}" for name, case in itertools.product(KERNELS, cases)], compile_case)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "cases",
    [pytest.param(SHARE, id="share"), pytest.param(EVERY, id="every", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, cases, tmp_path):
    named = list(cases[backend, arch])
    found = found_in(__name__, backend, arch, named, tmp_path)

    assert set(found) == {f"{name}, {case}" for name, case in itertools.product(KERNELS, named)}
    for name, case in found.items():
        _, element, *further = name.split(", ")
        expected = ARITHMETIC[backend][element]
        assert case["bytes"] > 1000, name
        assert bool(case["instructions"]) == (expected is not None), (name, case)
        assert case["shared"] <= SHARED.get(", ".join([element, *further]), 64 * 2**10), (name, case)
        assert all(expected in instruction for instruction in case["instructions"]), (name, case)


def test_each_case_is_compiled_for_some_target():
    assert SHARE.keys() == TARGETS.keys()
    assert {case for cases in SHARE.values() for case in cases} >= set(CASES) - set(TILES)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_autotuner_tries_these_tiles_and_no_others():
    from attn_spec.implementations import triton_tiled

    assert [CASES[case][-1] for case in TILES] == list(range(len(triton_tiled.TILES)))


if __name__ == "__main__":
    main(*sys.argv[1:])
