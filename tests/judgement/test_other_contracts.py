"""The hint of a refutation names contracts that the answer keeps, and none that it breaks."""

from dataclasses import replace

import numpy as np
import torch

from attn_spec.contract.presets import FP32, FUSED, SPLIT_KV, UNDECLARED, describe
from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.other_contracts import contracts_that_hold, gradient_contracts_that_hold
from attn_spec.judgement.other_problems import MOST, explains, plain, plainest, within
from attn_spec.numbers import bits
from attn_spec.search.drawing.regimes import Recipe


def problem(**options):
    return Recipe(dtypes="float32", query_length=8, key_length=32, head_dim=16, value_dim=16, **options).problem()


def test_a_preset_that_explains_an_answer_is_named():
    one = problem()
    answer = bfloat16_products(one)

    named = contracts_that_hold(FP32.at("float32"), one, output=answer)

    assert named
    assert "fp32" not in named


def bfloat16_products(one):
    """Attend with 8 bits of q and k each."""
    q, k = ((x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float) for x in (one.q, one.k))
    s = q @ k.swapaxes(-1, -2) * one.scale_value
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ one.v).astype(np.float32).astype(float)


def test_a_field_is_named_before_a_looser_preset():
    one = Recipe(dtypes="float16", query_length=4, key_length=512, head_dim=16, value_dim=16).problem()
    one = one.replace(v=bits.nearest(8 + one.v, "float16"))  # sums in float16 lose what they are much larger than
    s = (one.q @ one.k.swapaxes(-1, -2)).astype(np.float32) * np.float32(one.scale_value)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = np.zeros(one.output_shape, dtype=np.float16)
    for key in range(one.key_length):
        total += p[..., key, None].astype(np.float16) * one.v[:, :, key, None].astype(np.float16)
    answer = (total.astype(np.float32) / p.sum(-1, keepdims=True)).astype(np.float16).astype(float)

    contract = FUSED.at("float16")
    assert judge(one, contract, output=answer).refuted
    named = contracts_that_hold(contract, one, output=answer)
    assert "fused(output_accumulation='float16')" in named


def test_products_that_are_rounded_are_named_by_their_field():
    """Products of half, summed in float32: each of 1.0625 and 0.94140625 is rounded, in the same direction."""
    one = Recipe(dtypes="bfloat16", query_length=4, key_length=8, head_dim=128, value_dim=16).problem()
    one = one.replace(q=np.full_like(one.q, 1.0625), k=np.full_like(one.k, 0.94140625), scale=1.0)
    q, k = (torch.tensor(x, dtype=torch.bfloat16) for x in (one.q, one.k))
    s = (q[..., None, :] * k[..., None, :, :]).sum(-1, dtype=torch.float32)
    found = {"lse": torch.logsumexp(s, -1).double().numpy()}
    contract = FUSED.at("bfloat16")

    assert judge(one, contract, **found).refuted
    assert contracts_that_hold(contract, one, **found)["fused(products='bfloat16')"] is False


def test_a_contract_that_does_not_measure_what_is_wrong_is_not_named():
    one = problem(bias="zero@11QK")
    bias = np.zeros(one.bias.shape)
    bias[:, :, 1] = -1e30
    one = one.replace(bias=bits.nearest(bias, "float32"))
    truth, _ = analysis_of(one).truth_and_bound(contract := FP32.at("float32"))
    answer = bits.nearest(truth["output"].value, "float32")
    answer[:, :, 1] = np.nan

    assert judge(one, contract, output=answer).refuted
    assert explains(judge(one, SPLIT_KV.at("float32"), output=answer))  # which measures the other rows alone
    assert contracts_that_hold(contract, one, output=answer) == {}


def test_a_contract_under_which_zeros_are_an_answer_too_is_named_with_that():
    """512 keys, one of which is lost: sums of half may be off by as much as the output is large."""
    one = Recipe(dtypes="bfloat16", query_length=4, key_length=512, head_dim=16, value_dim=16).problem()
    s = one.q @ one.k[:, :, :-1].swapaxes(-1, -2) * one.scale_value
    p = np.exp(s - s.max(-1, keepdims=True))
    answer = bits.nearest(p @ one.v[:, :, :-1] / p.sum(-1, keepdims=True), "bfloat16")

    found = contracts_that_hold(FUSED.at("bfloat16"), one, output=answer)

    assert found["fused(output_accumulation='bfloat16')"]
    assert within("fused", allows_zeros=True) == "within the bound of contract 'fused', as zeros are"
    assert plain(within("fused", allows_zeros=True)) == plain(within("fused", allows_zeros=False))


def test_a_preset_that_allows_more_than_a_contract_with_one_field_changed_is_not_named():
    presets = [within(name, allows_zeros=False) for name in ("tf32", "eager")]
    fields = [within(f"fused({n}=1)", allows_zeros=n == 1) for n in range(MOST + 1)]

    assert plainest([*presets, "another"]) == ("another", *presets)
    assert plainest([*fields, *presets, "another"]) == ("another", *fields[:MOST])
    assert plainest([presets[0], fields[0], presets[1]]) == (presets[0], fields[0])
    assert plainest([]) == ()


def test_nothing_is_named_for_an_answer_that_no_contract_explains():
    one = problem()

    assert contracts_that_hold(FUSED.at("float32"), one, output=np.zeros(one.output_shape)) == {}


def test_gradients_of_weights_that_a_framework_keeps_in_half_are_explained_by_the_field_that_says_so():
    one = Recipe(dtypes="bfloat16", query_length=8, key_length=64, head_dim=16, value_dim=64).problem()
    one = one.replace(v=bits.nearest(8 + one.v, "bfloat16"))  # dP - D cancels
    dO = bits.nearest(np.random.default_rng(0).standard_normal(one.output_shape), "bfloat16")
    q, k, v = (torch.tensor(x, dtype=torch.float32).requires_grad_() for x in (one.q, one.k, one.v))
    p = torch.softmax(q @ k.mT * one.scale_value, dim=-1)
    (p.bfloat16() @ v.bfloat16()).backward(torch.tensor(dO).bfloat16())
    found = {"dq": bits.nearest(q.grad.numpy().astype(float), "bfloat16")}
    stored = {"normalize": "before_product", "backward_weights": "stored", "delta": "probabilities"}
    contract = replace(FUSED, **stored, weight_gradients="float32").at("bfloat16")

    assert judge_gradients(one, contract, dO, found).refuted
    named = gradient_contracts_that_hold(contract, one, dO, found)
    assert any("weight_gradients='bfloat16'" in name for name in named)


def test_nothing_is_named_beside_alternatives():
    assert describe(UNDECLARED) == "undeclared"
    assert (
        gradient_contracts_that_hold(
            UNDECLARED.at("float32"), problem(), np.ones((1, 1, 8, 16)), {"dq": np.zeros((1, 1, 8, 16))}
        )
        == {}
    )


def test_weights_of_a_second_pass_are_named_by_how_they_are_normalized():
    """Each is exp(s - LSE), and the LSE is one of bfloat16: a whole row is off by its rounding."""
    one = Recipe(dtypes="bfloat16", query_length=2, key_length=57, head_dim=16, value_dim=16).problem()
    one = one.replace(q=np.zeros_like(one.q), v=np.abs(one.v))
    weight = np.exp(-bits.nearest(np.log(57.0), "bfloat16"))
    answer = bits.nearest(weight * one.v.sum(axis=2, keepdims=True) * np.ones(one.output_shape), "bfloat16")

    contract = replace(FUSED, lse="input").at("bfloat16")
    assert judge(one, contract, output=answer).refuted
    assert "fused(normalize='by_lse', lse='bfloat16')" in contracts_that_hold(contract, one, output=answer)


def test_a_kernel_that_cuts_what_it_stores_is_named_by_its_rounding():
    one = Recipe(dtypes="bfloat16", query_length=1, key_length=5, head_dim=16, value_dim=16).problem()
    one = one.replace(q=np.zeros_like(one.q), v=bits.nearest(1 + 0.05 * np.abs(one.v), "bfloat16"))
    mean = one.v.mean(axis=2, keepdims=True).astype(np.float32)
    answer = (mean.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(float)

    assert judge(one, FP32.at("bfloat16"), output=answer).refuted
    assert "fp32(rounding='toward_zero')" in contracts_that_hold(FP32.at("bfloat16"), one, output=answer)
