"""The backward passes of the in-tree kernels: against autograd, against the bound, and what is particular to each."""

import math
import tracemalloc
from itertools import compress, product

import numpy as np
import pytest
import torch
from attn_spec.implementations import numpy_tiled, torch_sdpa, torch_tiled

from attn_spec import Problem
from attn_spec.bounds.backward.gradient_bounds import gradient_bound, gradient_evaluation_error
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from tests.implementations.kernel_inputs import BROADCASTS, HAS_TRITON, OPTIONS, inputs, interpreted, to_torch

EXACT = [numpy_tiled.attention, numpy_tiled.attention_reversed, torch_tiled.attention]
EVERY = [pytest.param(kernel, dtype, id=f"{kernel.name}-{dtype}") for kernel in EXACT for dtype in kernel.dtypes[1:]]
if HAS_TRITON:
    from attn_spec.implementations import triton_tiled

    EVERY += [
        pytest.param(triton_tiled.attention, dtype, id=f"triton_tiled-{dtype}", marks=interpreted)
        for dtype in triton_tiled.attention.dtypes
    ]
HALVES = [case for case in EVERY if case.values[1] != "float32"]
every_kernel = pytest.mark.parametrize(("kernel", "dtype"), EVERY)


def problem_and_cotangents(dtype="float64", options=None, **shape):
    q, k, v = (bits.nearest(x, dtype) for x in inputs(**shape))
    options = {name: bits.nearest(x, dtype) if name == "bias" else x for name, x in (options or {}).items()}
    problem = Problem(q=q, k=k, v=v, dtypes=dtype, **options)
    rng = np.random.default_rng(1)
    dO = bits.nearest(rng.standard_normal(problem.output_shape), dtype)
    return problem, dO, bits.nearest(rng.standard_normal(problem.score_shape[:3]), "float32")


def autograd(problem, dO, dL):
    """Derive the formula, with the whole matrix, by torch.autograd in float64."""
    visible = torch.tensor(problem.visible)
    bias = np.zeros((1, 1, 1, 1)) if problem.bias is None else problem.bias
    q, k, v, bias = leaves = [torch.tensor(x, requires_grad=True) for x in (problem.q, problem.k, problem.v, bias)]
    k, v = (x.repeat_interleave(problem.group, dim=1) for x in (k, v))
    s = q @ k.mT * problem.scale_value
    if problem.softcap is not None:
        s = problem.softcap * torch.tanh(s / problem.softcap)
    p = torch.exp(s + bias).masked_fill(~visible, 0.0)
    l = p.sum(dim=-1)
    l = l + (l == 0)
    loss = (torch.tensor(dO) * (p @ v / l[..., None])).sum() + (torch.tensor(dL) * torch.log(l)).sum()
    return dict(zip(("dq", "dk", "dv", "dbias"), torch.autograd.grad(loss, leaves), strict=True))


def assert_within_bound(kernel, problem, dO, dL, **how):
    """Assert that every gradient lies within the contract's bound, and is exactly zero where it has no influence."""
    x = intermediates(problem)
    g = gradient_intermediates(x, dO, dL)
    slack = gradient_evaluation_error(x, g)
    bound = gradient_bound(x, g, kernel.contract_for(problem.dtype), slack)
    assert bound.whole
    assert bound.keys.all()
    found = Subject(kernel, problem.dtype).gradients(problem, dO, lse_cotangent=dL, **how)
    for name, gradient in found.items():
        allowed = bound.allowed[name] + slack.allowed[name]
        assert (np.abs(gradient - g.gradients[name]) <= allowed).all(), name
    seen = problem.visible.any(axis=2).reshape(problem.batch, problem.kv_heads, problem.group, -1).any(axis=2)
    assert (found["dq"][problem.empty_rows] == 0).all()
    assert (found["dk"][~seen] == 0).all()
    assert (found["dv"][~seen] == 0).all()


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def options(request):
    return request.param


@pytest.mark.parametrize("kernel", EXACT, ids=lambda kernel: kernel.name)
def test_float64_agrees_with_autograd(kernel, options):
    problem, dO, dL = problem_and_cotangents(options=options)
    expected = autograd(problem, dO, dL)

    found = Subject(kernel, "float64").gradients(problem, dO, lse_cotangent=dL)

    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("kernel", EXACT, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_float64_sums_the_gradient_of_every_broadcast_bias(kernel, shape):
    bias = np.random.default_rng(2).standard_normal(shape)
    problem, dO, dL = problem_and_cotangents(options={"bias": bias, "causal": True})
    dense = problem.replace(bias=np.broadcast_to(bias, problem.score_shape))
    subject = Subject(kernel, "float64")
    shared = tuple(axis for axis, length in enumerate(shape) if length == 1)

    found, whole = (subject.gradients(p, dO, lse_cotangent=dL)["dbias"] for p in (problem, dense))

    np.testing.assert_allclose(found, whole.sum(axis=shared, keepdims=True), rtol=0, atol=1e-12)
    np.testing.assert_allclose(whole, autograd(dense, dO, dL)["dbias"], rtol=0, atol=1e-13)
    assert (whole[~problem.visible] == 0).all()


@pytest.mark.one_in(4)
@every_kernel
def test_stays_within_the_bound(kernel, dtype, options):
    assert_within_bound(kernel, *problem_and_cotangents(dtype, options, B=1, Hq=2, Hkv=1))


@pytest.mark.one_in(4)
@every_kernel
@pytest.mark.parametrize("kept", list(np.ndindex(2, 2, 2, 2))[::3], ids=str)
def test_bias_of_every_broadcast_stays_within_the_bound(kernel, dtype, kept):
    shape = [full if keep else 1 for full, keep in zip((2, 4, 5, 35), kept, strict=True)]
    options = {"bias": np.random.default_rng(3).standard_normal(shape)}

    assert_within_bound(kernel, *problem_and_cotangents(dtype, options, Hq=4, Sq=5, Sk=35, D=3, Dv=2))


@every_kernel
def test_two_keys_by_hand(kernel, dtype):
    """q = 1, k = (0, log 3), v = (0, 1): p = (1/4, 3/4), o = 3/4, and for dO = 1, dL = 0 or dO = 0, dL = 1

    ds = p (v - o) = (-3/16, 3/16),  dq = 3/16 log 3,  dk = (-3/16, 3/16),  dv = (1/4, 3/4)
    ds = p         = (1/4, 3/4),     dq = 3/4 log 3,   dk = (1/4, 3/4),     dv = 0
    """
    log3 = bits.nearest(np.array([math.log(3)]), dtype).item()
    k, v = np.array([0.0, log3]).reshape(1, 1, 2, 1), np.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    problem = Problem(q=np.ones((1, 1, 1, 1)), k=k, v=v, dtypes=dtype)
    of_output = {"dq": [3 / 16 * log3], "dk": [-3 / 16, 3 / 16], "dv": [1 / 4, 3 / 4]}
    of_lse = {"dq": [3 / 4 * log3], "dk": [1 / 4, 3 / 4], "dv": [0.0, 0.0]}

    for dO, dL, expected in ((1.0, 0.0, of_output), (0.0, 1.0, of_lse)):
        cotangents = np.full((1, 1, 1, 1), dO), np.full((1, 1, 1), dL)
        found = Subject(kernel, dtype).gradients(problem, cotangents[0], lse_cotangent=cotangents[1])
        tolerance = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
        for name, values in expected.items():
            np.testing.assert_allclose(found[name].ravel(), values, rtol=tolerance, atol=tolerance / 4, err_msg=name)


@every_kernel
@pytest.mark.parametrize("shift", [-120.0, 120.0])
def test_a_ragged_tail_is_not_weighed_against_a_low_lse(kernel, dtype, shift):
    """A padded column has score 0: exp(0 - LSE) overflows float32 once LSE < -88.7, and Inf times 0 is NaN."""
    options = {"bias": np.full((1, 1, 1, 33), shift)}
    assert_within_bound(kernel, *problem_and_cotangents(dtype, options, B=1, Hq=1, Hkv=1, Sq=3, Sk=33))


@pytest.mark.parametrize(("kernel", "dtype"), [case for case in EVERY if case.values[1] != "float16"])
def test_a_huge_hidden_value_does_not_matter(kernel, dtype):
    """dp of a hidden key overflows, and 0 times Inf is NaN."""
    options = {"mask": np.arange(9).reshape(1, 1, 1, 9) != 4}
    problem, dO, dL = problem_and_cotangents(dtype, options, B=1, Hq=1, Hkv=1, Sq=3, Sk=9)
    v = problem.v.copy()
    v[:, :, 4] = 1.5 * 2.0**127
    plain, huge = (
        Subject(kernel, dtype).gradients(p, 8 * dO, lse_cotangent=dL) for p in (problem, problem.replace(v=v))
    )

    for name in plain:
        np.testing.assert_array_equal(huge[name], plain[name])


@every_kernel
def test_takes_a_cotangent_of_any_strides(kernel, dtype):
    problem, dO, dL = problem_and_cotangents(dtype, B=2, Hq=2, Hkv=1, Sq=20, Sk=20)

    def permuted(x):
        if isinstance(x, np.ndarray):
            return np.ascontiguousarray(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
        return x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)

    def expanded(x):
        one = x[:1, :1, :1, :1]
        return np.broadcast_to(one, x.shape) if isinstance(x, np.ndarray) else one.expand(x.shape)

    assert_within_bound(kernel, problem, dO, dL, arrange=permuted)
    assert_within_bound(kernel, problem, np.full_like(dO, dO[0, 0, 0, 0]), dL, arrange=expanded)


@pytest.mark.parametrize(("kernel", "dtype"), HALVES)
def test_products_take_rounded_p_and_rounded_ds(kernel, dtype):
    """Two queries read keys of value 0 and 1 with scores 0 and b_i; k = 0 and q = dO = (1, -1), so that on key 0

    dv = round(p_1) - round(p_2) and dk = round(ds_1) - round(ds_2) with ds = p (0 - dO o), for o as it was stored.
    """

    def stored(x):
        return bits.nearest(x, dtype)

    sign, b = np.array([1.0, -1.0]), stored(-np.linspace(0.1, 3, 32).reshape(16, 2))
    q, k, v = (np.tile(column, (16, 1)).reshape(16, 1, 2, 1) for column in (sign, [0.0, 0.0], [0.0, 1.0]))
    bias = np.stack([np.zeros((16, 2)), b], axis=-1)[:, None]
    problem = Problem(q=q, k=k, v=v, bias=bias, dtypes=dtype)
    p, o = 1 / (1 + np.exp(b)), stored(stored(np.exp(b)) / (1 + np.exp(b)))
    ds = p * (0 - sign * o)

    found = Subject(kernel, dtype).gradients(problem, q)

    np.testing.assert_array_equal(found["dv"][:, 0, 0, 0], stored(stored(p) @ sign))
    np.testing.assert_array_equal(found["dk"][:, 0, 0, 0], stored(stored(ds) @ sign))


class TestNumpyTiled:
    @pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
    def test_poison_behind_a_mask_stays_there(self, poison):
        (q, k, v), dout = inputs(Hq=2), np.ones((2, 2, 37, 12))
        clean = numpy_tiled.tiled_gradients(dout, q, k, v, *numpy_tiled.attention(q, k, v, causal=True), causal=True)
        k[..., 30, :], v[..., 25, 3] = poison, poison
        dq, dk, dv = numpy_tiled.tiled_gradients(
            dout, q, k, v, *numpy_tiled.attention(q, k, v, causal=True), causal=True
        )

        np.testing.assert_array_equal(dq[..., :25, :], clean[0][..., :25, :])
        np.testing.assert_array_equal(dk[..., 37:, :], 0)
        np.testing.assert_array_equal(dv[..., 37:, :], 0)

    def test_memory_grows_with_the_length_not_its_square(self):
        q, k, v = inputs(B=1, Hq=1, Hkv=1, Sq=1024, Sk=1024, D=8, Dv=8, dtype="float32")
        out, lse = numpy_tiled.attention(q, k, v)
        tracemalloc.start()
        numpy_tiled.tiled_gradients(out, q, k, v, out, lse, q_tile=64, kv_tile=64)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert peak < 1024 * 1024 * 4 / 4  # a quarter of one matrix of weights in float32


class TestTorchTiled:
    def test_every_subset_of_inputs_that_require_a_gradient_gets_the_same_ones(self):
        options = to_torch(OPTIONS["bias with -inf"])
        tensors = {**dict(zip("qkv", map(torch.from_numpy, inputs()), strict=True)), "bias": options["bias"]}
        whole = {}
        for chosen in sorted(product((False, True), repeat=4), reverse=True)[:-1]:
            leaves = {
                n: x.clone().requires_grad_(needed) for (n, x), needed in zip(tensors.items(), chosen, strict=True)
            }
            out, lse = torch_tiled.attention(**leaves)
            (out.sum() + lse.sum()).backward()
            whole = whole or {n: x.grad for n, x in leaves.items()}

            assert {n for n, x in leaves.items() if x.grad is not None} == set(compress(tensors, chosen))
            assert all(torch.equal(leaves[n].grad, whole[n]) for n in compress(tensors, chosen))

    def test_nothing_of_the_size_of_the_scores_is_saved(self):
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in inputs(Sq=64, Sk=80))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
            torch_tiled.attention(q, k, v, causal=True)

        assert 0 < max(saved) < 64 * 80 * 6 * 2 / 3

    def test_gradcheck(self):
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in inputs(B=1, Hq=2, Hkv=1, Sq=3, Sk=34, D=2, Dv=1))
        bias = torch.zeros(1, 2, 1, 34, dtype=torch.float64, requires_grad=True)

        assert torch.autograd.gradcheck(
            lambda *leaves: torch_tiled.attention(*leaves[:3], bias=leaves[3], softcap=2.0, causal=True,
                                                  causal_alignment="bottom_right"),
            (q, k, v, bias),
        )  # fmt: skip


class TestTorchSdpa:
    @pytest.mark.parametrize("shape", [(1, 96), (1, 320), (1, 1024), (8, 96)], ids=str)
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_flash_stores_dv_in_half_after_every_tile_of_every_head(self, dtype, shape):
        """One key, so p = 1 and dv is the sum of dO: in each head 1, and 3/4 of an ulp of it for every tile."""
        heads, Sq = shape
        tile, half = 32 if Sq < 192 else 64 if Sq < 768 else 256, getattr(torch, dtype)
        dO = torch.full((1, heads, Sq, 1), 0.75 * torch.finfo(half).eps / tile, dtype=half)
        dO[:, :, 0] = 1
        q, k = torch.zeros(1, heads, Sq, 1, dtype=half), torch.zeros(1, 1, 1, 1, dtype=half)
        v = torch.ones(1, 1, 1, 1, dtype=half, requires_grad=True)
        torch_sdpa.flash(q, k, v).backward(dO)
        expected, tiles = torch.zeros((), dtype=half), dO.reshape(-1, tile).float().sum(dim=-1)
        for contribution in tiles:
            expected = (expected + contribution).to(half)

        assert v.grad.item() == expected.item() != tiles.sum().to(half).item()
        assert len(tiles) <= torch_sdpa.flash.contract_for(dtype).gradient_stores


@interpreted
def test_triton_takes_what_the_forward_pass_returned_in_any_strides():
    q, k, v = (torch.from_numpy(x) for x in inputs(Hq=2, Sq=9, Sk=9, dtype="float32"))
    out, lse = triton_tiled.attention(q, k, v)
    returned = out, lse, lse.flip(-1)
    views = [x.transpose(0, 2).contiguous().transpose(0, 2) for x in returned]

    plain, strided = (triton_tiled.gradients(out, q, k, v, out, lse, dlse=dlse) for out, lse, dlse in (returned, views))

    assert all(torch.equal(*pair) for pair in zip(plain, strided, strict=True))
