"""The Triton merge of states compiles for GPUs that need not be present.

Run as a module, in a process where nothing interprets, this file compiles for one target; a test runs it so.
"""

import importlib.util
import sys

import pytest

from tests.implementations.ahead_of_time import TARGETS, found_in, printed

#: Case -> element type of the outputs of states.
CASES = {"half": "fp16", "brain": "bf16", "single": "fp32"}
#: The cases to compile for each target: each case for one of them.
SHARE = {("cuda", 80): ["half"], ("cuda", 90): ["brain"], ("hip", "gfx942"): ["single"]}


def compiled(states, target, element):
    """Compile the kernel ahead of time, as Triton would at its first call."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    outputs, lses = (f"*{element}", ("i64",) * 3), ("*fp32", ("i64",) * 2)
    types = {"v_a": outputs, "v_b": outputs, "out": outputs, "s_a": lses, "s_b": lses, "lse": "*fp32"}
    types |= {"H": "i32", "T": "i32", "D": "constexpr"}
    names = states.merge.arg_names
    source = ASTSource(states.merge, {name: types[name] for name in names}, {(names.index("D"),): 72})
    return compile_source(source, target=target, options={"num_warps": 4})


def main(backend, arch, *cases):
    from attn_spec.implementations import triton_states

    printed(backend, arch, cases, lambda name, target: compiled(triton_states, target, CASES[name]))


@pytest.mark.one_in(3)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, tmp_path):
    found = found_in(__name__, backend, arch, SHARE[backend, arch], tmp_path)

    assert list(found) == SHARE[backend, arch]
    assert all(case["bytes"] > 1000 for case in found.values())
    assert all(case["shared"] <= 64 * 2**10 for case in found.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
