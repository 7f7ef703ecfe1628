"""A C function is passed what the names of its parameters say; a Python function stands for it and reads its memory."""

import ctypes
import mmap
import os

import numpy as np
import pytest
import torch

from attn_spec.kernels.c_abi.called import Called
from attn_spec.kernels.c_abi.dlpack import DTYPES, DLManagedTensor, DLTensor, structure
from attn_spec.kernels.c_abi.fence import ALIGNED, Fence
from attn_spec.kernels.c_abi.prototype import read
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.presentations.table import PRESENTATIONS

TENSORS = "void *q, void *k, void *v, void *out"


def passed(parameters, *tensors, presentation="BHSD", reads=lambda **every: None, **options):
    """Return what a function with these parameters is passed beside its four tensors, and the result of ``reads``."""
    own, seen = read(f"void f({TENSORS}, {parameters})"), {}

    def entry(*values):
        seen.update({each.name: value for each, value in zip(own.parameters, values, strict=True)})
        seen["read"] = reads(**seen)

    Called(own, entry, PRESENTATIONS[presentation])(*tensors, out=np.zeros_like(tensors[0]), **options)
    return {name: value for name, value in seen.items() if name not in ("q", "k", "v", "out")}


def numbers(address, *shape, dtype=np.float32):
    """Return a copy of the row-major tensor at an address."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address, size), dtype).reshape(shape)


def tensors(q, k, v):
    return tuple(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in (q, k, v))


SMALL = tensors((2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 4))


@pytest.mark.parametrize(
    ("presentation", "shapes", "heads", "counts"),
    [
        ("BHSD", ((2, 6, 3, 8), (2, 2, 5, 8), (2, 2, 5, 4)), {}, (2, 6, 2, 3, 5, 8, 4)),
        ("BSHD", ((2, 3, 6, 8), (2, 5, 2, 8), (2, 5, 2, 4)), {}, (2, 6, 2, 3, 5, 8, 4)),
        ("HSD", ((6, 3, 8), (2, 5, 8), (2, 5, 4)), {}, (1, 6, 2, 3, 5, 8, 4)),
        ("SD", ((3, 8), (5, 8), (5, 4)), {}, (1, 1, 1, 3, 5, 8, 4)),
        ("BS(HD)", ((2, 3, 48), (2, 5, 16), (2, 5, 8)), {"query_heads": 6, "kv_heads": 2}, (2, 6, 2, 3, 5, 8, 4)),
    ],
)
def test_counts_are_those_of_the_problem(presentation, shapes, heads, counts):
    asked = "int B, int Hq, int Hkv, int Sq, int Sk, int D, int Dv"
    found = passed(asked, *tensors(*shapes), presentation=presentation, **heads)

    assert tuple(found.values())[:-1] == counts


@pytest.mark.parametrize(
    ("parameters", "options", "values"),
    [
        ("double scale", {}, (8**-0.5,)),
        ("float scale", {"scale": 0.25}, (0.25,)),
        ("int causal", {}, (0,)),
        ("int causal", {"causal": True}, (1,)),
        ("float softcap", {}, (0.0,)),
        ("float softcap", {"softcap": 30.0}, (30.0,)),
        ("int window_left, int window_right", {}, (-1, -1)),
        ("int window_left, int window_right", {"window": (None, 0)}, (-1, 0)),
        ("int window_left, int window_right", {"window": (4, None)}, (4, -1)),
        ("int attention_chunk, int window_sinks", {"attention_chunk": 7}, (7, 0)),
        ("float dropout_p", {"dropout_p": 0.5}, (0.5,)),
        ("bool *mask, float *bias, int bias_stride_Q", {}, (None, None, 0)),
    ],
)
def test_numbers_say_options(parameters, options, values):
    found = list(passed(parameters, *SMALL, **options).values())[:-1]

    assert tuple(found) == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_an_option_has_all_entries_along_its_axes():
    mask = np.array([True, False, True, True, False]).reshape(1, 1, 1, 5)
    slopes = np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1)

    def read_both(mask, alibi_slopes, **further):
        return numbers(mask, 2, 6, 3, 5, dtype=bool), numbers(alibi_slopes, 2, 6)

    found = passed("bool *mask, float *alibi_slopes", *SMALL, reads=read_both, mask=mask, alibi_slopes=slopes)["read"]
    assert (found[0] == mask).all()
    assert (found[1] == slopes[0, :, 0, 0]).all()


@pytest.mark.parametrize(
    ("presentation", "q", "k", "given", "whole"),
    [
        ("BHSD", (2, 6, 3, 8), (2, 2, 5, 8), (3, 5), (2, 6, 3, 5)),  # a mask for all batch entries and heads
        ("HSD", (6, 3, 8), (2, 5, 8), (6, 1, 5), (6, 3, 5)),
        ("SD", (3, 8), (5, 8), (1, 5), (3, 5)),
    ],
)
def test_an_option_has_the_axes_of_the_presentation(presentation, q, k, given, whole):
    mask = np.arange(np.prod(given)).reshape(given) % 3 > 0
    found = passed(
        "bool *mask",
        *tensors(q, k, k),
        presentation=presentation,
        reads=lambda mask, **further: numbers(mask, *whole, dtype=bool),
        mask=mask,
    )

    assert (found["read"] == mask).all()


def test_an_option_whose_strides_are_passed_is_no_copy():
    bias = np.arange(15, dtype=np.float32).reshape(1, 1, 3, 5)
    strides = ", ".join(f"int64_t bias_stride_{axis}" for axis in "BHQK")
    found = passed(f"float *bias, {strides}", *SMALL, bias=bias)

    assert list(found.values())[:-1] == [bias.ctypes.data, 0, 0, 5, 1]


def test_strides_of_an_option_are_those_of_the_axes_that_a_call_has():
    bias = np.zeros((3, 10), np.float32)[:, ::2]
    asked = "float *bias, int bias_stride_Q, int bias_stride_K"
    found = passed(asked, *tensors((3, 8), (5, 8), (5, 8)), presentation="SD", bias=bias)

    assert list(found.values())[:-1] == [bias.ctypes.data, 10, 2]


@pytest.mark.parametrize(
    ("parameters", "in_place"),
    [
        ("int64_t q_stride_B, int64_t q_stride_H, int64_t q_stride_S, int64_t q_stride_D", True),
        ("int64_t q_stride_B, int64_t q_stride_H, int64_t q_stride_S", False),
        ("int64_t q_stride_D", False),
    ],
)
def test_a_view_is_passed_if_all_its_strides_are(parameters, in_place):
    wide = np.arange(2 * 6 * 3 * 16, dtype=np.float32).reshape(2, 6, 3, 16)
    view = wide[..., ::2]
    seen = {}
    found = passed(parameters, view, *SMALL[1:], reads=lambda **every: seen.update(every))
    strides = {name[-1]: step for name, step in found.items() if name.startswith("q_stride")}
    steps = dict(zip("BHSD", (288, 48, 16, 2) if in_place else (144, 24, 8, 1), strict=True))

    assert (seen["q"] == view.ctypes.data) == in_place
    assert strides.items() <= steps.items()


def test_a_view_that_runs_backwards_is_copied():
    backwards = SMALL[0][:, :, ::-1]
    seen = {}
    passed(
        "int64_t q_stride_B", backwards, *SMALL[1:], reads=lambda q, **further: seen.update(q=numbers(q, 2, 6, 3, 8))
    )

    assert (seen["q"] == backwards).all()


@pytest.mark.parametrize(("kind", "stride"), [("int64_t", 2**31 + 64), ("uint32_t", 2**31 + 64), ("int", 8)])
def test_a_stride_that_its_type_has_not_makes_a_copy(kind, stride):
    far = memory.far_apart(SMALL[0][:, :, :2], axis=2)

    assert passed(f"{kind} q_stride_S", far[:1, :1], *SMALL[1:])["q_stride_S"] == stride


def test_an_input_that_is_written_is_changed():
    q, k, v = (x.copy() for x in SMALL)

    def write(q, v, **further):
        ctypes.memset(q + 4, 0, 4)
        ctypes.memset(v, 0, 4)

    v[0, 0, 0, 0] = 5
    passed("int B", q, k, v[..., ::2], reads=write)
    assert (q != SMALL[0]).sum() == 1
    assert q[0, 0, 0, 1] == v[0, 0, 0, 0] == 0
    assert (k == SMALL[1]).all()


@pytest.mark.parametrize("kind", ["DLTensor", "DLManagedTensor"])
def test_a_structure_has_the_shape_the_strides_and_the_dtype(kind):
    own, seen = read(f"void f({kind} *q, {kind} *k, void *v, void *out)"), []
    view = SMALL[0][:, :, ::-1][..., ::2]

    def entry(*values):
        found = [ctypes.cast(value, ctypes.POINTER(DLManagedTensor)).contents for value in values[:2]]
        for one in found:
            x: DLTensor = one.dl_tensor
            facts = x.data, tuple(x.shape[: x.ndim]), tuple(x.strides[: x.ndim]), x.byte_offset, one.deleter
            seen.append((*facts, x.device.device_type, x.dtype.code, x.dtype.bits, x.dtype.lanes))

    Called(own, entry, PRESENTATIONS["BHSD"])(view, SMALL[1][:, :, :0].astype(bool), SMALL[2], out=np.zeros(1))
    assert seen[0] == (view.ctypes.data, (2, 6, 3, 4), (144, 24, -8, 2), 0, None, 1, 2, 32, 1)
    assert seen[1] == (None, (2, 2, 0, 8), (0, 0, 8, 1), 0, None, 1, 6, 8, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_has_the_code_that_pytorch_gives_it(dtype):
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = torch.utils.dlpack.to_dlpack(torch.zeros(2, dtype=getattr(torch, dtype)))
    theirs = DLManagedTensor.from_address(pointer_of(capsule, b"dltensor")).dl_tensor
    ours = structure(1, (2,), (1,), dtype).dl_tensor

    for field in ("code", "bits", "lanes"):
        assert getattr(theirs.dtype, field) == getattr(ours.dtype, field)
    assert (theirs.ndim, theirs.shape[0], theirs.strides[0]) == (ours.ndim, ours.shape[0], ours.strides[0])
    assert theirs.device.device_type == ours.device.device_type


def can_read(address):
    """Return whether the system may read a byte at an address of this process."""
    reading, writing = os.pipe()
    try:
        return ctypes.CDLL(None).write(writing, ctypes.c_void_p(address), ctypes.c_size_t(1)) == 1
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("size", [0, 1, 64, mmap.PAGESIZE - 4, mmap.PAGESIZE, mmap.PAGESIZE + 4])
def test_memory_ends_before_a_page_that_nobody_may_touch(size):
    fence = Fence(size)
    behind = -(fence.address + size) % mmap.PAGESIZE

    assert fence.address % ALIGNED == 0
    assert behind < ALIGNED
    assert not can_read(fence.address + size + behind)
    assert not can_read(fence.address // mmap.PAGESIZE * mmap.PAGESIZE - 1) or not size
    assert can_read(fence.address) == bool(size)
    assert fence.overrun() == ""
    assert np.isnan(numbers(fence.address + size, behind // 4)).all()
    if size % ALIGNED:
        ctypes.memset(fence.address + size, 0, 1)
        assert fence.overrun() == "behind"


def test_want_of_memory_is_told_as_such():
    """A call that raises for lack of memory says nothing about the numbers of a kernel."""
    with pytest.raises(MemoryError, match=r"\d+ bytes cannot be mapped: Cannot allocate memory"):
        Fence(2**62)
