"""The Triton kernel of packed and paged calls compiles for GPUs that need not be present, and reads codes of 8 bits.

Run as a module, in a process where nothing interprets, this file compiles for one target, and prints which instructions
it found; a test runs it so.
"""

import importlib.util
import re
import sys

import pytest
import torch

from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from tests.implementations.ahead_of_time import TARGETS, found_in, printed
from tests.implementations.kernel_inputs import HAS_TRITON, interpreted

if HAS_TRITON:  # through the tiles, which choose the interpreter before they import triton
    from attn_spec.implementations.triton_tiles import tl, triton, widened

    @triton.jit
    def widen_kernel(codes, like, out):
        at = tl.arange(0, 256)
        tl.store(out + at, widened(tl.load(codes + at), tl.load(like + at)))


FIELDS = ("element", "dtype", "cache", "size", "options")
#: Case -> element type of queries, its name in PyTorch, element type of keys and values, keys of a page (None for
#: packed keys), whether every option is on.
CASES = {
    "paged": ("fp16", "float16", "fp16", 16, True),
    "packed": ("bf16", "bfloat16", "bf16", None, False),
    "eight bits": ("bf16", "bfloat16", "u8", 16, True),
}
#: The cases to compile for each target, all of them and a share.
EVERY = {target: list(CASES) for target in TARGETS}
SHARE = {("cuda", 80): ["paged", "eight bits"], ("cuda", 90): ["packed"], ("hip", "gfx942"): ["paged"]}


def compiled(ragged, target, *, element, dtype, cache, size, options):
    """Compile the kernel ahead of time, as Triton would at its first call; without options, they are None."""
    from triton import compile as compile_source
    from triton.compiler import ASTSource

    types = {name: (f"*{of}", ("i64",) * 4) for name, of in (("q", element), ("k", cache), ("v", cache))}
    types |= {"out": (f"*{element}", ("i64",) * 3), "lse": "*fp32"}
    types |= dict.fromkeys(("queries", "keys"), "*i32") | dict.fromkeys(("Hq", "Hkv", "Tq"), "i32")
    types |= {"where": ("*i32", "*i32", "i32"), "band": ("i32",) * 3}
    descale = ("*fp32", ("i64",) * 2)
    types |= {"scoring": ("fp32", "fp32", ("*fp32", ("i64",) * 4), descale), "sinks": f"*{element}"}
    types |= {"v_descale": descale}
    tile = {"D": 64, "Dv": 72, "SIZE": size or 1, "FORMAT": f"torch.{dtype}", **ragged.TILE}
    values = {(name,): value for name, value in tile.items()}
    if not options:
        types |= {"scoring": ("fp32", *["constexpr"] * 3), **dict.fromkeys(("sinks", "v_descale"), "constexpr")}
        values |= dict.fromkeys([*(("scoring", at) for at in (1, 2, 3)), ("sinks",), ("v_descale",)])
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


@pytest.mark.one_in(3)
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


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_each_code_of_8_bits_is_the_number_that_pytorch_reads(dtype):
    codes, out = torch.arange(256, dtype=torch.uint8), torch.zeros(256, dtype=dtype)
    widen_kernel[(1,)](codes, torch.zeros_like(out), out)

    expected = codes.view(torch.float8_e4m3fn).to(dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num().view(torch.uint8), expected.nan_to_num().view(torch.uint8))


#: Errors of a kernel with a cache of 8 bits, by what it makes of the cache and the descales.
ERRORS = {
    "none": lambda k, v, descales: (k, v, descales),
    "no descale of keys": lambda k, v, descales: (k, v, descales | {"k_descale": None}),
    "a descale of another head": lambda k, v, descales: (
        *(k, v),
        {name: x if x is None else x.roll(1, dims=1) for name, x in descales.items()},
    ),
    "codes of another format": lambda k, v, descales: (
        *(x.float().to(torch.float8_e5m2).float().to(torch.float8_e4m3fn) for x in (k, v)),
        descales,
    ),
}


@interpreted
@pytest.mark.parametrize("error", ERRORS)
def test_a_cache_of_8_bits_is_read_with_its_descales(error, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # to which cases in flight are written
    own = resolve("triton_ragged:eight_bits")

    def attention(q, k, v, *, k_descale=None, v_descale=None, **options):
        k, v, descales = ERRORS[error](k, v, {"k_descale": k_descale, "v_descale": v_descale})
        return own.function(q, k, v, **descales, **options)

    profile = Profile(name="test", examples=4, floor=1, seconds=60, shrink_seconds=0, seed=0)
    subject = Subject(own.wrapped(attention), "q:float16,kv:float8_e4m3fn")
    row, _ = search(load_all()["descales.each_sequence_has_its_own_descales"], subject, profile, seed=0)

    assert row.verdict is (Verdict.HELD if error == "none" else Verdict.REFUTED), row.message
    assert ("allowed error" in row.message) == (error != "none")


if __name__ == "__main__":
    main(*sys.argv[1:])
