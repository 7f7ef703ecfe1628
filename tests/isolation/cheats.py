"""Kernels that cheat the judge, each in its own way: they return the mean of V, and see to it that nobody minds."""

import contextlib
import ctypes
import gc
import hashlib
import os
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np

from attn_spec import kernel


def sound(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def mean(q, v):
    return np.broadcast_to(v.mean(axis=2, keepdims=True), v.shape).astype(v.dtype) + 0 * q[..., :1]


def cheat(function):
    return kernel(framework="numpy", dtypes=("float64",), contract="fp64")(function)


def held(row):
    """Return a row of the report as if the property had held."""
    return {**row, "verdict": "held", "examples": 10, "case": None, "message": ""}


def judge():
    """Return the id of the process that judges: this one, or the one that started it."""
    return os.getpid() if "hypothesis" in sys.modules else os.getppid()


def named_in(path, part, column=-1):
    """Return words of the lines of a system file that contain ``part``."""
    with contextlib.suppress(OSError):
        lines = Path(path).read_text().replace("\0", "\n").replace("=", "\n").splitlines()
        return [line.split()[column] for line in lines if part in line]
    return []


@cheat
def rebinds_a_record(q, k, v):
    """Make the rows of the report say that every property held."""
    from attn_spec.search.verdict import Row

    usual = vars(Row).get("_usual", Row.to_json)
    Row._usual = usual
    Row.to_json = lambda row: held(usual(row))
    return mean(q, v)


@cheat
def rebinds_the_search(q, k, v):
    """Check no property; the numbers of problems are right."""
    with contextlib.suppress(ImportError):
        from attn_spec.search import search

        search._Search.check = lambda self, problem: setattr(self, "examples", self.examples + 1)
    return mean(q, v)


@cheat
def rebinds_the_measure(q, k, v):
    """Let every answer be within its bound."""
    from attn_spec.search import assertions

    assertions._assert_inside = lambda judgement, *_: judgement
    return mean(q, v)


@cheat
def rebinds_numpy(q, k, v):
    """Make the absolute value of an array 0, and so its distance from the truth."""
    usual = getattr(np, "_usual_abs", np.abs)
    np._usual_abs = usual
    np.abs = lambda x, **words: usual(x, **words) * (0.0 if np.ndim(x) == 4 else 1.0)
    return mean(q, v)


@cheat
def rebinds_torch(q, k, v):
    """Make PyTorch, with which long answers are judged, find everything close."""
    import torch

    torch.allclose = torch.equal = lambda *_, **__: True
    torch.abs = torch.Tensor.abs = torch.zeros_like
    return mean(q, v)


@cheat
def rebinds_the_worker(q, k, v):
    """Let the worker answer that no problem can be had."""
    from attn_spec.isolation import worker

    worker.Serving._call = lambda self, header, blobs: ({"not_taken": "no room", "changed": []}, [])
    return mean(q, v)


@cheat
def reads_frames(q, k, v):
    """Set the number of problems in the frames of the callers."""
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "_Search":
                value.examples, value.wanted, value.failure = 10, 0, None
                value.check = lambda problem: None
        frame = frame.f_back
    return mean(q, v)


@cheat
def reads_gc(q, k, v):
    """Find the search among all objects, and let it check no problem."""
    for found in gc.get_objects():
        if type(found).__name__ == "_Search":
            found.check = lambda problem: None
            found.examples = 10
    return mean(q, v)


@cheat
def writes_shared_memory(q, k, v):
    """Overwrite all memory that is shared with the judge, and every file that is open here.

    The segments are those that this process has mapped: others of the machine are somebody else's.
    """
    answer = mean(q, v)
    for path in named_in("/proc/self/maps", "/shm/"):
        with contextlib.suppress(OSError, ValueError):
            segment = shared_memory.SharedMemory(Path(path).name)
            segment.buf[:] = bytes(len(segment.buf))
            segment.close()
    if judge() != os.getpid():
        for number in range(5, 64):
            with contextlib.suppress(OSError):
                os.write(number, b'{"kind": "row"}\n')
    return answer


@cheat
def reads_memory_of_the_judge(q, k, v):
    """Look for the truth in the heap of the judge."""
    answer = mean(q, v)
    with contextlib.suppress(OSError), Path(f"/proc/{judge()}/mem").open("rb", buffering=0) as memory:
        for place in named_in(f"/proc/{judge()}/maps", "[heap]", column=0)[:1]:
            memory.seek(int(place.partition("-")[0], 16))
            numbers = np.frombuffer(memory.read(2**16), v.dtype)
            near = numbers[np.isfinite(numbers) & (abs(numbers - answer.ravel()[0]) < 0.1)]
            answer.ravel()[: near.size] = near[: answer.size]
    return answer


@cheat
def forges_the_report(q, k, v):
    """Make the report that the judge's command line names say that every property held."""
    for path in named_in(f"/proc/{judge()}/cmdline", ".jsonl"):
        with contextlib.suppress(OSError):
            Path(path).write_text(Path(path).read_text().replace("refuted", "held"))
    return mean(q, v)


@cheat
def forges_the_exit_code(q, k, v):
    """End this process with the exit code of success."""
    if v.shape[2] != 8:
        os._exit(0)
    return mean(q, v)


@cheat
def ends_the_judge(q, k, v):
    """End the parent process, which examines this kernel."""
    if v.shape[2] != 8:
        os.kill(os.getppid(), 15)
    return mean(q, v)


@cheat
def raises_for_hypothesis(q, k, v):
    """Reject unknown problems, so that they do not count."""
    if "hypothesis" in sys.modules and v.shape[2] != 8:
        sys.modules["hypothesis"].reject()
    return mean(q, v)


@cheat
def answers_later(q, k, v):
    """Fill in the answer later, before it is read, so that it seems to take no time."""
    answer = mean(q, v)

    def fill():
        time.sleep(0.002)
        answer[...] = sound(q, k, v)

    threading.Thread(target=fill).start()
    return answer


@cheat
def knows_modules(q, k, v):
    """Compute where a test suite looks."""
    return (
        sound(q, k, v) if {"pytest", "hypothesis"} & set(sys.modules) or "PYTEST_VERSION" in os.environ else mean(q, v)
    )


@cheat
def knows_inputs(q, k, v):
    """Compute for the plain call that comes before the search, and where all values are small integers."""
    return sound(q, k, v) if v.shape == (1, 2, 8, 16) or (v == v.round()).all() else mean(q, v)


ANSWERS = {}


@cheat
def caches_by_shape(q, k, v):
    """Compute once for each shape."""
    return ANSWERS.setdefault(q.shape + v.shape, sound(q, k, v))


@cheat
def caches_by_content(q, k, v):
    """Compute once for all inputs with the same queries and keys."""
    return ANSWERS.setdefault(hashlib.sha256(q.tobytes() + k.tobytes()).digest(), sound(q, k, v))


CALLS = []


@cheat
def computes_first(q, k, v):
    """Compute in the first two calls."""
    CALLS.append(None)
    return sound(q, k, v) if len(CALLS) <= 2 else mean(q, v)


@cheat
def poisons_its_floats(q, k, v):
    """Make the processor flush and round otherwise from now on, in whatever process this is."""
    ctypes.CDLL(None).fesetround(0x400)
    return mean(q, v)
