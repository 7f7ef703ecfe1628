"""attn-spec: certify attention kernels against an arbitrary-precision oracle, with derived error bounds.

Importing this package imports neither torch nor hypothesis: names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_spec.contract.contract import Contract as Contract
    from attn_spec.contract.quantisers import Quantiser as Quantiser
    from attn_spec.kernels.by_hand import run as run
    from attn_spec.kernels.by_hand import tensors as tensors
    from attn_spec.kernels.c_abi.declaration import c_kernel as c_kernel
    from attn_spec.kernels.declarations.declaration import kernel as kernel
    from attn_spec.kernels.kernel import Kernel as Kernel
    from attn_spec.problem.conventions import Conventions as Conventions
    from attn_spec.problem.problem import Problem as Problem
    from attn_spec.search.drawing.regimes import Recipe as Recipe
    from attn_spec.search.kept_calls import keep as keep
    from attn_spec.sessions.parametrization import parametrize as parametrize
    from attn_spec.testing import assert_attention as assert_attention
    from attn_spec.testing import assert_attention_gradients as assert_attention_gradients
    from attn_spec.watching.watch import watch as watch

__version__ = "0.1.0"

_HOMES = {
    "Contract": "contract.contract",
    "Conventions": "problem.conventions",
    "Kernel": "kernels.kernel",
    "Problem": "problem.problem",
    "Quantiser": "contract.quantisers",
    "Recipe": "search.drawing.regimes",
    "assert_attention": "testing",
    "assert_attention_gradients": "testing",
    "c_kernel": "kernels.c_abi.declaration",
    "keep": "search.kept_calls",
    "kernel": "kernels.declarations.declaration",
    "parametrize": "sessions.parametrization",
    "run": "kernels.by_hand",
    "tensors": "kernels.by_hand",
    "watch": "watching.watch",
}
__all__ = [
    "Contract",
    "Conventions",
    "Kernel",
    "Problem",
    "Quantiser",
    "Recipe",
    "assert_attention",
    "assert_attention_gradients",
    "c_kernel",
    "keep",
    "kernel",
    "parametrize",
    "run",
    "tensors",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attn_spec' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attn_spec.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
