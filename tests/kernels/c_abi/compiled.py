"""Shared libraries that the system's compiler makes of the C files of this folder, and kernels in them."""

import atexit
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from attn_spec import c_kernel

FOLDER = Path(__file__).parent
#: Folder of what the compiler makes, until the tests end.
MADE = mkdtemp()
atexit.register(shutil.rmtree, MADE, ignore_errors=True)
#: Mark of a test that compiles.
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler cc")

ATTENTION = """
int attention(const {number} *q, const {number} *k, const {number} *v, {number} *out, float *lse, int64_t B, int64_t Hq,
              int32_t Hkv, int64_t Sq, size_t Sk, int64_t D, int64_t Dv, float scale, int causal);
"""


@cache
def library(source, *flags):
    """Return the library of a C file of this folder, which the compiler is given ``flags`` for."""
    made = Path(mkdtemp(dir=MADE)) / f"{Path(source).stem}.so"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *flags, "-o", made, FOLDER / source, "-lm"]
    subprocess.run(command, check=True)
    return made


def attention(*flags, number="float", dtypes=("float32",), **declared):
    """Return the kernel of ``attention.c``, compiled with ``flags``."""
    facts = {"contract": "eager", **declared}
    return c_kernel(library("attention.c", *flags), ATTENTION.format(number=number), dtypes=dtypes, **facts)
