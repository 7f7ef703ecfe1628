"""The Triton kernel of packed and paged calls compiles for GPUs that need not be present.

Run as a module, in a process where nothing interprets, this file compiles for one target, and prints which instructions
it found; a test runs it so.
"""

import importlib.util
import re
import sys

import pytest

from tests.implementations.ahead_of_time import TARGETS, found_in, printed

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

    def compile_case(name, target):
        return compiled(triton_ragged, target, **dict(zip(FIELDS, CASES[name], strict=True)))

    printed(backend, arch, cases, compile_case)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    "cases",
    [pytest.param(SHARE, id="share"), pytest.param(EVERY, id="every", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, cases, tmp_path):
    found = found_in(__name__, backend, arch, cases[backend, arch], tmp_path)

    assert list(found) == cases[backend, arch]
    for name, case in found.items():
        operand = re.compile("[._]" + CASES[name][0].replace("fp", "f"))
        assert case["bytes"] > 1000, name
        assert case["shared"] <= 64 * 2**10, name
        assert case["instructions"], name
        assert all(operand.search(instruction) for instruction in case["instructions"]), case


if __name__ == "__main__":
    main(*sys.argv[1:])
