"""The Triton kernels compile for GPUs that need not be present, into instructions of the arithmetic they declare.

Run as a script, in a process where nothing interprets, this file compiles for one target and prints which
instructions it found; the tests run it so.
"""

import importlib.util
import itertools
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
KERNELS = ("forward", "backward_queries", "backward_keys")
FIELDS = ("element", "format", "options", "dims", "which")
#: Case -> element type, format of products, whether every option is on, head dimensions, which tile.
CASES = {
    "fp16": ("fp16", "torch.float16", True, (40, 24), 0),
    "bf16": ("bf16", "torch.bfloat16", True, (64, 64), 0),
    "bf16, large tile": ("bf16", "torch.bfloat16", False, (128, 128), -1),
    "fp32": ("fp32", "torch.float32", True, (128, 128), 0),
    "tf32": ("fp32", "tf32", True, (63, 72), 0),
}
#: What every matrix instruction of a case must contain; CUDA has none for float32.
ARITHMETIC = {
    "cuda": {"fp16": ".f32.f16.f16", "bf16": ".f32.bf16.bf16", "fp32": None, "tf32": ".f32.tf32.tf32"},
    "hip": {"fp16": "_f16", "bf16": "_bf16", "fp32": "x2_f32", "tf32": "_xf32"},
}


def compiled(triton_tiled, name, target, *, element, format, options, dims, which):
    """Compile a kernel ahead of time with one of the tiles of its autotuner."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    tile, jitted = triton_tiled.TILES[which], getattr(triton_tiled, name).fn
    names = jitted.arg_names
    strided = {name: (f"*{element}", ("i64",) * 4) for name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv")}
    types = strided | {"da": ("*fp32", ("i64",) * 4), **dict.fromkeys(("lse", "dlse", "delta"), "*fp32")}
    types |= {"geometry": ("i32",) * 7, "scoring": (("*i8", ("i64",) * 4), strided["q"], "fp32", "fp32")}
    constants = {(names.index(key),): value for key, value in tile.kwargs.items()}
    constants |= {(names.index(key),): value for key, value in zip(("D", "Dv", "FORMAT"), (*dims, format), strict=True)}
    if not options:
        types |= {"scoring": ("constexpr", "constexpr", "fp32", "constexpr"), "da": "constexpr", "dlse": "constexpr"}
        absent = [(names.index(key),) for key in ("da", "dlse") if key in names]
        constants |= dict.fromkeys(absent + [(names.index("scoring"), at) for at in (0, 1, 3)])
    signature = {key: types.get(key, "constexpr") for key in names}
    return compile_source(
        ASTSource(jitted, signature, constants), target=target, options={"num_warps": tile.num_warps}
    )


def main(backend, arch):
    from attn_spec.implementations import triton_tiled
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 64 if backend == "hip" else 32)
    binary, assembly, pattern = TARGETS[backend, target.arch]
    found = {}
    for name, (case, chosen) in itertools.product(KERNELS, CASES.items()):
        result = compiled(triton_tiled, name, target, **dict(zip(FIELDS, chosen, strict=True)))
        found[f"{name}, {case}"] = {
            "bytes": len(result.asm[binary]),
            "shared": result.metadata.shared,
            "instructions": sorted(set(re.findall(pattern, result.asm[assembly]))),
        }
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
