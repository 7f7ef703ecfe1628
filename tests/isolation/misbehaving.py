"""Kernels that tests run in a process of their own."""

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from attn_spec import kernel


def sound(q, k, v, causal=False):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    if causal:
        s = np.where(np.triu(np.ones(s.shape[-2:], bool), 1), -np.inf, s)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def declare(function):
    return kernel(framework="numpy", dtypes=("float32", "float64"), contract="fp32", supports=("causal",))(function)


attention = declare(sound)


@declare
def in_place(q, k, v, causal=False):
    v *= 2
    return sound(q, k, v / 2, causal)


@declare
def at_work(q, k, v, causal=False):
    """Misbehave as the number of keys says."""
    return WAYS.get(k.shape[2], sound)(q, k, v)


@declare
def telling(q, k, v, causal=False):
    """Return, as bytes, what the process sees: arguments, open files, environment, modules of the judge, folder."""
    numbers = sorted(path.name for path in Path("/proc/self/fd").iterdir() if path.exists())
    names = [n for n in os.environ if n.startswith(("PYTEST", "HYPOTHESIS", "ATTN", "PWD", "OLDPWD"))]
    parts = ("search", "judgement", "evidence", "properties")
    judging = ("hypothesis", "pytest", *(f"attn_spec.{part}" for part in parts))
    modules = [name for name in sys.modules if name.startswith(judging)]
    lines = (str(sys.argv), " ".join(numbers), " ".join(names), " ".join(modules), str(Path.cwd()))
    data = "\n".join(lines).encode()
    answer = np.zeros(v.shape, v.dtype)
    answer.reshape(-1)[: len(data)] = list(data)
    answer.reshape(-1)[-1] = len(data)
    return answer


def leave(*_):
    sys.exit("bye")


def end(*_):
    sys.stderr.write("all is lost\n")
    sys.stderr.flush()
    os._exit(7)


def drown(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def crash_of_many_modules(*_):
    modules = ", ".join(f"module_{n}" for n in range(1000))  # as the interpreter lists them after a crash
    sys.stderr.write(f"the table is too small\nFatal Python error: Aborted\n\nExtension modules: {modules}\n")
    sys.stderr.flush()
    os._exit(7)


def crash_with_advice(*_):
    sys.stderr.write(
        "torch.AcceleratorError: CUDA error: no table\nSearch for it on the web.\nCompile with assertions.\n"
    )
    sys.stderr.flush()
    os._exit(7)


def crash(*_):
    ctypes.string_at(0)


def spin(*_):
    all(itertools.repeat(1))


def talk(q, k, v):
    os.write(1, b"x" * 3_000_000)
    return sound(q, k, v)


def fork(q, k, v):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    return np.full_like(sound(q, k, v), child)


def later(q, k, v):
    answer = np.zeros_like(sound(q, k, v))

    def fill():
        time.sleep(0.05)
        answer[...] = sound(q, k, v)

    threading.Thread(target=fill, daemon=True).start()
    return answer


def greedy(*_):
    return np.ones(2**33)


def unreadable(*_):
    os.write(4, b"no message" * 1000)
    time.sleep(60)


def no_tensor(*_):
    return {"out": 1}


def cut(q, k, v):
    return sound(q, k, v)[..., 1:]


WAYS = dict(
    enumerate(
        (
            *(leave, end, crash, spin, talk, fork, cut, greedy, unreadable, no_tensor, drown, later),
            *(crash_of_many_modules, crash_with_advice),
        ),
        start=11,
    )
)
