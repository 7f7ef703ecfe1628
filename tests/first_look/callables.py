"""Small callables that compute attention, in several forms and conventions, and how they are declared."""

import jax
import numpy as np
import torch

from attn_spec import kernel
from attn_spec.kernels.subject import Subject


def scores(q, k):
    return q @ k.mT * q.shape[-1] ** -0.5


def attend(q, k, v, hidden=None):
    s = scores(q, k)
    return (s if hidden is None else s.masked_fill(hidden, -torch.inf)).softmax(-1) @ v


def distances(q, k, corner):
    shift = k.shape[2] - q.shape[2] if corner == "bottom_right" else 0
    return torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - shift


def causal(corner):
    def attention(q, k, v, *, causal=False):
        return attend(q, k, v, distances(q, k, corner) > 0 if causal else None)

    return attention


def bshd(q, k, v):
    return attend(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def bshd_with_lse(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attend(q, k, v).transpose(1, 2), scores(q, k).logsumexp(-1)


def one_head(q, k, v):
    length, _ = q.shape
    return attend(q, k, v).reshape(length, -1)


def with_lse(base):
    return lambda q, k, v: (attend(q, k, v), scores(q, k).logsumexp(-1) / np.log(base))


def windowed(q, k, v, *, window=(-1, -1)):
    left, right = window
    d = distances(q, k, "top_left")
    return attend(q, k, v, ((d < -left) & (left >= 0)) | ((d > right) & (right >= 0)))


def window_passed_on(q, k, v, *, window=(None, None)):
    return windowed(q, k, v, window=tuple(-1 if side is None else side for side in window))


def adding(q, k, v, *, mask=None):
    s = scores(q, k)
    return (s if mask is None else s + mask).softmax(-1) @ v


def hiding(q, k, v, *, mask=None):
    return attend(q, k, v, mask)


def of_jax(q, k, v):
    q, k, v = map(jax.numpy.asarray, (q, k, v))
    return jax.nn.softmax(scores(q, k), -1) @ v


def wide(q, k, v):
    return attend(q.double(), k.double(), v.double())


def declared(function, dtypes=("float32",), contract="eager", **facts):
    made = {"framework": "torch", "name": "mine", **facts}
    return kernel(dtypes=dtypes, contract=contract, **made)(function)


def subjects(made):
    return [Subject(made, dtype) for dtype in made.dtypes]
