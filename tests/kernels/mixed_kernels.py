"""Kernels of queries in one dtype and a cache in another, right and wrong, as people write them in PyTorch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attn_spec import kernel

#: Rows of dtypes: the cache is narrower; neither has all numbers of the other; three dtypes, of which q has the least.
MIXED = (
    {"q": "float32", "kv": "bfloat16"},
    {"q": "float16", "kv": "bfloat16"},
    {"q": "bfloat16", "k": "float32", "v": "float16"},
)
FACTS = {"framework": "torch", "contract": "fused", "supports": ("causal", "cross", "gqa", "dv", "lse", "backward")}
Change = Callable[..., Any]


def attend(q: Any, k: Any, v: Any, *, causal: bool, causal_alignment: str, weights: Change = lambda p: p) -> Any:
    """Return the output and the log-sum-exp of float32 inputs, whose ``weights`` may be changed."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.ones(s.shape[-2:], dtype=torch.bool)
    if causal:
        seen = seen.tril(s.shape[-1] - s.shape[-2] if causal_alignment == "bottom_right" else 0)
    s = s.masked_fill(~seen, -torch.inf)
    m = s.amax(-1, keepdim=True).detach()
    p = torch.exp(s - m)
    l = p.sum(-1, keepdim=True)
    return weights(p) @ v / l, (m + l.log())[..., 0]


@kernel(dtypes=MIXED, conventions={"masked_nonfinite": "may_leak"}, **FACTS)
def loads_the_cache(q, k, v, *, causal=False, causal_alignment="top_left"):
    out, lse = attend(q.float(), k.float(), v.float(), causal=causal, causal_alignment=causal_alignment)
    return out.to(q.dtype), lse


def rounds_queries(q, k, v, **options):
    out, lse = attend(q.to(k.dtype).float(), k.float(), v.float(), **{**_DEFAULTS, **options})
    return out.to(q.dtype), lse


def rounds_weights(q, k, v, **options):
    def narrow(p):
        return p.to(v.dtype).float()

    out, lse = attend(q.float(), k.float(), v.float(), **{**_DEFAULTS, **options}, weights=narrow)
    return out.to(q.dtype), lse


_DEFAULTS: dict[str, Any] = {"causal": False, "causal_alignment": "top_left"}


def with_function(function: Callable[..., Any], **facts: Any) -> Any:
    """Return the kernel that loads the cache, with another function and other facts."""
    return replace(loads_the_cache, function=function, name=function.__name__, **facts)
