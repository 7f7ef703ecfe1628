"""Plain linear attention, as libraries write it: in three einsums, in scores, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from attn_spec import Contract, kernel
from attn_spec.contract.presets import EAGER

from .parts import HALVES, for_query_heads, hidden

LINEAR = ("feature_map", "feature_epsilon")
ALWAYS: dict[str, Any] = {"always": ("feature_map",)}
#: Contract of kernels that round every result to the dtype of the inputs, except the row sum.
HALF = replace(EAGER, partial_outputs="input", row_sum="work")
WIDE = Contract(operands="work", subnormals="kept", kv_tile=1, normalize="before_product")


def features(x: Tensor, feature_map: str) -> Tensor:
    """Return phi(x) in the dtype of x."""
    return {"elu_plus_one": lambda x: elu(x) + 1, "relu": torch.relu, "exp": torch.exp}[feature_map](x)


@kernel(
    framework="torch", dtypes=("float32", "float64"), contract=WIDE, supports=(*LINEAR, "dv", "gqa", "cross"), **ALWAYS
)
def three_einsums(q: Tensor, k: Tensor, v: Tensor, *, feature_map: str, feature_epsilon: float | None = None) -> Tensor:
    """Compute the state, the sum of weights, and their quotient in one einsum (idiap/fast-transformers)."""
    a, b = features(q, feature_map), features(for_query_heads(k, q.shape[1]), feature_map)
    state = torch.einsum("bhjd,bhjv->bhdv", b, for_query_heads(v, q.shape[1]))
    inverse = 1 / (torch.einsum("bhid,bhd->bhi", a, b.sum(2)) + (feature_epsilon or 0.0))
    return torch.einsum("bhid,bhdv,bhi->bhiv", a, state, inverse)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=HALF,
    supports=(*LINEAR, "causal", "dv", "gqa", "cross", "backward"),
    **ALWAYS,
)
def scores_in_half(
    q: Tensor, k: Tensor, v: Tensor, *, feature_map: str, feature_epsilon: float | None = None, **seen: Any
) -> Tensor:
    """Attend by all weights as a matrix in half, divided by their sum, and autograd."""
    a, b = features(q, feature_map), features(for_query_heads(k, q.shape[1]), feature_map)
    w = (a @ b.mT).masked_fill(hidden(q, k, **seen), 0.0)
    return (w / (w.sum(-1, keepdim=True) + (feature_epsilon or 0.0))) @ for_query_heads(v, q.shape[1])


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=WIDE,
    supports=(*LINEAR, "dv", "gqa"),
    always=("feature_map", "causal"),
)
def step_by_step(q: Tensor, k: Tensor, v: Tensor, *, feature_map: str, feature_epsilon: float | None = None) -> Tensor:
    """Run a recurrent network: each step adds a key to the state and reads it (section 3.4 of arXiv 2006.16236)."""
    a, b = features(q, feature_map), features(for_query_heads(k, q.shape[1]), feature_map)
    values, rows = for_query_heads(v, q.shape[1]), []
    S, z = torch.zeros(*b.shape[:2], b.shape[3], v.shape[3]), torch.zeros(*b.shape[:2], b.shape[3])
    for i in range(q.shape[2]):
        S, z = S + b[:, :, i, :, None] * values[:, :, i, None, :], z + b[:, :, i]
        n = (a[:, :, i] * z).sum(-1, keepdim=True) + (feature_epsilon or 0.0)
        rows.append((a[:, :, i, None] @ S)[:, :, 0] / n)
    return torch.stack(rows, dim=2)
