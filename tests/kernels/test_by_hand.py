"""A problem in somebody's hands: its tensors in any framework, and what a kernel answers."""

import numpy as np
import pytest
import torch

from attn_spec import Recipe, kernel, run, tensors
from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.kernel import KernelError

PROBLEM = Recipe(
    query_heads=2, kv_heads=2, query_length=3, key_length=3, head_dim=4, value_dim=4, causal=True, mask="random@BHQK"
).problem()


@kernel(framework="torch", dtypes=("float32",), presentation="BSHD", supports=("causal", "mask", "lse"))
def attention(q, k, v, *, is_causal=False, mask=None):
    assert type(q) is torch.Tensor
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1) if is_causal else torch.zeros(s.shape[-2:]).bool()
    s = s.masked_fill(hidden if mask is None else hidden | ~mask, -torch.inf)
    return (s.softmax(-1).nan_to_num() @ v).transpose(1, 2), s.logsumexp(-1)


@pytest.mark.parametrize(("framework", "dtype"), [("numpy", np.float32), ("torch", torch.float32)])
def test_tensors_have_the_values_in_the_dtype_of_the_problem(framework, dtype):
    made = tensors(PROBLEM, framework)

    assert list(made) == ["q", "k", "v", "mask"]
    assert all(made[name].dtype == dtype for name in "qkv")
    assert all(np.array_equal(np.asarray(made[name]), getattr(PROBLEM, name)) for name in made)


def test_tensors_are_presented_as_asked_for():
    made = tensors(PROBLEM, "torch", presentation="BSHD")

    assert tuple(made["q"].shape) == (1, 3, 2, 4)
    assert torch.equal(made["q"].transpose(1, 2), tensors(PROBLEM, "torch")["q"])
    assert made["mask"].dtype == torch.bool


def test_tensors_of_a_packed_call_come_with_the_bounds_of_the_sequences():
    problem = Recipe(batch=2, query_length=2, key_length=3, seqused_k="one_less@B111").problem()
    made = tensors(problem, "torch", presentation="THD")

    assert list(made)[:3] == ["q", "k", "v"]
    assert "seqused_k" not in made
    assert (made["cu_seqlens_k"].tolist(), made["cu_seqlens_k"].dtype) == ([0, 2, 4], torch.int32)
    assert (made["k"][2:4].numpy() == problem.k[1, :, :2].swapaxes(0, 1)).all()


def test_the_tensor_of_an_option_has_its_own_dtype():
    problem = Recipe(key_length=2, bias="normal@BHQK", dtypes={"qkv": "bfloat16", "bias": "float32"}).problem()
    made = tensors(problem, "torch")

    assert (made["q"].dtype, made["bias"].dtype) == (torch.bfloat16, torch.float32)


def test_a_kernel_is_run_under_its_own_words_and_presentation():
    answer = run(PROBLEM, attention)
    q, k, v = (torch.tensor(getattr(PROBLEM, name)) for name in "qkv")
    truth = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor(PROBLEM.visible))

    assert set(answer) == {"output", "lse"}
    assert answer["output"].dtype == np.float64
    assert np.allclose(answer["output"], truth.numpy(), atol=1e-6)


def test_a_kernel_is_run_by_name_or_undeclared():
    problem = Recipe(query_length=2, key_length=3, causal=True).problem()

    def undeclared(q, k, v, causal=False):
        return np.where(causal, v[:, :, :1], 0).astype(q.dtype).repeat(q.shape[2], axis=2)

    named = run(problem, "numpy_tiled")["output"]
    found = run(problem, undeclared, framework="numpy")["output"]
    assert np.array_equal(found[0, 0, 0], problem.v[0, 0, 0])
    assert np.allclose(named[0, 0, 0], problem.v[0, 0, 0])


def test_what_the_kernel_does_not_declare_is_an_error():
    plain = kernel(framework="torch", dtypes=("float32",), name="plain")(lambda q, k, v: v)

    with pytest.raises(
        KernelError,
        match=r"^plain does not declare causal, mask, which the problem uses; leave them out of the problem$",
    ):
        run(PROBLEM, plain)
    with pytest.raises(
        KernelError, match=r"^plain declares float32, and the problem is of float16; make it in a declared dtype$"
    ):
        run(Recipe(dtypes="float16").problem(), plain)


def test_an_unknown_framework_and_a_presentation_of_parts_are_errors():
    with pytest.raises(FrameworkError, match=r"framework must be one of jax, mlx, numpy, torch, not 'tensorflow'"):
        tensors(PROBLEM, "tensorflow")
    with pytest.raises(KernelError, match=r"presentation must be one of BHSD, BSHD, BS\(HD\), .*THD.* here, not 'SD'"):
        tensors(PROBLEM, presentation="SD")
