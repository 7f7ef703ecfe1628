"""Engines that evaluate formulas in float64: NumPy, or PyTorch on a CPU or a GPU, by one code in the array API.

An engine must keep the errors that ``row_sum_bounds.EVALUATION`` states, with u = 2^-53:
- an exponential has a relative error of at most ``exp_error`` u;
- a logarithm has an error of at most ``log_error`` u (1 + |log|), and a tanh of at most ``tanh_error`` u;
- a product of matrices over n has an error of at most gamma_n |A| |B|, in any order of its sums.

Source of the last: Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.5. A cuBLAS set to emulate
float64 by integers (CUBLAS_EMULATE_DOUBLE_PRECISION) is not covered. All three are
measured by ``tests/judgement/long/test_engine.py``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


class EngineError(ValueError):
    """An engine does not exist here; the message names the engines that do."""


@dataclass(frozen=True)
class Engine:
    """A library of arrays on a device."""

    name: str
    #: Function from a NumPy array, float64 or bool, to an array of the engine.
    give: Callable[[np.ndarray], Any]
    #: Function from an array of the engine to a NumPy array.
    take: Callable[[Any], np.ndarray]


NUMPY = Engine("numpy", give=lambda x: x, take=lambda x: x)


def engine_of(name: str) -> Engine:
    """Return the engine "numpy", "torch", or "torch:DEVICE", as "torch:cuda". Raises :class:`EngineError`."""
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
