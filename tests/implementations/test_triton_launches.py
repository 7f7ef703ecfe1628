"""Triton's front end takes what the host hands its kernels, on hardware that need not be present.

Run as a script, in a process where nothing interprets and a driver is pretended, this file calls attention and its
gradients on CPU tensors; each launch is compiled for what it was given, and not run. It prints what it found.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

#: Patterns of products of integers: operands, and the type that the product is computed in.
PRODUCTS = re.compile(r"arith\.muli (%\S+), (%[^ ,:]+)[^:\n]*: (\S+)")
OFFSETS = re.compile(r"tt\.addptr .*, (?:tensor<\S*x)?(i\d+)>?")
LAUNCHES = {"forward": [8, 3], "backward_queries": [8, 3], "backward_keys": [4, 4]}
#: Case -> dtype, whether the last two axes are swapped in memory, which tile, whether every option is on.
CASES = {
    "packed": ("float16", False, 0, False),
    "columns far apart, every option": ("bfloat16", True, 0, True),
}


class Pretended:
    """A driver with as much as compilation asks for."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return device


def main(dtype, swapped, which, with_options):
    import torch
    from attn_spec.implementations import triton_tiled
    from triton.runtime import Autotuner, driver

    found = {}

    def run(tuner, *args, grid, **known):
        """Compile for one of the tiles, where an autotuner would measure them all, and launch nothing."""
        tile = triton_tiled.TILES[which].all_kwargs()
        known |= tile | {"warmup": True}
        code = tuner.fn.run(*args, grid=grid, **known).asm["ttir"]
        found[tuner.fn.__name__] = {
            "grid": grid(tile),
            "products": PRODUCTS.findall(code),
            "offsets": OFFSETS.findall(code),
        }

    def given(*shape):
        x = torch.ones(shape, dtype=getattr(torch, dtype))
        return x.transpose(-1, -2).contiguous().transpose(-1, -2) if swapped else x

    driver.set_active(Pretended())
    Autotuner.run = run
    triton_tiled.SHORT = 0  # so that each launch is tuned
    q, k, v = given(2, 4, 40, 64), given(2, 2, 50, 64), given(2, 2, 50, 32)
    mask = torch.ones(2, 1, 40, 50, dtype=torch.bool)
    options = {"causal": True, "window": (9, None), "softcap": 2.0, "rotary": "half", "rotary_base": 1e4}
    options |= {"mask": mask, "dropout_keep": mask, "dropout_p": 0.5, "bias": given(1, 4, 40, 50)}
    options |= {"alibi_slopes": given(1, 4, 1, 1), "window_sinks": 2, "attention_chunk": 30}
    options = options if with_options else {}
    out, lse = triton_tiled.attention(q, k, v, **options)
    triton_tiled.gradients(out, q, k, v, out, lse, dlse=lse if with_options else None, **options)
    print(json.dumps(found))  # noqa: T201


@pytest.mark.one_in(2)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("case", CASES)
def test_every_launch_compiles_with_offsets_of_64_bits(case, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", __file__, case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    # 2 batch entries of 4 heads of 40 queries, and of 2 heads of 50 keys, in tiles of 16.
    assert {name: launch["grid"] for name, launch in found.items()} == LAUNCHES
    for name, launch in found.items():
        assert set(launch["offsets"]) == {"i64"}, name
        # What is left in 32 bits are numbers of rows: whole tiles, by their size.
        narrow = [one for one in launch["products"] if not one[2].endswith(("i64", "i64>"))]
        assert all(kind == "i32" and "%c" in x + y for x, y, kind in narrow), (name, narrow)
        assert len(narrow) < len(launch["products"]) / 4, name


if __name__ == "__main__":
    main(*CASES[sys.argv[1]])
