"""Kernels of latent attention in Triton and JAX are right by the properties that concern such calls most.

The Triton kernel also compiles for GPUs that need not be present. Run as a module, in a process where nothing
interprets, this file compiles for one target, and prints which instructions it found; a test runs it so.
"""

import importlib.util
import sys

import pytest

from tests.implementations.ahead_of_time import TARGETS, found_in, printed

#: Case -> element type, and its name in PyTorch.
CASES = {"fp16": "float16", "bf16": "bfloat16"}
EVERY = {target: list(CASES) for target in TARGETS}
SHARE = {("cuda", 80): ["fp16"], ("cuda", 90): ["bf16"], ("hip", "gfx942"): ["bf16"]}
ABSORBED = "latent.absorbing_the_projections_changes_nothing"
ALONE = "lengths.each_sequence_is_solved_as_if_it_were_alone"
GRADIENTS = "gradients.query_and_key_gradients_are_within_their_bounds"
MISSING = [name for name in ("triton", "jax") if importlib.util.find_spec(name) is None]


def compiled(kernels, target, element):
    """Compile the Triton kernel ahead of time, as Triton would at its first call, at the widths of DeepSeek."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    types = {"q": (f"*{element}", ("i64",) * 3), "kv": (f"*{element}", ("i64",) * 4), "out": f"*{element}"}
    types |= {"lse": "*fp32", "table": "*i32", "row": "i32", "lengths": "*i32", "scale": "fp32", "Hq": "i32"}
    values = {"D": 576, "Dv": 512, "SIZE": 64, "FORMAT": f"torch.{CASES[element]}", **kernels.TILE}
    names = kernels.forward.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in values.items()}
    return compile_source(ASTSource(kernels.forward, signature, constants), target=target, options={"num_warps": 4})


def main(backend, arch, *cases):
    from tests.implementations import latent_kernels

    printed(backend, arch, cases, lambda name, target: compiled(latent_kernels, target, name))


@pytest.mark.one_in(3)
@pytest.mark.skipif(bool(MISSING), reason="Triton or JAX is not installed")
@pytest.mark.parametrize(
    "cases",
    [pytest.param(SHARE, id="share"), pytest.param(EVERY, id="every", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize(("backend", "arch"), TARGETS, ids=str)
def test_compiles_for(backend, arch, cases, tmp_path):
    found = found_in(__name__, backend, arch, cases[backend, arch], tmp_path)

    assert list(found) == cases[backend, arch]
    for name, case in found.items():
        assert case["bytes"] > 1000, name
        assert case["shared"] <= 160 * 2**10, name
        assert any(name.replace("fp", "f") in instruction for instruction in case["instructions"]), case


@pytest.mark.one_in(3)
@pytest.mark.skipif(bool(MISSING), reason="Triton or JAX is not installed")
@pytest.mark.parametrize(
    ("name", "property_id", "dtype"),
    [
        ("triton_decode", ABSORBED, "float32"),
        ("triton_decode", ALONE, "bfloat16"),
        ("jax_decode", ABSORBED, "float32"),
        ("jax_decode", ALONE, "float16"),
        ("jax_decode", GRADIENTS, "float32"),
    ],
)
def test_a_kernel_that_decodes_is_right(name, property_id, dtype):
    from tests.implementations import latent_kernels
    from tests.kernels.presentations.packing.test_plain_packed_kernels import verdict

    assert verdict(getattr(latent_kernels, name), property_id, 4, dtype=dtype) == ("held", "")


if __name__ == "__main__":
    main(*sys.argv[1:])
