"""The Triton kernel of packed and paged calls compiles for GPUs that need not be present.

Run as a script, in a process where nothing interprets, this file compiles for one target, and prints which instructions
it found; a test runs it so.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.implementations.test_triton_compiles import TARGETS

#: The root of the repository, where this file is run as a module.
ROOT = Path(__file__).parents[2]

FIELDS = ("element", "dtype", "size", "options")
#: Case -> element type, its name in PyTorch, keys of a page (None for packed keys), whether every option is on.
CASES = {
    "paged": ("fp16", "float16", 16, True),
    "packed": ("bf16", "bfloat16", None, False),
}
#: The cases to compile for each target, all of them and a share.
EVERY = {target: list(CASES) for target in TARGETS}
SHARE = {("cuda", 80): ["paged"], ("cuda", 90): ["packed"], ("hip", "gfx942"): ["paged"]}


def compiled(ragged, target, *, element, dtype, size, options):
    """Compile the kernel ahead of time, as Triton would at its first call; without options, they are None."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    tensor = (f"*{element}", ("i64",) * 4)
    types = dict.fromkeys(("q", "k", "v"), tensor) | {"out": (f"*{element}", ("i64",) * 3), "lse": "*fp32"}
    types |= dict.fromkeys(("queries", "keys"), "*i32") | dict.fromkeys(("Hq", "Hkv", "Tq"), "i32")
    types |= {"where": ("*i32", "*i32", "i32"), "band": ("i32",) * 3}
    types |= {"scoring": ("fp32", "fp32", ("*fp32", ("i64",) * 4)), "sinks": f"*{element}"}
    tile = {"D": 64, "Dv": 72, "SIZE": size or 1, "FORMAT": f"torch.{dtype}", **ragged.TILE}
    values = {(name,): value for name, value in tile.items()}
    if not options:
        types |= {"scoring": ("fp32", "constexpr", "constexpr"), "sinks": "constexpr"}
        values |= dict.fromkeys([("scoring", 1), ("scoring", 2), ("sinks",)])
    if size is None:
        types["where"] = ("*i32", "constexpr", "i32")
        values["where", 1] = None
    names = ragged.forward.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    constants = {(names.index(name), *path): value for (name, *path), value in values.items()}
    return compile_source(ASTSource(ragged.forward, signature, constants), target=target, options={"num_warps": 4})


def main(backend, arch, *cases):
    from attn_spec.implementations import triton_ragged
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 64 if backend == "hip" else 32)
    binary, assembly, pattern = TARGETS[backend, target.arch]
    found = {}
    for name in cases:
        result = compiled(triton_ragged, target, **dict(zip(FIELDS, CASES[name], strict=True)))
        instructions = sorted(set(re.findall(pattern, result.asm[assembly])))
        found[name] = {"bytes": len(result.asm[binary]), "shared": result.metadata.shared, "instructions": instructions}
    print(json.dumps(found))  # noqa: T201


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "cases",
    [pytest.param(SHARE, id="share"), pytest.param(EVERY, id="every", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, cases, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", __name__, backend, str(arch), *cases[backend, arch]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert list(found) == cases[backend, arch]
    for name, case in found.items():
        operand = re.compile("[._]" + CASES[name][0].replace("fp", "f"))
        assert case["bytes"] > 1000, name
        assert case["shared"] <= 64 * 2**10, name
        assert case["instructions"], name
        assert all(operand.search(instruction) for instruction in case["instructions"]), case


if __name__ == "__main__":
    main(*sys.argv[1:])
