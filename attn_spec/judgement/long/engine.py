"""Engines that evaluate formulas in float64: NumPy, or PyTorch on a CPU or a GPU, by one code in the array API.

What is assumed of an engine is what ``row_sum_bounds.EVALUATION`` says: with u = 2^-53, an exponential is off by
``exp_error`` u of itself, a logarithm by ``log_error`` u (1 + |log|), a tanh by ``tanh_error`` u, and a product of
matrices over n by gamma_n |A| |B|, in any order of its sums (Higham, *Accuracy and Stability of Numerical Algorithms*,
section 3.5). A cuBLAS that is told to emulate float64 by integers (CUBLAS_EMULATE_DOUBLE_PRECISION) is not covered.
``tests/judgement/test_engine.py`` measures all of this.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


class EngineError(ValueError):
    """An engine that there is not; the text names those that there are."""


@dataclass(frozen=True)
class Engine:
    """A library of arrays on a device."""

    name: str
    #: From a NumPy array to one of the engine, float64 or bool, and back.
    give: Callable[[np.ndarray], Any]
    take: Callable[[Any], np.ndarray]


NUMPY = Engine("numpy", give=lambda x: x, take=lambda x: x)


def engine_of(name: str) -> Engine:
    """The engine "numpy", "torch", or "torch:DEVICE", as "torch:cuda". Raises :class:`EngineError`."""
    library, _, device = name.partition(":")
    if name == "numpy":
        return NUMPY
    if library != "torch" or (device or "cpu").partition(":")[0] not in ("cpu", "cuda"):
        raise EngineError(f"no engine is called {name!r}; write numpy, torch, torch:cuda or torch:cuda:N")
    if importlib.util.find_spec("torch") is None:
        raise EngineError(f"engine {name!r} needs PyTorch, which is not installed; choose numpy")
    return _torch(name, device or "cpu")


def _torch(name: str, device: str) -> Engine:
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        raise EngineError(f"engine {name!r} needs a CUDA device, and none is available to torch; choose torch or numpy")
    return Engine(
        name,
        # Broadcast arrays have strides of 0, and read-only ones warn.
        give=lambda x: torch.from_numpy(np.array(x, order="C")).to(device),
        take=lambda x: x.cpu().numpy(),
    )
