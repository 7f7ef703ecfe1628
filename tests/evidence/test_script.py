"""A script fails while the kernel does and not once it is mended, whatever its answer looks like."""

import runpy

import pytest

from attn_spec.evidence import script
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search

CLAIM = load_all()["accuracy.output_is_within_its_bound"]
OUTCOMES = ("still fails", 1), ("no longer fails here", 0)

#: Attention [B, H, S, D]; if WRONG, NaN where a head may be taken for a row. ``shown`` turns axes about.
KERNEL = """
import numpy as np
from attn_spec import kernel

class Attention:
    def __init__(self, *extra):
        self.extra = extra

    def __call__(self, q, k, v, *, query_heads=1, kv_heads=1):
        q, k, v = (given(x) for x in (q, k, v))
        s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
        p = np.exp(s - s.max(-1, keepdims=True))
        out = (p / p.sum(-1, keepdims=True)) @ v
        if WRONG and out.shape[2] > 1 and out.shape[1] > FEWEST:
            out[:, 0, -1] = out[:, -1, 0] = np.nan
        out = shown(out)
        return (out, *self.extra) if self.extra else out

WRONG = True
"""
SHOWN = {
    "BHSD": "given = shown = lambda x: x; FEWEST = 1",
    "BSHD": "given = shown = lambda x: x.swapaxes(1, 2); FEWEST = 1",
    "SD": "given, shown = lambda x: x[None, None], lambda x: x[0, 0]; FEWEST = 0",
}
DECLARED = """
{shown}
attention = kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"),
                   presentation="{name}", name="k")(Attention({extra}))
"""


FOUND = {
    "definition:200": "kernel = resolve('definition:200')",
    "numpy_tiled": "from attn_spec.implementations.numpy_tiled import attention as kernel",
    "my-kernels/mine.py:attention": "kernel = importlib.import_module('mine').attention",
    "my-kernels/my-own.py": "kernel = importlib.import_module('my-own').attention",
}


@pytest.mark.parametrize("spec", FOUND)
def test_a_script_finds_its_kernel(spec, folder):
    folder.joinpath("my-kernels").mkdir()
    for name in ("mine", "my-own"):
        text = KERNEL + DECLARED.format(shown=SHOWN["BHSD"], name="BHSD", extra="")
        folder.joinpath("my-kernels", f"{name}.py").write_text(text)
    kernel = resolve(spec)
    lines = script._finder(kernel)
    space = {}
    exec("import importlib, sys\n" + lines, space)  # noqa: S102 -- as in a script

    assert FOUND[spec] in lines
    assert space["kernel"].name == kernel.name


@pytest.mark.parametrize("extra", ["", "None", "'no tensor'"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_script_fails_as_long_as_the_kernel(name, extra, folder, capsys):
    path = folder / "mine.py"
    path.write_text(KERNEL + DECLARED.format(shown=SHOWN[name], name=name, extra=extra))
    subject = Subject(resolve("mine.py"), "float32")
    _, case = search(CLAIM, subject, PROFILES["smoke"], 0)
    written = script.write(case, CLAIM, subject, folder / "script.py")

    for text, code in OUTCOMES:
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(written), run_name="__main__")
        shown = capsys.readouterr().out
        assert left.value.code == code, shown
        assert text in shown
        path.write_text(path.read_text().replace("WRONG = True", "WRONG = False"))
        resolve("mine.py")
