"""Rotary positions of the kernels here: the turns are those of the definition, forward and back."""

import numpy as np
import pytest
import torch
from attn_spec.implementations.rotary import first_position, turned_array
from attn_spec.implementations.torch_rotary import turned

from attn_spec.attention.arithmetic import FLOATS
from attn_spec.attention.rotations import Rotation
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import LAYOUTS
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound, cotangent
from attn_spec.search.regimes import Recipe

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

    np.testing.assert_allclose(turned_array(X, first, **asked), expected, atol=1e-14)
    np.testing.assert_allclose(turned(torch.tensor(X), first, **asked).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize(("layout", "base", "dim"), SETTINGS)
def test_a_turn_back_is_the_gradient_of_a_turn(layout, base, dim):
    asked = {"rotary": layout, "rotary_base": base, "rotary_dim": dim}
    x, t = torch.tensor(X, requires_grad=True), np.cos(X)
    turned(x, 2, **asked).backward(torch.tensor(t))

    np.testing.assert_allclose(turned_array(t, 2, **asked, back=True), x.grad.numpy(), atol=1e-14)
    np.testing.assert_allclose(turned_array(turned_array(X, 2, **asked), 2, **asked, back=True), X, atol=1e-14)
    np.testing.assert_allclose(turned(torch.tensor(t), 2, **asked, back=True).numpy(), x.grad.numpy(), atol=1e-14)


def test_without_rotary_positions_rows_stay_as_they_are():
    asked = {"rotary": None, "rotary_base": None, "rotary_dim": None}
    assert turned_array(X, 3, **asked) is X
    assert turned(x := torch.tensor(X), 3, **asked) is x


def test_tables_have_the_dtype_of_what_they_turn():
    """As Hugging Face has it: angles in float32, cosines and sines rounded to bfloat16."""
    ones = torch.ones(1, 1, 300, 2, dtype=torch.bfloat16)
    found = turned(ones, 0, rotary="half", rotary_base=None, rotary_dim=None)
    angles = torch.arange(300, dtype=torch.float32)

    assert found.dtype == torch.bfloat16
    assert (found[0, 0, :, 0] == angles.cos().bfloat16() - angles.sin().bfloat16()).all()


def test_queries_count_from_the_key_they_are_aligned_with():
    assert [first_position(alignment, 3, 8) for alignment in ("top_left", "bottom_right")] == [0, 5]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kernel", ["torch_scores:rotary", "numpy_tiled", "torch_tiled"])
@pytest.mark.parametrize("rotary", LAYOUTS)
def test_long_sequences_stay_within_their_bounds(kernel, rotary, dtype):
    """Positions beyond 256, which bfloat16 cannot tell apart."""
    sizes = {"query_length": 9, "key_length": 600, "head_dim": 32, "value_dim": 32}
    subject = Subject(resolve(kernel), dtype)
    problem = Recipe(dtype=dtype, rotary=rotary, causal_alignment="bottom_right", **sizes).problem()
    dO = cotangent(subject, problem)

    assert_within_bound(subject, problem, subject(problem))
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO))
