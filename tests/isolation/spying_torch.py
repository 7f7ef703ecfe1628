"""Kernels of PyTorch that report, in their answers, the layout of their inputs."""

import torch

from attn_spec import kernel


def of(framework, **facts):
    return kernel(framework=framework, dtypes=("float32",), contract="fp32", **facts)


@of("torch")
def weights(q, k, v):
    p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return p @ v, p


@weights.backward
def weights_backward(dout, q, k, v, out, p):  # noqa: PLR0917 -- as every backward function
    assert p.shape == (*q.shape[:3], k.shape[2])
    dp = dout @ v.mT
    ds = p * (dp - (dout * out).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
    return ds @ k, ds.mT @ q, p.mT @ dout


KEPT = []


def _same_place(address):
    same = address in KEPT[-1:]
    KEPT.append(address)
    return float(same)


@of("torch")
def memory(q, k, v):
    """Return whether q has the address of the call before, and its strides but the first."""
    answer = torch.zeros(v.shape, dtype=v.dtype)
    answer.view(-1)[:4] = torch.tensor([_same_place(q.data_ptr()), *q.stride()[1:]])
    return answer
