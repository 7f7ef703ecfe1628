"""Tensors that lie in memory as few do: a kernel may refuse them, and may not be wrong or crash."""

import numpy as np
import pytest

from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Crashed
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import Refutation, load_all

CHECK, LAYOUT, SECOND_PASS = (
    load_all()[name].check
    for name in (
        "independence.rows_and_batch_entries_may_lie_far_apart",
        "independence.the_layout_in_memory_has_no_influence",
        "gradient_independence.a_second_pass_through_one_graph_gives_the_same_gradients",
    )
)
#: Stride, in elements, past which an offset of 32 bits with a sign has no room.
MOST = 2**31
PROBLEM = Recipe(batch=2, query_length=2, key_length=2, head_dim=4, value_dim=4).problem()


def attended(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(2)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def declared(function):
    return Subject(kernel(framework="numpy", dtypes=("float32",), contract="fp32")(function), "float32")


def subject(refused):
    """Return attention that raises where the stride of one of these axes has more than 31 bits."""

    def k(q, k, v):
        if any(x.strides[axis] // x.itemsize > MOST for x in (q, k, v) for axis in refused):
            raise RuntimeError("strides must be less than 2147483647")
        return attended(q, k, v)

    return declared(k)


def of_last_stride_one(q, k, v):
    if any(x.strides[-1] != x.itemsize for x in (q, k, v)):
        raise ValueError("the last axis must be contiguous")
    return attended(q, k, v)


def as_if_of_last_stride_one(q, k, v):
    """Read keys by their own strides but for the last one."""
    return attended(q, np.lib.stride_tricks.as_strided(k, k.shape, (*k.strides[:-1], k.itemsize)), v)


@pytest.mark.parametrize("refused", [(), (0,), (2,)])
def test_one_that_is_refused_proves_nothing(refused):
    CHECK(subject(refused), PROBLEM)


def test_where_both_are_refused_nothing_was_measured():
    with pytest.raises(NotTaken, match=r"it refuses both: .*strides must be less than 2147483647"):
        CHECK(subject((0, 2)), PROBLEM)


#: Calls without an answer that refuse nothing.
NO_REFUSAL = (
    Crashed("the kernel crashed the process (SIGSEGV)"),
    CallFailed("the kernel's call did not return within 60 s"),
)


@pytest.mark.parametrize("error", NO_REFUSAL, ids=lambda error: type(error).__name__)
def test_a_crash_or_a_hang_is_no_refusal(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Subject, "__call__", fail)
    with pytest.raises(type(error)):
        CHECK(subject(()), PROBLEM)


@pytest.mark.parametrize("error", NO_REFUSAL, ids=lambda error: type(error).__name__)
def test_nor_is_it_in_a_second_pass(monkeypatch, error):
    first = Subject.gradients

    def fail(self, *given, **named):
        if self.passes == 2:
            raise error
        return first(self, *given, **named)

    monkeypatch.setattr(Subject, "gradients", fail)
    with pytest.raises(type(error)):
        SECOND_PASS(Subject(resolve("torch_eager"), "float32"), PROBLEM)


#: Problems whose tensors are laid in different ways, drawn for each.
DRAWN = [Recipe(seed=seed, query_length=2, key_length=3, head_dim=4, value_dim=4).problem() for seed in range(8)]


def is_refuted(subject, problem):
    try:
        LAYOUT(subject, problem)
    except Refutation:
        return True
    return False


def test_a_kernel_may_refuse_another_last_stride():
    assert not any(is_refuted(declared(of_last_stride_one), problem) for problem in DRAWN)


def test_a_last_stride_that_is_not_read_is_refuted():
    assert sum(is_refuted(declared(as_if_of_last_stride_one), problem) for problem in DRAWN) >= len(DRAWN) / 4
