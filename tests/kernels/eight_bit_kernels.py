"""Kernels of bfloat16 queries and a cache of 8 bits, right and wrong: the paged one of the tree, a plain rectangle."""

from dataclasses import replace
from typing import Any

import torch

from attn_spec import kernel
from attn_spec.contract.presets import FUSED
from attn_spec.kernels.declarations.declaration_checks import check
from implementations import torch_paged

from .mixed_kernels import attend

CACHES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
EIGHT = tuple(f"q:bfloat16,kv:{cache}" for cache in CACHES)


@kernel(
    framework="torch",
    dtypes=EIGHT,
    contract="fused",
    supports=("causal", "cross", "gqa", "dv", "lse"),
    conventions={"masked_nonfinite": "may_leak"},
)
def rectangle(q, k, v, *, causal=False, causal_alignment="top_left"):
    out, lse = attend(q.float(), k.float(), v.float(), causal=causal, causal_alignment=causal_alignment)
    return out.to(q.dtype), lse


def _paged(name: str, loaded: Any) -> Any:
    """Return the paged kernel, which is given what ``loaded`` makes of queries and caches."""
    own = torch_paged.attention.function

    def around(q, k, v, **options):
        out, lse = own(*loaded(q, k, v), **options)
        return out.to(q.dtype), lse

    made = replace(torch_paged.attention.wrapped(around), name=name, dtypes=EIGHT, contract=FUSED)
    check(made)
    return made


paged = _paged("paged", lambda q, k, v: (q, k.to(q.dtype), v.to(q.dtype)))
rounds_queries = _paged("rounds_queries", lambda q, k, v: (q.to(k.dtype).to(q.dtype), k.to(q.dtype), v.to(q.dtype)))
swaps_formats = _paged(
    "swaps_formats", lambda q, k, v: (q, k.view(torch.float8_e5m2).to(q.dtype), v.view(torch.float8_e5m2).to(q.dtype))
)
