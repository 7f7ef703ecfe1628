"""A call whose keys are values too returns dK + [dV, 0] for them, and is judged by the definition."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec import kernel
from attn_spec.attention.gradients import gradients
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.contract.presets import FUSED, PRESETS
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.judgement.long.gradient_blocks import judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.measure import judge_gradients
from attn_spec.kernels.calls.call import CallError
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.testing import NotAttention, assert_attention_gradients
from tests.kernels.presentations.packing.test_plain_packed_kernels import verdict

ALIKE = "gradients.query_and_key_gradients_are_within_their_bounds"
ALONE = "gradient_independence.each_gradient_may_be_asked_for_without_the_others"
ONE_CACHE = ("mla_joined", "mla_paged", "mla_decode")
RECIPE = Recipe(
    batch=3, query_heads=4, query_length=5, key_length=7, head_dim=6, value_dim=4, latent=True, scale=0.3,
    seqused_q="ragged@B111", seqused_k="one_less@B111", seed=1,
)  # fmt: skip


def cotangent(problem):
    return bits.nearest(np.random.default_rng(1).standard_normal(problem.output_shape), "float32")


@pytest.mark.parametrize("name", ONE_CACHE)
def test_an_emulated_backward_pass_gives_the_sum_of_the_definition(name):
    changed = {"query_length": 1, "seqused_q": None} if name == "mla_decode" else {}
    problem = replace(RECIPE, **changed).problem()
    own = emulate_both("k", PRECISE, presentation=name, supports=("gqa", "cross", "lse"))
    dO = cotangent(problem)

    found = Subject(own, "float32").gradients(problem, dO)
    judgement = judge_gradients(problem, PRECISE.at("float32"), dO, found)
    right = {n: x.astype(float) for n, x in gradients(problem, dO, 80).items()}

    assert found.keys() == {"dq", "dkv"}
    assert not judgement.refuted
    assert all(measured.measured.any() for measured in judgement.measurements)
    both = right["dk"].copy()
    both[..., :4] += right["dv"]
    np.testing.assert_allclose(right["dkv"], both, rtol=1e-15, atol=1e-15)
    for lost in ("dv", "dk"):
        wrong = right["dk"] if lost == "dv" else right["dkv"] - right["dk"]
        assert judge_gradients(problem, PRECISE.at("float32"), dO, {"dkv": bits.nearest(wrong, "float32")}).refuted


def test_of_keys_that_a_kernel_rotates_nothing_is_measured_and_the_sum_is_right():
    problem = replace(RECIPE, rotary="half", rotary_dim=2).problem()
    supports = ("gqa", "cross", "lse", "rotary", "rotary_dim")
    own = emulate_both("k", PRECISE, presentation="mla_joined", supports=supports)
    dO = cotangent(problem)

    found = Subject(own, "float32").gradients(problem, dO)
    of_q, of_keys = judge_gradients(problem, PRECISE.at("float32"), dO, found).measurements

    assert of_q.measured.any()
    assert not of_keys.measured.any()
    assert np.abs(of_keys.got - of_keys.truth.value).max() < 2.0**-20


def test_blocks_of_rows_judge_the_sum():
    problem = replace(RECIPE, seqused_q=None, seqused_k=None, query_length=40).problem()
    contract, dO = PRESETS["fp32"].at("float32"), cotangent(problem)
    right = gradient_intermediates(intermediates(problem), dO).gradients["dkv"]
    for x, refuted in ((right, False), (np.where(np.arange(7)[:, None] == 3, 1.001 * right, right), True)):
        parts = gradient_parts_of(problem, dO, {"dkv": bits.nearest(x, "float32")})
        judgement = judge_gradient_parts(parts, contract, memory=2**16)
        assert judgement.refuted == refuted
        assert judgement.keys == 21


def summed(terms, form):
    """Return the sum of terms [.., n], one after the other, each product and each sum rounded to a format."""
    total = np.zeros(terms.shape[:-1])
    for n in range(terms.shape[-1]):
        total = bits.nearest(total + bits.nearest(terms[..., n], form), form)
    return total


@pytest.mark.parametrize("form", ["float32", "float16"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_bound_covers_one_accumulator_for_the_terms_of_both_sums(form, interleaved):
    """Factors are exact, so that all errors are those of the sums; they are a share of the bound, not a speck."""
    problem = replace(RECIPE, batch=1, seqused_q=None, seqused_k=None, query_length=40).problem()
    dO, x = cotangent(problem), intermediates(problem)
    grad, scale = gradient_intermediates(x, dO), problem.scale_value
    of_k = scale * np.einsum("bhij,bhid->bjdhi", grad.dS, problem.q).reshape(1, 7, 6, -1)
    of_v = np.einsum("bhij,bhic->bjchi", x.P, dO).reshape(1, 7, 4, -1)
    of_v = np.concatenate([of_v, np.zeros((1, 7, 2, of_v.shape[-1]))], axis=2)
    terms = np.stack([of_k, of_v], axis=-1 if interleaved else -2).reshape(1, 7, 6, -1)
    contract = replace(PRESETS["fp32"], gradient_accumulation=form, partial_gradients=form).at("float32")

    judgement = judge_gradients(problem, contract, dO, {"dkv": summed(terms, form)[:, None]})

    assert not judgement.refuted
    assert judgement.ratio > (0.005 if form == "float16" else 0.0005)


def test_a_cast_of_both_parts_before_their_sum_is_declared_by_partial_gradients():
    problem = replace(RECIPE, seqused_q=None, seqused_k=None, dtypes="bfloat16").problem()
    dO = bits.nearest(cotangent(problem), "bfloat16")
    right = gradient_intermediates(intermediates(problem), dO).gradients
    dk, dv = (bits.nearest(right[name], "bfloat16") for name in ("dk", "dv"))
    dk[..., :4] += dv
    found = {"dkv": bits.nearest(dk, "bfloat16")}

    declared = replace(FUSED, partial_gradients="input")
    assert not judge_gradients(problem, declared.at("bfloat16"), dO, found).refuted
    assert judge_gradients(problem, PRESETS["fp32"].at("bfloat16"), dO, found).refuted


def torch_kernel(name, **declared):
    """Return a kernel of PyTorch that autograd differentiates, of sequences one behind the other."""

    @kernel(
        name=name, framework="torch", dtypes=("float32", "bfloat16"), contract="eager", presentation="mla_joined",
        supports=("gqa", "cross", "empty", "backward"), conventions={"empty_row": "zero"}, **declared,
    )  # fmt: skip
    def attention(q, kv, *, cu_seqlens_q, cu_seqlens_k, head_dim_v, scale):
        out = [q.new_zeros(0, q.shape[1], head_dim_v)]
        bounds = (cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
        for i, j, m, n in zip(*(x for each in bounds for x in (each[:-1], each[1:])), strict=True):
            keys = kv[m:n, 0]
            scores = torch.einsum("qhd,kd->hqk", q[i:j], keys) * scale
            out.append(torch.einsum("hqk,kd->qhd", scores.softmax(dim=-1), keys[:, :head_dim_v]))
        found = torch.cat(out)
        return torch.cat([found, q.new_zeros(len(q) - len(found), *found.shape[1:])])

    return attention


@pytest.mark.parametrize("property_id", [ALIKE, ALONE])
def test_a_kernel_that_autograd_differentiates_is_right(property_id):
    assert verdict(torch_kernel("differentiated"), property_id, 4) == ("held", "")


def leaves(seed=0):
    """Return q, one tensor of keys, and the words of a packed call of two sequences."""
    made = torch.Generator().manual_seed(seed)
    q, kv = (torch.randn(n, heads, 6, generator=made) for n, heads in ((5, 2), (7, 1)))
    bounds = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5], [0, 3, 7])]
    return q.requires_grad_(), kv.requires_grad_(), dict(zip(("cu_seqlens_q", "cu_seqlens_k"), bounds, strict=True))


def test_a_test_asserts_the_gradient_of_one_tensor():
    q, kv, words = leaves()
    out = torch_kernel("asserted").function(q, kv, **words, head_dim_v=4, scale=0.4)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(dout)
    given = (dout, q.detach(), kv.detach(), kv.detach()[..., :4])

    checked = assert_attention_gradients({"dq": q.grad, "dkv": kv.grad}, *given, **words, latent=True, scale=0.4)
    assert checked.tallies.keys() == {"dq", "dkv"}
    lost = kv.grad.clone()
    lost[2, 0, :4] = 0
    with pytest.raises(NotAttention, match=r"dkv\[2, 0, \d\]"):
        assert_attention_gradients({"dkv": lost}, *given, **words, latent=True, scale=0.4)
    with pytest.raises(CallError, match="dkv is the gradient of keys whose first columns are the values; pass latent"):
        assert_attention_gradients({"dkv": kv.grad}, *given, **words, scale=0.4)
