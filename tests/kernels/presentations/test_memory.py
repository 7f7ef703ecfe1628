"""Every layout holds the values it was given, has the strides it says, and is made for NumPy and torch alike."""

import numpy as np
import pytest
import torch

from attn_spec.kernels.frameworks.framework import UNUSED_INTEGERS, strided
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.presentations import memory

VALUES = np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype(np.float32)
KINDS = {"numpy": VALUES.copy, "torch": lambda: torch.from_numpy(VALUES.copy())}


@pytest.fixture(params=KINDS)
def tensor(request):
    return KINDS[request.param]()


def is_packed(tensor):
    return tensor.flags.c_contiguous if isinstance(tensor, np.ndarray) else tensor.is_contiguous()


def around(view):
    """Return the buffer that holds a view."""
    return (
        view.base
        if isinstance(view, np.ndarray)
        else torch.as_strided(view, (view.untyped_storage().size() // 4,), (1,), 0)
    )


@pytest.mark.parametrize("axes", [(1, 2), (2, 3)])
def test_swapped_axes_hold_the_same_values(tensor, axes):
    arranged = memory.swapped(tensor, *axes)

    assert (np.asarray(arranged) == VALUES).all()
    assert not is_packed(arranged)


def test_a_slice_lies_in_a_buffer_of_nan(tensor):
    arranged = memory.sliced(tensor)

    assert (np.asarray(arranged) == VALUES).all()
    assert not is_packed(arranged)
    assert np.isnan(np.asarray(around(arranged))).sum() == 2 * 3 * (7 * 36 - 5 * 4)


@pytest.mark.parametrize(("way", "stride"), [(memory.by_columns, 5), (memory.spaced, 2)])
def test_the_last_stride_is_not_one(tensor, way, stride):
    arranged = way(tensor)
    last = arranged.strides[-1] // 4 if isinstance(arranged, np.ndarray) else arranged.stride(-1)

    assert (np.asarray(arranged) == VALUES).all()
    assert last == stride


def test_nan_lies_between_the_numbers_of_a_spaced_tensor(tensor):
    assert np.isnan(np.asarray(around(memory.spaced(tensor)))).sum() == VALUES.size


@pytest.mark.parametrize("made", [np.array, torch.tensor])
def test_a_slice_of_positions_lies_in_a_buffer_of_what_is_none(made):
    arranged = memory.sliced(made([[[[3, 5]]]]))
    buffer = np.asarray(arranged.base if made is np.array else arranged._base)

    assert np.asarray(arranged).tolist() == [[[[3, 5]]]]
    assert (buffer == UNUSED_INTEGERS["int64"]).sum() == 3 * 34 - 2


@pytest.mark.parametrize(
    ("axes", "leading"), [((0,), VALUES[:1]), ((0, 2), VALUES[:1, :, :1]), (range(4), VALUES[:1, :1, :1, :1])]
)
def test_an_expanded_tensor_repeats_its_first_entries_with_stride_zero(tensor, axes, leading):
    arranged = memory.expanded(tensor, axes)
    strides = arranged.strides if isinstance(arranged, np.ndarray) else arranged.stride()

    assert (np.asarray(arranged) == np.broadcast_to(leading, VALUES.shape)).all()
    assert all(strides[axis] == 0 for axis in axes)


def test_later_rounds_are_written_where_the_first_lay(tensor):
    rounds = [tensor * factor for factor in (1, 2, 3, 4)]
    arrange = memory.in_the_same_place(tensors=2)
    first, second, third, fourth = map(arrange, rounds)

    assert third is first
    assert fourth is second
    assert (np.asarray(first) == 3 * VALUES).all()
    assert (np.asarray(second) == 4 * VALUES).all()


def test_what_follows_freed_nan_is_the_tensor_itself(tensor):
    assert memory.after_freed_nan(tensor, [(2, 3)]) is tensor


@pytest.mark.parametrize("axis", [0, 2])
def test_entries_far_apart_hold_the_same_values_past_32_bits(tensor, axis):
    arranged = memory.far_apart(tensor, axis)
    stride = arranged.strides[axis] // 4 if isinstance(arranged, np.ndarray) else arranged.stride(axis)

    assert (np.asarray(arranged) == VALUES).all()
    assert stride * (VALUES.shape[axis] - 1) > 2**31
    assert stride % 64 == 0
    assert memory.far_apart(tensor[:1], 0) is not None


def test_where_the_system_refuses_so_many_addresses_the_problem_is_not_taken(tensor, monkeypatch):
    def refused(self, tensor, strides):
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(type(strided(tensor)), "vast", refused)
    with pytest.raises(NotTaken, match="a buffer of 2147483648 elements cannot be allocated: Cannot allocate memory"):
        memory.far_apart(tensor, 2)


def test_a_mask_of_all_heads_is_handed_in_two_axes(tensor):
    assert memory.of_two_axes(tensor[:1, :1]).shape == (5, 4)
    assert memory.of_two_axes(tensor).shape == VALUES.shape
