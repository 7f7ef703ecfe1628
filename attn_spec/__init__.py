"""attn-spec: certify attention kernels against an arbitrary-precision oracle, with derived error bounds.

Importing this package imports neither torch nor hypothesis: names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_spec.contract import Contract as Contract
    from attn_spec.kernels import Conventions as Conventions
    from attn_spec.kernels import Kernel as Kernel
    from attn_spec.kernels import kernel as kernel
    from attn_spec.problem import Problem as Problem
    from attn_spec.regimes import Recipe as Recipe

__version__ = "0.1.0"

_HOMES = {
    "Contract": "contract",
    "Conventions": "kernels",
    "Kernel": "kernels",
    "Problem": "problem",
    "Recipe": "regimes",
    "kernel": "kernels",
}
__all__ = ["Contract", "Conventions", "Kernel", "Problem", "Recipe", "kernel"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attn_spec' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attn_spec.{_HOMES[name]}"), name)
