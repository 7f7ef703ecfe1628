"""Choice of a contract: the answers of each kind of kernel are within the bound of the contract chosen for it."""

from dataclasses import replace

import pytest
import torch

from attn_spec import assert_attention, assert_attention_gradients
from attn_spec.contract.presets import CHOOSER, PRESETS, describe


def tiled(q, k, v, *, size=16, product=None):
    """Run a flash kernel: a running maximum and row sum in float32, products of the inputs' dtype or of another."""
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
    """Truncate float32 to the bits of tf32."""
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


def by_products_of_tensors(q, k, v):
    s = (q[..., None, :] * k[..., None, :, :]).sum(-1, dtype=torch.float32) * q.shape[-1] ** -0.5
    return (s.softmax(-1).to(v.dtype)[..., None] * v[..., None, :, :]).sum(-2, dtype=torch.float32).to(q.dtype)


def widened(q, k, v):
    return eager(*(x.float() for x in (q, k, v))).to(q.dtype)


KINDS = {
    "fused": (lambda *x: tiled(*x)[0], torch.bfloat16),
    "tf32": (on_tensor_cores, torch.float32),
    "split_kv": (split_in_float32, torch.float32),
    "eager": (eager, torch.bfloat16),
    "eager(softmax='work')": (eager_with_a_softmax_in_float32, torch.bfloat16),
    "fused(products='input')": (by_products_of_tensors, torch.bfloat16),
    "fp32": (widened, torch.bfloat16),
    "fp64": (lambda *x: tiled(*x)[0], torch.float64),
}
#: Contracts of the chooser that an output without options cannot show.
DIFFERENTIATED, ALIBI_MATRIX = (describe(made) for says, made in CHOOSER if "differentiated" in says or "ALiBi" in says)
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
    assert set(CHOSEN) == {*KINDS, DIFFERENTIATED, ALIBI_MATRIX}


def cast_before_the_product(q, k, v):
    """Cast weights of float32 for p.v, as most people write attention."""
    return (q.float() @ k.float().mT * q.shape[-1] ** -0.5).softmax(-1).to(v.dtype) @ v


def in_chunks(q, k, v):
    """Attend in chunks of keys, each with its maximum, through which the framework differentiates too."""
    m, l, acc = -torch.inf, 0.0, 0.0
    for first in range(0, k.shape[2], 16):
        s = q.float() @ k[:, :, first : first + 16].float().mT * q.shape[-1] ** -0.5
        top = s.amax(-1, keepdim=True)
        m_new = torch.maximum(m, top) if first else top
        p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
        l = l * alpha + p.sum(-1, keepdim=True)
        acc, m = acc * alpha + p.to(v.dtype).float() @ v[:, :, first : first + 16].float(), m_new
    return (acc / l).to(q.dtype)


def by_log_sum_exps(q, k, v):
    """Attend to two parts of the keys, whose weights are exp(s - LSE)."""
    outs, lses = [], []
    for part in (slice(0, 20), slice(20, None)):
        s = q.float() @ k[:, :, part].float().mT * q.shape[-1] ** -0.5
        lses.append(torch.logsumexp(s, -1, keepdim=True))
        outs.append(torch.exp(s - lses[-1]).to(v.dtype).float() @ v[:, :, part].float())
    return (torch.softmax(torch.stack(lses), 0) * torch.stack(outs)).sum(0).to(q.dtype)


def differentiated(kernel, dtype, offset=3.0):
    """Return torch's gradients of a function, for values around ``offset``: dP is large beside dP - D."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, dO = (torch.randn(1, 2, 40, 16, generator=generator) for _ in range(4))
    given = [x.to(dtype).requires_grad_() for x in (q, k, v + offset)]
    gradients = torch.autograd.grad(kernel(*given), given, dO.to(dtype))
    return dict(zip(("dq", "dk", "dv"), gradients, strict=True)), dO.to(dtype), *(x.detach() for x in given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kernel", "contract"),
    [(cast_before_the_product, DIFFERENTIATED), (in_chunks, "fused"), (by_log_sum_exps, "split_kv")],
)
def test_a_function_that_torch_differentiates_keeps_a_gradient_of_weights_in_half(kernel, contract, dtype):
    made = differentiated(kernel, dtype)
    declared = {**PRESETS, DIFFERENTIATED: CHOSEN[DIFFERENTIATED]}[contract]

    assert assert_attention_gradients(*made, contract=declared).ratio > 0.001
    assert assert_attention_gradients(*made).ratio > 0.001
    with pytest.raises(AssertionError):
        assert_attention_gradients(*made, contract=replace(declared, weight_gradients="work"))


def test_alibi_may_be_a_matrix_of_the_inputs_dtype():
    q, k, v = problem(torch.bfloat16)
    q, slopes = torch.cat([8 * q] * 5, 2), torch.tensor([0.73, 0.41])
    matrix = -(slopes[:, None, None] * abs(torch.arange(40) - torch.arange(40)[:, None])).to(q.dtype)
    s = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + matrix.float()
    out = (s.softmax(-1) @ v.float()).to(q.dtype)

    assert assert_attention(out, q, k, v, alibi_slopes=slopes, contract=CHOSEN[ALIBI_MATRIX]).ratio > 0.001
    assert assert_attention(out, q, k, v, alibi_slopes=slopes).ratio > 0.001
    with pytest.raises(AssertionError, match=r"within the bound of contract \"fused\(alibi_terms='bfloat16'\)\""):
        assert_attention(out, q, k, v, alibi_slopes=slopes, contract="fused")
