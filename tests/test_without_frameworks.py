"""Features that work where no library of tensors but NumPy is installed, as in an environment that brings its own."""

import os
import subprocess
import sys

import pytest

#: Python runs it at the start of this process and of each that it starts.
BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        tensors = {"torch", "triton", "jax", "jaxlib", "mlx", "onnxruntime"}
        if name.partition(".")[0] in {*tensors, "matplotlib", "dask", "distributed"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
KERNEL = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",))
def attention(q, k, v):
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v
"""


@pytest.fixture
def run(folder):
    folder.joinpath("sitecustomize.py").write_text(BLOCK)
    folder.joinpath("mine.py").write_text(KERNEL)

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": ""}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)

    return run


def test_a_test_judges_answers_of_numpy(run):
    code = (
        "import sys, numpy as np, attn_spec, attn_spec.testing, mine\n"
        "q = np.random.default_rng(0).standard_normal((1, 2, 4, 8)).astype(np.float32)\n"
        "from attn_spec import *\n"
        "out = mine.attention(q, q, q)\n"
        "print(assert_attention(out, q, q, q, contract='fused').ratio < 1)\n"
        "try: assert_attention(out[:, :, ::-1], q, q, q)\n"
        "except AssertionError: print('refuted')\n"
    )
    done = run("-c", code)

    assert done.stdout == "True\nrefuted\n", done.stderr


def test_the_command_certifies_a_numpy_kernel(run):
    done = run("-m", "attn_spec", "certify", "mine.py:attention", "--property", "accuracy.output", "--workers", "1")

    assert "held           accuracy.output_is_within_its_bound" in done.stdout, done.stdout + done.stderr
    assert " 0 refuted" in done.stdout


def test_the_command_explains(run):
    code = (
        "from attn_spec.cli.command import main\n"
        "for words in ['--help'], ['explain', 'contracts'], ['properties', 'accuracy.output']:\n"
        "    main(words, standalone_mode=False)\n"
    )
    done = run("-c", code)

    assert "Report, with a proved bound" in done.stdout, done.stderr
    assert "Choose by what the kernel does" in done.stdout
    assert done.stdout.endswith("1 properties\n")


def test_a_report_that_needs_a_library_says_so(run):
    done = run("-m", "attn_spec", "teeth")

    assert done.returncode == 2
    assert done.stderr == "Error: teeth needs torch, which is not installed; pip install torch\n"
