"""The Triton kernel compiles for GPUs that need not be present, into instructions of the arithmetic it declares.

Run as a script, in a process where nothing interprets, this file compiles for one target and prints which
instructions it found; the tests run it so.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

#: Target -> the binary it must come to, and where and how its matrix instructions are written.
TARGETS = {
    ("cuda", 80): ("cubin", "ptx", r"mma\.sync\S*"),
    ("cuda", 90): ("cubin", "ptx", r"(?:wg)?mma\.(?:mma_async\.)?sync\S*"),
    ("hip", "gfx942"): ("hsaco", "amdgcn", r"v_mfma_\S*"),
}
FIELDS = ("element", "precision", "options", "dims", "which")
#: Case -> element type, precision of products, whether every option is on, head dimensions, which tile.
CASES = {
    "fp16": ("fp16", "ieee", True, (40, 24), 0),
    "bf16": ("bf16", "ieee", True, (64, 64), 0),
    "bf16, large tile": ("bf16", "ieee", False, (128, 128), -1),
    "fp32": ("fp32", "ieee", True, (40, 24), 0),
    "tf32": ("fp32", "tf32", True, (63, 72), 0),
}
#: What every matrix instruction of a case must contain; CUDA has none for float32.
ARITHMETIC = {
    "cuda": {"fp16": ".f32.f16.f16", "bf16": ".f32.bf16.bf16", "fp32": None, "tf32": ".f32.tf32.tf32"},
    "hip": {"fp16": "_f16", "bf16": "_bf16", "fp32": "x2_f32", "tf32": "_xf32"},
}


def compiled(triton_tiled, target, *, element, precision, options, dims, which):
    """Compile ``forward`` ahead of time with one of the tiles of its autotuner."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    tile = triton_tiled.TILES[which]
    constants = {"D": dims[0], "Dv": dims[1], "PADDED_D": triton_tiled.padded(dims[0])}
    constants |= {"PADDED_DV": triton_tiled.padded(dims[1]), "PRECISION": precision, "ROUND_TO_BFLOAT16": False}
    constants |= tile.kwargs
    if not options:
        constants |= dict.fromkeys(("mask", "bias", "mask_strides", "bias_strides", "softcap"))
    types = dict.fromkeys(("q", "k", "v", "bias", "out"), f"*{element}") | {"mask": "*i8", "lse": "*fp32"}
    types |= {f"{name}_strides": ("i64",) * 4 for name in ("q", "k", "v", "mask", "bias", "out")}
    types |= {"scale": "fp32", "softcap": "fp32"}
    names = triton_tiled.forward.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    source = ASTSource(triton_tiled.forward, signature, {(names.index(n),): value for n, value in constants.items()})
    return compile_source(source, target=target, options={"num_warps": tile.num_warps})


def main(backend, arch):
    from attn_spec.implementations import triton_tiled
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 64 if backend == "hip" else 32)
    binary, assembly, pattern = TARGETS[backend, target.arch]
    found = {}
    for name, case in CASES.items():
        asm = compiled(triton_tiled, target, **dict(zip(FIELDS, case, strict=True))).asm
        found[name] = {"bytes": len(asm[binary]), "instructions": sorted(set(re.findall(pattern, asm[assembly])))}
    print(json.dumps(found))  # noqa: T201


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, backend, str(arch)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert set(found) == set(CASES)
    for name, case in found.items():
        expected = ARITHMETIC[backend][name.partition(",")[0]]
        assert case["bytes"] > 1000, name
        assert bool(case["instructions"]) == (expected is not None), (name, case)
        assert all(expected in instruction for instruction in case["instructions"]), (name, case)


if __name__ == "__main__":
    main(*sys.argv[1:])
