"""Changes of a call to the state that all code of a process shares are noted, and put back."""

import contextlib
import importlib
import math
import os
import random
import sys

import mlx.core as mx
import numpy as np
import pytest
import torch

from attn_spec.kernels.global_state import SETTINGS, GlobalState, of
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.plain_calls import plain

# torch's deterministic mode imports triton; without a GPU that must have been told by then that it is interpreted.
with contextlib.suppress(KernelError):
    resolve("triton_tiled")

#: Another value of each setting.
OTHERS = {
    "the working directory": "/",
    "Python's limit of recursion": 1234,
    "numpy.seterr": {"divide": "ignore", "over": "ignore", "under": "warn", "invalid": "ignore"},
    "torch's default dtype": torch.float64,
    "torch's number of threads": 3,
    "torch's precision of float32 products": "medium",
    "jax.config.jax_default_matmul_precision": "float32",
    "mlx's default device": mx.Device(mx.cpu, 1),
}
DRAWS = {
    "Python's random state": random.random,
    "NumPy's random state": np.random.rand,
    "torch's random state": lambda: torch.rand(1),
    "mlx's random state": mx.random.uniform,
}


def read(setting):
    return setting.read(importlib.import_module(setting.module))


@pytest.mark.parametrize("setting", [row for row in SETTINGS if row.write is not None], ids=lambda row: row.name)
def test_a_setting_is_put_back(setting):
    module, before, state = importlib.import_module(setting.module), read(setting), GlobalState()
    other = OTHERS.get(setting.name, not before)

    with state.restoring():
        setting.write(module, other)
        assert read(setting) == other

    assert read(setting) == before
    (noted,) = [change for change in state.changes if change.startswith(setting.name)]
    assert noted == f"{setting.name}: {before} became {other}, put back"


@pytest.mark.parametrize("name", DRAWS)
def test_a_random_state_is_left_as_it_is(name):
    state = GlobalState()
    (setting,) = (row for row in SETTINGS if row.name == name)

    with state.restoring():
        DRAWS[name]()
        after = read(setting)

    assert read(setting) == after
    assert list(state.changes) == [f"{name}, left so"]


def test_what_is_rebound_is_bound_again():
    state, exp, add, exponential = GlobalState(), math.exp, torch.Tensor.__add__, np.exp

    def call():
        math.exp, np.exp, torch.Tensor.__add__ = math.log, np.exp2, torch.Tensor.__sub__
        del math.log
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), state.restoring():
        call()

    assert (math.exp, np.exp, torch.Tensor.__add__) == (exp, exponential, add)
    assert math.log(1) == 0
    names = ("math.exp", "math.log", "numpy.exp", "torch.Tensor.__add__")
    assert sorted(state.changes) == [f"{name} rebound, put back" for name in names]


def test_a_library_that_imports_more_of_itself_may_change(monkeypatch):
    state, first = GlobalState(), np.exp

    with state.restoring():
        monkeypatch.setitem(sys.modules, "numpy.part_of_a_test", math)
        np.exp = np.exp2
    late, np.exp = np.exp, first

    assert late is np.exp2
    assert not state.changes


def test_variables_of_the_environment_are_put_back(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.delenv("NEW", raising=False)
    state = GlobalState()

    with state.restoring():
        os.environ["KEPT"], os.environ["NEW"] = "2", "3"

    assert os.environ["KEPT"] == "1"
    assert "NEW" not in os.environ
    assert list(state.changes) == [f"the environment variable {name}, put back" for name in ("KEPT", "NEW")]


def test_a_call_that_changes_nothing_leaves_no_note():
    state = GlobalState()

    with state.restoring():
        torch.nn.functional.scaled_dot_product_attention(*torch.zeros(3, 1, 1, 2, 2))

    assert not state.changes


STATEFUL = """
import torch

def attention(q, k, v):
    if torch.get_default_dtype() != torch.float32:
        raise RuntimeError("not as it was")
    torch.set_default_dtype(torch.float64)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


def test_a_kernel_in_this_process_meets_what_was_there_before(folder):
    folder.joinpath("stateful.py").write_text(STATEFUL)
    kernel = resolve("stateful.py:attention", framework="torch", contract="fused", dtypes=("float32",))

    for _ in range(2):
        Subject(kernel, "float32")(plain(kernel, "float32"))

    assert "torch's default dtype: torch.float32 became torch.float64, put back" in of(kernel.spec).changes
    assert of(resolve("numpy_naive").spec) is None


def test_the_certificate_and_the_terminal_say_what_calls_changed(attn_spec, folder):
    folder.joinpath("stateful.py").write_text(STATEFUL)
    chosen = ("--property", "accuracy.output", "--dtype", "float32", "--json")
    done = attn_spec("certify", "stateful.py:attention", *chosen)

    assert done.returncode == 0, done.stderr
    assert '"torch\'s default dtype: torch.float32 became torch.float64, put back"' in done.stdout
