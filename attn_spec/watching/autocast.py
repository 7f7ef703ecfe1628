"""PyTorch's autocast, which rounds the operands of some functions before they compute."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def dtype_of(passed: Mapping[str, Any]) -> Any:
    """Return the dtype to which autocast rounds the tensors of a call, or None if it is off or they have that dtype."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    tensors = [x for x in passed.values() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    kinds = {x.device.type for x in tensors if torch.is_autocast_enabled(x.device.type)}
    for kind in kinds:
        cast = torch.get_autocast_dtype(kind)
        if any(x.dtype not in (cast, torch.float64) for x in tensors):
            return cast
    return None


def rounded(x: Any, cast: Any) -> Any:
    """Return a tensor as autocast rounds it; others unchanged."""
    torch = sys.modules.get("torch")
    if cast is None or torch is None or not isinstance(x, torch.Tensor):
        return x
    return x.to(cast) if x.is_floating_point() and x.dtype != torch.float64 else x
