"""Tensors of several dtypes in one call: a float32 bias beside half inputs, an output or gradients wider than they."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel
from attn_spec.contract.presets import EAGER

from .parts import HALVES, for_query_heads, hidden, sigma_of
from .scores import WIDE

_OPTIONS = ("bias", "causal", "mask", "scale", "gqa", "dv", "cross", "backward")


def _weights(q: Tensor, s: Tensor, bias: Tensor | None, **seen: Any) -> Tensor:
    """Compute the softmax over the keys that a query sees, of scores plus the bias."""
    dark = hidden(q, s.mT, **seen)
    if bias is not None:
        s, dark = s + bias, dark | (bias == -torch.inf)
    return s.masked_fill(dark, -torch.inf).float().softmax(-1).masked_fill(dark, 0.0)


def _in_float32(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, **seen: Any) -> Tensor:
    q, k, v = (x.float() for x in (q, k, v))
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    return _weights(q, q @ k.mT * sigma_of(q, scale), bias, **seen) @ v


@kernel(framework="torch", dtypes=HALVES, contract=WIDE, supports=_OPTIONS, option_dtypes={"bias": "float32"})
def float32_bias(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, **seen: Any
) -> Tensor:
    """Attend as T5 under autocast: the relative position bias is a float32 parameter, and all is float32 inside."""
    return _in_float32(q, k, v, bias, scale, **seen).to(q.dtype)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(EAGER, softmax="work", exponent="natural"),
    supports=_OPTIONS,
    option_dtypes={"bias": "float32"},
)
def narrowed_bias(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, **seen: Any
) -> Tensor:
    """Attend by scores in half, to which a float32 bias is rounded before it is added."""
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    return (
        _weights(q, q @ k.mT * sigma_of(q, scale), None if bias is None else bias.to(q.dtype), **seen).to(v.dtype) @ v
    )


@kernel(framework="torch", dtypes=HALVES, contract=replace(WIDE, output="work"), supports=_OPTIONS)
def float32_output(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, **seen: Any
) -> Tensor:
    """Return a partial result for a later merge: float32 from half inputs, whose gradients are half again."""
    return _in_float32(q, k, v, bias, scale, **seen)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=replace(WIDE, gradients="work"),
    supports=("causal", "mask", "scale", "dv", "cross"),
)
def float32_gradients(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **seen: Any) -> Tensor:
    """Attend to half inputs whose gradients a trainer adds to those of other batches, in float32."""
    return _in_float32(q, k, v, None, scale, **seen).to(q.dtype)


@float32_gradients.backward
def _float32_gradients(dout: Tensor, *saved: Any, scale: float | None = None, **seen: Any) -> dict[str, Tensor]:
    q, k, v, dout = (x.float() for x in (*saved[:3], dout))
    sigma = sigma_of(q, scale)
    P, dP = _weights(q, q @ k.mT * sigma, None, **seen), dout @ v.mT
    dS = P * (dP - (P * dP).sum(-1, keepdim=True))
    return {"dq": dS @ k * sigma, "dk": dS.mT @ q * sigma, "dv": P.mT @ dout}
