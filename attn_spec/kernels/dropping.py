"""Calls of a kernel with dropout on: with a probability p, and with seeds if the kernel takes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.subject import Subject


class _Asking:
    """Calls of a kernel with p and, if it takes a seed, a new seed for each call. Each call so draws a mask of its own.

    A presentation may call the kernel once for each head or batch entry.
    """

    def __init__(self, kernel: Kernel, p: float, seed: int | None) -> None:
        self.kernel, self.asked = kernel, {kernel.keyword("dropout_by_chance"): p}
        self.seeds = None if seed is None else itertools.count(seed)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Call the kernel with p and the next seed."""
        if self.seeds is not None:
            self.asked[self.kernel.keyword("dropout_seed")] = next(self.seeds)
        return self.kernel(*tensors, **{**options, **self.asked})

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the kernel's own backward function, called with the p and seed of the latest forward call."""
        return lambda *tensors, **options: function(*tensors, **{**options, **self.asked})


def dropping(subject: Subject, p: float, seed: int | None = None) -> Subject:
    """Return the subject whose calls drop each weight with probability p, with seeds from ``seed`` on if it is given.

    The kernel must declare "dropout_by_chance", and "dropout_seed" if a seed is given.
    """
    asking, own = _Asking(subject.kernel, p, seed), subject.kernel.backward_function
    backward = None if own is None else asking.backward(own)
    return replace(subject, kernel=replace(subject.kernel.wrapped(asking), backward_function=backward))


def needs_seed(kernel: Kernel) -> bool:
    """Return whether the kernel requires a seed: it has no default, or a default other than None."""
    if "dropout_seed" not in kernel.supports:
        return False
    parameter = kernel.parameters.get(kernel.keyword("dropout_seed"))
    return parameter is not None and parameter.default is not None
