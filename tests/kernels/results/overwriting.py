"""Kernels that return memory of their own, or memory that the next call overwrites; in NumPy and in PyTorch."""

import numpy as np
import torch

from attn_spec import kernel

BUFFERS = {}


def weighted(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def declare(function):
    return kernel(framework="numpy", dtypes=("float32",), contract="fp32")(function)


@declare
def fresh(q, k, v):
    if k.shape[2] == 7:
        raise ValueError("seven keys")
    return weighted(q, k, v)


@declare
def one_buffer(q, k, v):
    out = weighted(q, k, v)
    BUFFERS.setdefault(out.shape, out)[...] = out
    return BUFFERS[out.shape]


@declare
def resized(q, k, v):
    out = weighted(q, k, v)
    before = BUFFERS.setdefault("resized", out)
    if before is not out:
        before.shape = (before.size,)
    BUFFERS["resized"] = out
    return out


def attention_with(stored):
    """Return an attention function whose weights, saved for its backward pass, are what ``stored`` makes of them."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            weights = stored(torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1))
            ctx.saved = q, k, v, weights
            return weights @ v

        @staticmethod
        def backward(ctx, dout):
            q, k, v, weights = ctx.saved
            dweights = dout @ v.mT
            dscores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
            return dscores @ k, dscores.mT @ q, weights.mT @ dout

    @kernel(framework="torch", dtypes=("float32",), contract="fp32", supports=("backward",))
    def attention(q, k, v):
        return Attention.apply(q, k, v)

    return attention


def in_one_workspace(weights):
    kept = BUFFERS.setdefault(weights.shape, weights)
    return kept.copy_(weights)


saved = attention_with(lambda weights: weights)
workspace = attention_with(in_one_workspace)
