"""A script fails while the kernel does and not once it is mended, whatever its answer looks like."""

import ast
import runpy
import sys

import pytest

from attn_spec.evidence import script
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import Case
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search

PROPERTY = load_all()["accuracy.output_is_within_its_bound"]
OUTCOMES = ("still fails", 1), ("no longer fails here", 0)


def check_outcomes(written, path, capsys):
    """Check that a script fails as long as the kernel in ``path`` is wrong, and passes once it is right."""
    for said, code in OUTCOMES:
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(written), run_name="__main__")
        shown = capsys.readouterr().out
        assert left.value.code == code, shown
        assert said in shown
        path.write_text(path.read_text().replace("WRONG = True", "WRONG = False"))
        resolve("mine.py")


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("extra", ["", "None", "'no tensor'"])
@pytest.mark.parametrize("name", SHOWN)
def test_a_script_fails_as_long_as_the_kernel(name, extra, folder, capsys):
    path = folder / "mine.py"
    path.write_text(KERNEL + DECLARED.format(shown=SHOWN[name], name=name, extra=extra))
    subject = Subject(resolve("mine.py"), "float32")
    _, case = search(PROPERTY, subject, PROFILES["smoke"], 0)
    written = script.write(case, PROPERTY, subject, folder / "script.py")

    check_outcomes(written, path, capsys)


#: Packed attention under the names of PyTorch; if WRONG, the last sequence loses its last key.
PACKED = """
import numpy as np
from attn_spec import kernel

WRONG = True

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("cross",), presentation="THD",
        least_keys=2)
def attention(q, k, v, *, cu_seq_q, cu_seq_k):
    out = np.zeros_like(q)
    for b in range(len(cu_seq_q) - 1):
        rows = slice(cu_seq_q[b], cu_seq_q[b + 1])
        keys = slice(cu_seq_k[b], cu_seq_k[b + 1] - (WRONG and b == len(cu_seq_q) - 2))
        s = np.einsum("nhd,ehd->hne", q[rows], k[keys]) / np.float32(q.shape[-1] ** 0.5)
        p = np.exp(s - s.max(-1, keepdims=True))
        out[rows] = np.einsum("hne,ehd->nhd", p / p.sum(-1, keepdims=True), v[keys])
    return out
"""


def test_a_script_of_a_packed_call_has_the_names_of_its_kernel(folder, capsys):
    path = folder / "mine.py"
    path.write_text(PACKED)
    subject = Subject(resolve("mine.py"), "float32")
    _, case = search(PROPERTY, subject, PROFILES["smoke"], 0)
    written = script.write(case, PROPERTY, subject, folder / "script.py")
    text = written.read_text()

    assert "'cu_seq_q': tensor(" in text
    assert "WORST_CALL, WORST_PART, PLACE = 0, 0, (" in text
    check_outcomes(written, path, capsys)


def test_a_message_stands_in_the_script_as_it_is(folder):
    message = 'raised Odd: $calls @id@ """ \\N{no name} \\'
    subject = Subject(resolve("numpy_tiled"), "float32")
    problem = Recipe(key_length=2).problem()
    case = Case(property_id=PROPERTY.id, kernel="numpy_tiled", problem=problem, message=message)
    text = script.source(case, PROPERTY, subject, [])

    assert ast.get_docstring(ast.parse(text)).splitlines()[-1] == f"Why:      {message}"


#: Kernels with the factor WRONG in a gradient, one for each way to ask for gradients.
NUMPY = """
import numpy as np
from attn_spec import kernel

def weights(q, k):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def attention(q, k, v):
    return weights(q, k) @ v

@attention.backward
def gradients(dout, q, k, v, out, lse):
    p, dp = weights(q, k), dout @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.float32(q.shape[-1] ** 0.5)
    found = {"dq": ds @ k, "dk": ds.swapaxes(-1, -2) @ q, "dv": p.swapaxes(-1, -2) @ dout}
    return {name: x * np.float32(WRONG if name == "dk" else 1) for name, x in found.items()}

WRONG = 1.5
"""
TORCH = """
import torch
from attn_spec import kernel

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * WRONG

@kernel(framework="torch", dtypes=("float32",), contract="fused", supports=("dv", "cross", "backward"))
def attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, Scaled.apply(k), v)

WRONG = 1.5
"""
JAX = """
import jax
from attn_spec import kernel

@jax.custom_vjp
def scaled(x):
    return x

scaled.defvjp(lambda x: (x, None), lambda kept, gradient: (gradient * WRONG,))

@kernel(framework="jax", dtypes=("float32",), contract="fused", supports=("dv", "cross", "backward"))
def attention(q, k, v):
    s = q @ scaled(k).swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return jax.nn.softmax(s, axis=-1) @ v

WRONG = 1.5
"""
MLX = """
import mlx.core as mx
from attn_spec import kernel

@mx.custom_function
def scaled(x):
    return x * 1

scaled.vjp(lambda _, gradient, __: gradient * WRONG)

@kernel(framework="mlx", dtypes=("float32",), contract="fused", supports=("dv", "cross", "backward"))
def attention(q, k, v):
    s = q @ scaled(k).swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return mx.softmax(s, axis=-1) @ v

WRONG = 1.5
"""
DIFFERENTIATED = {"numpy": NUMPY, "torch": TORCH, "jax": JAX, "mlx": MLX}
GRADIENTS = {
    "a measured call": "gradients.query_and_key_gradients_are_within_their_bounds",
    "two calls compared": "gradient_laws.q_and_k_have_one_inner_product_with_their_gradients",
}


def wrong(source, property_id, folder):
    """Return the script of a case of a kernel, and the kernel's file."""
    path = folder / "mine.py"
    path.write_text(source)
    subject = Subject(resolve("mine.py"), "float32")
    _, case = search(load_all()[property_id], subject, PROFILES["ci"], 0)
    return str(script.write(case, load_all()[property_id], subject, folder / "script.py")), path


def run_alone(written, monkeypatch):
    """Run a script where there is no attn-spec, and return its exit status."""
    sys.modules.pop("mine", None)
    monkeypatch.setitem(sys.modules, "attn_spec", None)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(written, run_name="__main__")
    return left.value.code


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("framework", "property_id"),
    [
        ("numpy", GRADIENTS["a measured call"]),
        ("torch", GRADIENTS["a measured call"]),
        ("mlx", GRADIENTS["a measured call"]),
        pytest.param("jax", GRADIENTS["a measured call"], marks=pytest.mark.exhaustive),
        ("numpy", GRADIENTS["two calls compared"]),
        ("torch", GRADIENTS["two calls compared"]),
    ],
)
def test_a_script_of_gradients_needs_the_kernel_alone(framework, property_id, folder, capsys, monkeypatch):
    written, path = wrong(DIFFERENTIATED[framework], property_id, folder)

    for text, code in OUTCOMES:
        assert run_alone(written, monkeypatch) == code
        assert text in capsys.readouterr().out
        path.write_text(path.read_text().replace("WRONG = 1.5", "WRONG = 1"))


def test_a_kernel_that_attn_spec_builds_needs_it(folder, monkeypatch):
    written, path = wrong(NUMPY, GRADIENTS["a measured call"], folder)
    path.write_text(NUMPY.replace("@kernel(", "@kernel(builds=True, "))

    assert run_alone(written, monkeypatch).startswith("attn-spec builds this kernel for each signature; install it")


def test_a_kernel_in_a_shared_library_needs_attn_spec(folder, monkeypatch):
    written, path = wrong(NUMPY, GRADIENTS["a measured call"], folder)
    path.write_text('from attn_spec import c_kernel\n\nattention = c_kernel("attention.so", "int attention()")\n')

    assert run_alone(written, monkeypatch).startswith("attn-spec calls this kernel in a shared library; install it")


#: Attention that writes into tensors it is given; if WRONG, it leaves the last row.
WRITING = """
import numpy as np
from attn_spec import kernel

WRONG = True

@kernel(framework="numpy", dtypes=("float32",), contract="fused", destinations={"output": "out"})
def attention(q, k, v, *, out):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    whole = slice(q.shape[2] - WRONG)
    out[:, :, whole] = ((p / p.sum(-1, keepdims=True)) @ v)[:, :, whole]
"""


def test_a_script_reads_what_a_kernel_writes(folder, capsys):
    path = folder / "mine.py"
    path.write_text(WRITING)
    subject = Subject(resolve("mine.py"), "float32")
    _, case = search(PROPERTY, subject, PROFILES["smoke"], 0)
    written = script.write(case, PROPERTY, subject, folder / "script.py")

    check_outcomes(written, path, capsys)
