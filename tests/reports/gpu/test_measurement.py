"""Costs of calls: kernels take turns on the same tensors, forward and backward; here on a CPU, at small sizes."""

from collections import Counter

import pytest
import torch
from attn_spec.reports.gpu import measurement, ratios
from attn_spec.reports.gpu.measurement import Case, Cost

from attn_spec import kernel
from attn_spec.kernels.resolve import resolve

CASE = Case(length=24, head_dim=16, causal=True, batch=2, heads=3)


def test_the_cases_are_all_lengths_with_both_dims_causal_and_not_of_as_many_queries():
    found = measurement.cases()

    assert {(one.length, one.head_dim, one.causal) for one in found} == {
        (n, d, causal) for n in (1024, 2048, 4096, 8192, 16384) for d in (64, 128) for causal in (False, True)
    }
    assert len(found) == 20
    assert {one.batch * one.length for one in found} == {measurement.TOKENS}


def test_each_pass_of_each_kernel_has_a_cost_beside_both_references():
    found = list(measurement.costs(["torch_tiled"], [CASE], "cpu", turns=2))

    assert Counter(one.kernel for one in found) == {"torch_sdpa:flash": 2, "torch_eager": 2, "torch_tiled": 2}
    assert all(one.seconds > 0 and one.bytes is None and not one.failure for one in found)
    assert ratios.references(found) == {"flash": "torch_sdpa:flash", "eager": "torch_eager"}
    for one in found:
        beside = {name: ratios.to(found, one, name, "seconds") for name in ("flash", "eager")}
        assert all(ratio > 0 for ratio in beside.values())
        assert beside["eager"] == 1 or one.kernel != "torch_eager"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["torch_tiled", "torch_eager", "torch_sdpa:flash"])
def test_what_is_timed_is_attention_and_its_gradients(name, causal):
    case = Case(length=24, head_dim=16, causal=causal, batch=2, heads=3)
    runs = measurement.runs(resolve(name), case, "cpu")
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 3, 24, 16, generator=generator).bfloat16().double() for _ in range(4)]
    q, k, v = (x.requires_grad_() for x in drawn[:3])
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    gradients = torch.autograd.grad(expected, (q, k, v), drawn[3])

    out = runs["forward"]()
    out = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2**-5)
    for _ in range(2):  # the forward pass of the first serves the second
        for found, true in zip(runs["backward"](), gradients, strict=True):
            torch.testing.assert_close(found.double(), true, rtol=0, atol=2**-4)


def test_a_kernel_that_fails_is_left_out_with_its_reason(monkeypatch):
    @kernel(framework="torch", dtypes=("bfloat16",))
    def attention(q, k, v):
        raise MemoryError("out of memory\nand more")

    known = measurement.resolve
    monkeypatch.setattr(measurement, "resolve", lambda name: attention if name == "greedy" else known(name))
    case = Case(length=24, head_dim=16, causal=False)
    found = list(measurement.costs(["greedy"], [case], "cpu", turns=2))

    failed = [one for one in found if one.failure]
    assert [(one.kernel, one.made, one.failure) for one in failed] == [
        ("greedy", made, "MemoryError: out of memory") for made in measurement.PASSES
    ]
    assert ratios.to(found, failed[0], "flash", "seconds") is None


def test_ratios_are_of_the_same_case_and_pass():
    def cost(name, length, seconds, size, made="forward"):
        case = Case(length=length, head_dim=64, causal=False)
        return Cost(kernel=name, made=made, case=case, seconds=seconds, bytes=size)

    found = [cost("torch_sdpa:flash_cuda", 8, 1.0, 10), cost("torch_eager", 8, 4.0, 0), cost("mine", 8, 2.0, 30)]
    found += [cost("torch_sdpa:flash_cuda", 16, 9.0, 9), cost("mine", 8, 7.0, 7, made="backward")]

    assert ratios.to(found, found[2], "flash", "seconds") == 2.0
    assert ratios.to(found, found[2], "eager", "seconds") == 0.5
    assert ratios.to(found, found[2], "flash", "bytes") == 3.0
    assert ratios.to(found, found[2], "eager", "bytes") is None
    assert ratios.to(found, found[4], "flash", "seconds") is None
    assert ratios.references(found[2:3]) == {}


@pytest.mark.gpu
def test_time_and_memory_on_a_gpu():
    case = Case(length=1024, head_dim=64, causal=True, batch=2, heads=4)
    found = {(one.kernel, one.made): one for one in measurement.costs(["triton_tiled"], [case], "cuda", turns=1)}

    assert not [one.failure for one in found.values() if one.failure]
    scores = 2 * 4 * 1024**2 * 2
    assert found["torch_eager", "forward"].bytes >= 2 * scores
    assert found["triton_tiled", "forward"].bytes < scores
    assert found["torch_sdpa:flash_cuda", "forward"].seconds > 0
