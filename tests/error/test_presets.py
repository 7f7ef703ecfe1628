"""Which contract to declare: the answers of each kind of kernel are within the bound of the contract chosen for it."""

import pytest
import torch

from attn_spec import assert_attention
from attn_spec.error.presets import CHOOSER, PRESETS, describe


def tiled(q, k, v, *, size=16, product=None):
    """A flash kernel: a running maximum and row sum in float32, products of the inputs' dtype or of another."""
    entering, work = product or q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
    m = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=work)
    l, acc = torch.zeros_like(m), torch.zeros(*q.shape[:-1], v.shape[-1], dtype=work)
    for first in range(0, k.shape[2], size):
        tile = slice(first, first + size)
        s = q.to(work) @ k[:, :, tile].to(work).mT * q.shape[-1] ** -0.5
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        l, acc, m = (
            l * alpha + p.sum(-1, keepdim=True),
            acc * alpha + p.to(entering).to(work) @ v[:, :, tile].to(work),
            m_new,
        )
    return (acc / l).to(q.dtype), (m + l.log()).squeeze(-1)


def cut(x):
    """float32 with the bits that tf32 lacks cut off."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def on_tensor_cores(q, k, v):
    s = cut(q) @ cut(k).mT * q.shape[-1] ** -0.5
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return cut(p) @ cut(v) / p.sum(-1, keepdim=True)


def split(q, k, v):
    parts = [tiled(q, k[:, :, half], v[:, :, half]) for half in (slice(0, 20), slice(20, None))]
    out, lse = (torch.stack([part[place].float() for part in parts]) for place in (0, 1))
    return (torch.softmax(lse, 0)[..., None] * out).sum(0).to(q.dtype)


def split_in_float32(q, k, v):
    return split(*(x.float() for x in (q, k, v)))


def eager(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def eager_with_a_softmax_in_float32(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1, dtype=torch.float32).to(q.dtype) @ v


def widened(q, k, v):
    return eager(*(x.float() for x in (q, k, v))).to(q.dtype)


KINDS = {
    "fused": (lambda *x: tiled(*x)[0], torch.bfloat16),
    "tf32": (on_tensor_cores, torch.float32),
    "split_kv": (split_in_float32, torch.float32),
    "eager": (eager, torch.bfloat16),
    "eager(softmax='work')": (eager_with_a_softmax_in_float32, torch.bfloat16),
    "fp32": (widened, torch.bfloat16),
    "fp64": (lambda *x: tiled(*x)[0], torch.float64),
}
CHOSEN = {describe(made): made for _, made in CHOOSER}


def problem(dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, 2, length, 16, generator=generator, dtype=torch.float64).to(dtype) for length in (8, 40, 40)]


@pytest.mark.parametrize("name", KINDS)
def test_a_kernel_of_each_kind_keeps_the_contract_that_is_chosen_for_it(name):
    kernel, dtype = KINDS[name]
    given = problem(dtype)

    assert assert_attention(kernel(*given), *given, contract=CHOSEN[name]).ratio > 0.001


@pytest.mark.parametrize(
    ("name", "narrower"), [("eager", "fp32"), ("fused", "fp32"), ("tf32", "fused"), ("split_kv", "fp64")]
)
def test_a_contract_that_promises_more_than_a_kernel_keeps_is_refuted(name, narrower):
    kernel, dtype = KINDS[name]
    given = problem(dtype)

    with pytest.raises(AssertionError):
        assert_attention(kernel(*given), *given, contract=CHOSEN[narrower])


def test_every_preset_is_chosen_by_some_kernel():
    assert set(PRESETS) <= set(CHOSEN)
    assert set(CHOSEN) == set(KINDS)
