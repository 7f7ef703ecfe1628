"""Checks of the results of a kernel: anything but the tensors that it must return is a misbehaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attn_spec.faults import with_article
from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.numbers import bits
from attn_spec.problem.quantities import DIFFERENTIABLE


def parts(returned: Any) -> dict[Any, Any]:
    """Return the parts of a result by their names or places; one that is no dict, tuple or list has the place 0."""
    if isinstance(returned, Mapping):
        return {str(name): x for name, x in returned.items()}
    return dict(enumerate(returned if isinstance(returned, tuple | list) else (returned,)))


def out_and_lse(returned: Any) -> tuple[Any, Any]:
    """Return the output and the second result of a call, None if there is no second. Raises :class:`Misbehaviour`."""
    if not isinstance(returned, tuple):
        return returned, None
    if len(returned) != 2:
        raise Misbehaviour(f"the kernel returned {_kind(returned)}; it must return out or (out, lse)")
    return returned[0], returned[1]


def gradients(returned: Any, names: Sequence[str], order: Sequence[str] = DIFFERENTIABLE) -> dict[str, Any]:
    """Return the results of a backward function by input: from a tuple in ``order``, or from a dict by name.

    Gradients of ``names`` must be there. Raises :class:`Misbehaviour`.
    """
    wanted = order[: 1 + max(map(order.index, names), default=-1)]
    if isinstance(returned, Mapping):
        if missing := [f"d{name}" for name in names if f"d{name}" not in returned]:
            found = ", ".join(map(str, returned))
            raise Misbehaviour(f"the kernel's backward returned a dict of {found}, without {', '.join(missing)}")
        return {name: returned.get(f"d{name}") for name in order}
    if not isinstance(returned, tuple | list) or len(returned) < len(wanted):
        listed = ", ".join(f"d{name}" for name in wanted)
        raise Misbehaviour(
            f"the kernel's backward returned {_kind(returned)}; it must return ({listed}), or a dict of them"
        )
    return dict(zip(order, returned, strict=False))


def values(
    name: str, tensor: Any, *, shape: tuple[int, ...], dtype: str | None, own: Framework, device: str
) -> bits.Values:
    """Return the exact values of a tensor of the framework ``own``. Raises :class:`Misbehaviour`.

    The tensor must have the type, shape, dtype and device that are asked for; ``dtype=None`` allows any dtype.
    """
    if not own.is_own(tensor):
        found, wanted = with_article(type(tensor).__name__), with_article(own.tensor_type.__name__)
        raise Misbehaviour(f"{name} is {found}; it must be {wanted}")
    if tuple(tensor.shape) != shape:
        raise Misbehaviour(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
    if dtype is not None and own.dtype_of(tensor) != dtype:
        must = f"it must be {dtype}, the inputs' dtype unless another one is declared"
        raise Misbehaviour(f"{name} has dtype {own.dtype_of(tensor)}; {must}")
    if own.device_of(tensor) != device.partition(":")[0]:
        where = own.device_of(tensor)
        raise Misbehaviour(f"{name} is on device {where}; it must be on {device}, the inputs' device")
    return own.take(tensor).astype(np.float64)


def _kind(returned: Any) -> str:
    """Return the type of a returned object, and the length of a tuple or list, as a text."""
    of = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
    return f"{with_article(type(returned).__name__)}{of}"
