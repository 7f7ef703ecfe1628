"""A right and a wrong function, which scripts of refuted calls call."""

import torch


def scaled(q, k, v, scale):
    scores = scale * q @ k.swapaxes(-1, -2)
    return torch.softmax(scores, -1) @ v


def right(q, k, v):
    return scaled(q, k, v, q.shape[-1] ** -0.5)


def wrong(q, k, v):
    return scaled(q, k, v, 1.0)
