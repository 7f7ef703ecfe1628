"""Attention as tutorials print it: bare functions, which declare nothing."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - as every tutorial has it


def attention(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return F.softmax(scores, dim=-1) @ v


def plain(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


def without_scale(q, k, v, mask=None):
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def padded_to_16(q, k, v):
    missing = -k.size(-2) % 16
    k, v = F.pad(k, (0, 0, 0, missing)), F.pad(v, (0, 0, 0, missing))
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


def with_weights(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    return weights @ v, weights


def causal_by_multiplication(q, k, v, is_causal=False):
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    if is_causal:
        weights = weights * torch.tril(torch.ones(q.size(-2), k.size(-2)))
    return weights @ v
