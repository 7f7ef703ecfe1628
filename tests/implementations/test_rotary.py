"""Rotary positions of the kernels here: the turns are those of the definition, forward and back."""

import math

import numpy as np
import pytest
import torch
from attn_spec.implementations.rotary import first_position, places, turned_array
from attn_spec.implementations.torch_rotary import turned

from attn_spec.attention.arithmetic import FLOATS
from attn_spec.attention.rotations import Rotation
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options.rotary import LAYOUTS
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.regimes import Recipe
from tests.implementations.kernel_inputs import HAS_TRITON, interpreted

if HAS_TRITON:
    from attn_spec.implementations import triton_tiled
    from attn_spec.implementations.triton_rotary import Turn

X = np.random.default_rng(0).standard_normal((2, 3, 5, 7))
SETTINGS = [(layout, base, dim) for layout in LAYOUTS for base in (None, 100.0) for dim in (None, 4, 0)]


def by_tables(layout, base, dim, first):
    turn = Rotation(np.arange(first, first + 5), base or 10000.0, 6 if dim is None else dim, 7, layout)
    cos, sin = FLOATS.tables(turn)
    return X * cos + FLOATS.swapped(X, turn) * sin


@pytest.mark.parametrize(("layout", "base", "dim"), SETTINGS)
@pytest.mark.parametrize("first", [0, 3, -2])
def test_rows_are_turned_as_the_definition_says(layout, base, dim, first):
    asked = {"rotary": layout, "rotary_base": base, "rotary_dim": dim}
    expected = by_tables(layout, base, dim, first)

    at = places(None, first, 5)

    np.testing.assert_allclose(turned_array(X, at, **asked), expected, atol=1e-14)
    np.testing.assert_allclose(turned(torch.tensor(X), torch.tensor(at), **asked).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize(("layout", "base", "dim"), SETTINGS)
def test_a_turn_back_is_the_gradient_of_a_turn(layout, base, dim):
    asked = {"rotary": layout, "rotary_base": base, "rotary_dim": dim}
    x, t, at = torch.tensor(X, requires_grad=True), np.cos(X), places(None, 2, 5)
    turned(x, torch.tensor(at), **asked).backward(torch.tensor(t))
    back = turned(torch.tensor(t), torch.tensor(at), **asked, back=True)

    np.testing.assert_allclose(turned_array(t, at, **asked, back=True), x.grad.numpy(), atol=1e-14)
    np.testing.assert_allclose(turned_array(turned_array(X, at, **asked), at, **asked, back=True), X, atol=1e-14)
    np.testing.assert_allclose(back.numpy(), x.grad.numpy(), atol=1e-14)


def test_without_rotary_positions_rows_stay_as_they_are():
    asked, at = {"rotary": None, "rotary_base": None, "rotary_dim": None}, places(None, 3, 5)
    assert turned_array(X, at, **asked) is X
    assert turned(x := torch.tensor(X), torch.tensor(at), **asked) is x


def test_tables_have_the_dtype_of_what_they_turn():
    """Hugging Face finds angles in float32, and rounds cosines and sines to bfloat16."""
    ones = torch.ones(1, 1, 300, 2, dtype=torch.bfloat16)
    found = turned(ones, torch.arange(300), rotary="half", rotary_base=None, rotary_dim=None)
    angles = torch.arange(300, dtype=torch.float32)

    assert found.dtype == torch.bfloat16
    assert (found[0, 0, :, 0] == angles.cos().bfloat16() - angles.sin().bfloat16()).all()


def test_queries_count_from_the_key_they_are_aligned_with():
    assert [first_position(alignment, 3, 8) for alignment in ("top_left", "bottom_right")] == [0, 5]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "kernel", ["numpy_tiled", "torch_scores:rotary", "torch_tiled", pytest.param("triton_tiled", marks=interpreted)]
)
@pytest.mark.parametrize("rotary", LAYOUTS)
def test_long_sequences_stay_within_their_bounds(kernel, rotary, dtype):
    """Positions beyond 256, which bfloat16 cannot tell apart."""
    sizes = {"query_length": 9, "key_length": 600, "head_dim": 32, "value_dim": 32}
    subject = Subject(resolve(kernel), dtype)
    problem = Recipe(dtypes=dtype, rotary=rotary, causal_alignment="bottom_right", **sizes).problem()
    dO = cotangent(subject, problem)

    assert_within_bound(subject, problem, subject(problem))
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kernel", ["jax_attention:tiled", "numpy_tiled", "torch_scores:rotary", "torch_tiled"])
@pytest.mark.parametrize(
    "base",
    [1e39, 2e38, 2e-38, 1e-39, *(pytest.param(far, marks=pytest.mark.exhaustive) for far in (1e300, 5e37, 1e-300))],
)
def test_a_base_that_float32_does_not_hold_accuses_nobody(kernel, base, dtype):
    """Powers of it in float32 are of 0 or infinity; and of one that it holds they are within their bounds."""
    subject = Subject(resolve(kernel), dtype)
    problem = Recipe(dtypes=dtype, rotary="half", rotary_base=base, query_length=3, key_length=4, head_dim=32).problem()
    dO = cotangent(subject, problem)

    assert_within_bound(subject, problem, subject(problem))
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))


@interpreted
class TestTriton:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("rotary", LAYOUTS)
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    @pytest.mark.parametrize(("head_dim", "rotary_dim"), [(5, None), (21, 6), (4, 4), (4, 0), (1, None)])
    def test_parts_of_any_width_stay_within_their_bounds(self, head_dim, rotary_dim, dtype, rotary):
        sizes = {"query_length": 5, "key_length": 40, "head_dim": head_dim, "value_dim": 2, "query_heads": 2}
        how = {"rotary": rotary, "rotary_dim": rotary_dim, "rotary_base": 3.0, "causal_alignment": "bottom_right"}
        problem, subject = Recipe(dtypes=dtype, **sizes, **how).problem(), Subject(resolve("triton_tiled"), dtype)
        dO = cotangent(subject, problem)

        assert_within_bound(subject, problem, subject(problem))
        assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))

    @pytest.mark.parametrize("rotary", LAYOUTS)
    def test_one_pair_by_hand(self, rotary):
        """q = (1, 0) at 1 and k = (1, 0) at 0, (0, 1) at 1: s = (cos 1, cos 0 (-sin 0) + 1) = (cos 1, 0).

        With R_1 q = (cos 1, sin 1) and R_1 (0, 1) = (-sin 1, cos 1) the second score is 0; p = e^s / (e^cos 1 + 1).
        dO = 1 on v = (1, 0): ds = p (1 - p) (1, -1); dq = R_-1 sum ds_j R_j k_j, dk_j = ds_j R_-j R_1 q.
        """
        q, k = torch.tensor([[0.0, 0.0], [1.0, 0.0]])[None, None], torch.eye(2)[None, None]
        v, how = torch.tensor([[1.0], [0.0]])[None, None], {"rotary": rotary, "scale": 1.0}
        out, lse = triton_tiled.attention(q, k, v, **how)
        p = 1 / (1 + math.exp(-math.cos(1)))
        dq, dk, _ = triton_tiled.gradients(torch.tensor([[0.0], [1.0]])[None, None], q, k, v, out, lse, **how)

        assert out[0, 0, 1, 0] == pytest.approx(p, rel=1e-6)
        ds, cos, sin = p * (1 - p), math.cos(1), math.sin(1)
        assert dq[0, 0, 1].tolist() == pytest.approx([ds * cos, ds * (-sin - 1)], rel=1e-6)
        assert dk[0, 0, 0].tolist() == pytest.approx([ds * cos, ds * sin], rel=1e-6)
        assert dk[0, 0, 1].tolist() == pytest.approx([-ds, 0.0], abs=1e-7)

    @pytest.mark.parametrize("block", [4, 8, 16])
    def test_parts_pass_no_more_roundings_than_one_product(self, block):
        """The count of ``contract.products`` holds: n alignments and one truncation for each 4 products, equal in size.

        Parts align one product less, the first of all, and a block that it has for itself is not cut.
        """
        for D in range(1, 257):
            for R in range(0, D + 1, 2):
                first, *others = Turn(D, "half", None, R).widths
                cuts = sum(math.ceil(width / block) for width in (first, *others)) - (first == 1)
                assert D - 1 + cuts <= D + math.ceil(D / 4) or (block == 4 and R % 8 == 2)
