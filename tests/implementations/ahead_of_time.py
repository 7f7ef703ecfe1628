"""Compilation of Triton kernels ahead of time, for GPUs that need not be present, in a process that interprets nothing.

A test file that is run as a module calls :func:`printed`; its tests read what that prints by :func:`found_in`.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: Root of the repository, where test files are run as modules.
ROOT = Path(__file__).parents[2]
#: Target -> the binary it must come to, and where and how its matrix instructions are written.
TARGETS = {
    ("cuda", 80): ("cubin", "ptx", r"mma\.sync\S*"),
    ("cuda", 90): ("cubin", "ptx", r"(?:wg)?mma\.(?:mma_async\.)?sync\S*"),
    ("hip", "gfx942"): ("hsaco", "amdgcn", r"v_mfma_\S*"),
}


def printed(backend: str, arch: str, names: Iterable[str], compiled: Callable[[str, Any], Any]) -> None:
    """Print what ``compiled(name, target)`` came to for each name: bytes, shared memory, matrix instructions."""
    from triton.backends.compiler import GPUTarget

    target = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 64 if backend == "hip" else 32)
    binary, assembly, pattern = TARGETS[backend, target.arch]
    found = {}
    for name in names:
        result = compiled(name, target)
        found[name] = {
            "bytes": len(result.asm[binary]),
            "shared": result.metadata.shared,
            "instructions": sorted(set(re.findall(pattern, result.asm[assembly]))),
        }
    print(json.dumps(found))  # noqa: T201


def found_in(module: str, backend: str, arch: str | int, cases: Iterable[str], cache: Path) -> dict[str, Any]:
    """Return what a test module prints for a target and some cases, with Triton's cache in its own folder."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", module, backend, str(arch), *cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
