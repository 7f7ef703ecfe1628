"""Facts that are specific to the in-tree kernels; that they compute attention is for ``properties`` to search."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from attn_spec.implementations import numpy_naive, numpy_tiled, torch_eager, torch_sdpa, torch_tiled
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.implementations.kernel_inputs import BROADCASTS, HAS_TRITON, OPTIONS, inputs, interpreted, to_torch

if HAS_TRITON:  # through triton_tiled, which chooses the interpreter before it imports triton
    from attn_spec.implementations import triton_tiled
    from attn_spec.implementations.triton_tiles import nearest_bfloat16, tl, triton

    @triton.jit
    def round_kernel(x, out):
        at = tl.arange(0, 4096)
        tl.store(out + at, nearest_bfloat16(tl.load(x + at)))

    @triton.jit
    def dot_kernel(x, out):
        at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tile = tl.load(x + at)
        tl.store(out + at, tl.dot(tile, tile))

    @triton.jit
    def cast_kernel(x, out):
        at = tl.arange(0, 16)
        tl.store(out + at, tl.load(x + at).to(tl.bfloat16))


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def options(request):
    return request.param


class TestNumpyTiled:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        lengths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
        tiles=st.tuples(st.integers(1, 45), st.integers(1, 45)),
        reverse=st.booleans(),
        causal=st.booleans(),
        shift=st.sampled_from([0.0, 500.0]),
    )
    def test_any_tiles_in_either_direction_agree_with_the_board(self, *, seed, lengths, tiles, reverse, causal, shift):
        q, k, v = inputs(seed, Sq=lengths[0], Sk=lengths[1])
        rng = np.random.default_rng(seed)
        bias = np.sort(rng.standard_normal((1, 1, 1, lengths[1])) * shift)  # maxima that rise tile after tile
        chosen = {"causal": causal, "bias": bias, "mask": rng.random((2, 1, lengths[0], lengths[1])) < 0.7}
        expected = numpy_naive.attention(q, k, v, **chosen)

        got = numpy_tiled.tiled_attention(q, k, v, q_tile=tiles[0], kv_tile=tiles[1], reverse=reverse, **chosen)

        np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-13 * np.abs(v).max())
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-14, atol=1e-13)

    def test_reversed_visits_the_last_tile_first(self):
        assert numpy_tiled.slices(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
        assert numpy_tiled.slices(7, 3, reverse=True) == [slice(6, 7), slice(3, 6), slice(0, 3)]
        assert numpy_tiled.slices(0, 3) == []

    def test_both_directions_are_not_the_same_arithmetic(self):
        q, k, v = inputs(Sk=200, dtype="float32")

        assert (numpy_tiled.attention(q, k, v)[0] != numpy_tiled.attention_reversed(q, k, v)[0]).any()


@pytest.mark.parametrize("kernel", [numpy_naive.attention, numpy_tiled.attention, numpy_tiled.attention_reversed])
class TestNumpyKernels:
    @pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
    def test_poison_behind_a_mask_stays_there_even_if_other_queries_see_it(self, kernel, poison):
        q, k, v = inputs()
        clean, clean_lse = kernel(q, k, v, causal=True)
        k[..., 30, :], v[..., 25, 3] = poison, poison
        out, lse = kernel(q, k, v, causal=True)

        np.testing.assert_array_equal(out[..., :25, :], clean[..., :25, :])
        np.testing.assert_array_equal(lse[..., :30], clean_lse[..., :30])
        assert not np.isfinite(out[..., 25:, 3]).any()
        np.testing.assert_array_equal(
            np.delete(out, 3, axis=-1)[..., :30, :], np.delete(clean, 3, axis=-1)[..., :30, :]
        )

    def test_a_visible_infinity_is_weighed(self, kernel):
        q, k, v = inputs()
        v[..., 7, 2] = -np.inf

        assert (kernel(q, k, v)[0][..., 2] == -np.inf).all()

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
    def test_the_layout_of_views_does_not_reach_the_bits(self, kernel, dtype):
        q, k, v = inputs(dtype=dtype, Dv=20)
        views = [np.ascontiguousarray(x.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0) for x in (q, k, v)]

        np.testing.assert_array_equal(kernel(*views)[0], kernel(q, k, v)[0])


class TestTorchKernels:
    @pytest.mark.parametrize("kernel", [torch_eager.attention, torch_tiled.attention], ids=["eager", "tiled"])
    def test_agree_with_numpy(self, kernel, options):
        q, k, v = inputs()
        expected = numpy_naive.attention(q, k, v, **options)

        got = kernel(*map(torch.from_numpy, (q, k, v)), **to_torch(options))

        np.testing.assert_allclose(got[0].numpy(), expected[0], rtol=0, atol=1e-14 * 40)
        np.testing.assert_allclose(got[1].numpy(), expected[1], rtol=1e-14, atol=1e-14)


class TestTorchSdpa:
    KERNELS = (torch_sdpa.math, torch_sdpa.flash, torch_sdpa.flash_operator)

    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
    def test_causal_mask_and_bias_reach_the_kernel_together(self, kernel):
        q, k, v = inputs(Dv=20)
        rng = np.random.default_rng(1)
        chosen = {"causal": True, "mask": rng.random((2, 1, 1, 41)) < 0.8, "bias": rng.standard_normal((1, 6, 37, 41))}
        chosen = {key: value for key, value in chosen.items() if key in kernel.supports}
        expected = numpy_naive.attention(q, k, v, **chosen)[0]

        got = kernel(*map(torch.from_numpy, (q, k, v)), **to_torch(chosen))

        out = got[0] if isinstance(got, tuple) else got
        np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-13)

    def test_flash_takes_views_that_torch_refuses(self):
        q, k, v = (torch.from_numpy(x) for x in inputs(Hkv=6, Dv=20))
        transposed = q.transpose(-1, -2).contiguous().transpose(-1, -2)

        assert torch.equal(torch_sdpa.flash(transposed, k, v), torch_sdpa.flash(q, k, v))

    @pytest.mark.parametrize(("dtype", "exact"), [("float32", True), ("float16", False), ("bfloat16", False)])
    def test_exp_of_zero_is_declared_as_measured(self, dtype, exact):
        """Sixteen equal scores: the row sum is 16 exp(0), up to the rounding of a few additions."""
        one = torch.ones(1, 1, 16, 1, dtype=getattr(torch, dtype))
        _, lse = torch_sdpa.flash_operator(one[:, :, :1], one, one)
        error = abs(lse.item() - (1 + math.log(16)))

        assert (error < 4e-7) == exact
        assert torch_sdpa.flash.contract_for(dtype).exp_of_zero_is_one == exact

    def test_torch_still_hides_keys_before_it_scales_by_a_negative_number(self):
        """-inf times a negative scale is +inf. When this fails, torch is repaired: drop the note in ``flash``."""
        x = torch.ones(1, 1, 2, 1)

        assert torch_sdpa.flash(x, x, x, causal=True, scale=-1.0).isnan().any()
        assert not torch_sdpa.math(x, x, x, causal=True, scale=-1.0).isnan().any()


def torch_inputs(dtype=torch.float32, **shape):
    return [torch.from_numpy(x).to(dtype) for x in inputs(**shape)]


@interpreted
class TestTritonTiled:
    def test_agrees_with_numpy(self, options):
        q, k, v = inputs(dtype="float32")
        expected = numpy_naive.attention(*(x.astype(np.float64) for x in (q, k, v)), **options)

        got = triton_tiled.attention(*map(torch.from_numpy, (q, k, v)), **to_torch(options, torch.float32))

        np.testing.assert_allclose(got[0].numpy(), expected[0], rtol=0, atol=4e-6)
        np.testing.assert_allclose(got[1].numpy(), expected[1], rtol=1e-6, atol=1e-6)

    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("shape", BROADCASTS, ids=str)
    def test_mask_and_bias_broadcast_like_their_dense_copies(self, shape):
        q, k, v = torch_inputs(torch.float16, Sq=37, Sk=41, D=4, Dv=4)
        generator = torch.Generator().manual_seed(0)
        bias = torch.randn(shape, generator=generator, dtype=torch.float16)
        mask = torch.rand(shape, generator=generator) < 0.8
        dense = {"bias": bias.expand(2, 6, 37, 41).contiguous(), "mask": mask.expand(2, 6, 37, 41).contiguous()}
        broadcast = triton_tiled.attention(q[:1, :1], k[:1, :1], v[:1, :1], bias=bias[:1, :1], mask=mask[:1, :1])
        whole = triton_tiled.attention(q[:, ::3], k, v, bias=dense["bias"][:, ::3], mask=dense["mask"][:, ::3])
        view = triton_tiled.attention(q[:, ::3], k, v, bias=bias.expand(2, 6, 37, 41)[:, ::3],
                                      mask=mask.expand(2, 6, 37, 41)[:, ::3])  # fmt: skip

        assert torch.equal(view[0], whole[0])
        assert torch.equal(broadcast[0], whole[0][:1, :1])

    def test_strides_of_views_are_honoured(self):
        q, k, v = torch_inputs(Hq=2, Hkv=2, Sq=40, Sk=40, D=16, Dv=16)
        reordered = [x.permute(3, 2, 0, 1).contiguous().permute(2, 3, 1, 0) for x in (q, k, v)]
        sliced = [torch.cat([x, x], dim=2)[:, :, ::2] for x in (q, k, v)]
        expanded = [x[:1, :1].expand(2, 2, 40, 16) for x in (q, k, v)]
        for views in (reordered, sliced, expanded):
            copies = [x.clone(memory_format=torch.contiguous_format) for x in views]
            assert torch.equal(triton_tiled.attention(*views)[0], triton_tiled.attention(*copies)[0])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
    def test_garbage_beyond_the_last_key_and_dimension_is_not_read(self, dtype):
        plain = torch_inputs(dtype, B=1, Hq=2, Hkv=1)
        padded = [torch.nn.functional.pad(x, (0, 5, 0, 9), value=math.nan) for x in plain]
        q, k, v = (x[:, :, :-9, :-5] for x in padded)

        assert torch.equal(triton_tiled.attention(q, k, v)[0], triton_tiled.attention(*plain)[0])

    def test_rounds_to_the_nearest_bfloat16_ties_to_even(self):
        ties_and_others = torch.arange(0x3F000000, 0x3F000000 + 2**25, 2**14, dtype=torch.int32).view(torch.float32)
        x = torch.cat([ties_and_others, torch.rand(1024), torch.randn(1024) * 2.0**-120])
        x[::3] *= -1
        out = torch.empty_like(x)
        round_kernel[(1,)](x, out)

        assert torch.equal(out, x.bfloat16().float())

    def test_numerator_takes_rounded_probabilities_and_denominator_unrounded_ones(self):
        """Two keys of score 0 and b, of which only the second has a value: out = round(e^b) / (1 + e^b)."""
        q, k = torch.zeros(64, 1, 1, 1).bfloat16(), torch.zeros(64, 1, 2, 1).bfloat16()
        v = torch.tensor([0.0, 1.0]).bfloat16().reshape(1, 1, 2, 1).expand(64, 1, 2, 1)
        b = -torch.arange(64) / 64.0
        bias = torch.stack([torch.zeros(64), b], dim=-1).bfloat16().reshape(64, 1, 1, 2)

        out, lse = triton_tiled.attention(q, k, v, bias=bias)

        assert torch.equal(out.flatten(), (b.exp().bfloat16().float() / (1 + b.exp())).bfloat16())
        torch.testing.assert_close(lse.flatten(), (1 + b.exp()).log(), rtol=0, atol=2e-7)

    def test_refuses_a_triton_that_was_imported_for_hardware(self):
        code = (
            "import os; os.environ.pop('TRITON_INTERPRET', None); import triton, attn_spec.implementations.triton_tiled"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

        assert "set TRITON_INTERPRET=1 from the start" in done.stderr


@interpreted
class TestTritonInterpreter:
    """Canaries: when one fails, Triton is repaired, and the workaround in ``triton_tiled`` can go."""

    def test_dot_still_multiplies_the_bits_of_bfloat16(self):
        x, out = torch.ones(16, 16, dtype=torch.bfloat16), torch.zeros(16, 16)
        dot_kernel[(1,)](x, out)

        assert (out == 16.0 * 0x3F80**2).all()  # 0x3F80 is 1.0; the right answer is 16

    def test_cast_to_bfloat16_still_truncates(self):
        x, out = torch.full((16,), 1.0 + 2**-7 - 2**-12), torch.zeros(16, dtype=torch.bfloat16)
        cast_kernel[(1,)](x, out)

        assert (out == 1.0).all()  # the nearest bfloat16 is 1 + 2^-7
