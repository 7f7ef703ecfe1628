"""Rows and batch entries far apart in memory: a kernel may refuse them, and may not be wrong or crash."""

import numpy as np
import pytest

from attn_spec.kernels.declaration import kernel
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Crashed
from attn_spec.kernels.subject import Subject
from attn_spec.search.property import load_all
from attn_spec.search.regimes import Recipe

CHECK = load_all()["independence.rows_and_batch_entries_may_lie_far_apart"].check
#: Stride, in elements, past which an offset of 32 bits with a sign has no room.
MOST = 2**31
PROBLEM = Recipe(batch=2, query_length=2, key_length=2, head_dim=4, value_dim=4).problem()


def subject(refused):
    """Attention that raises where the stride of one of these axes has more than 31 bits."""

    @kernel(framework="numpy", dtypes=("float32",), contract="fp32")
    def k(q, k, v):
        if any(x.strides[axis] // x.itemsize > MOST for x in (q, k, v) for axis in refused):
            raise RuntimeError("strides must be less than 2147483647")
        s = q @ k.swapaxes(-1, -2) / np.float32(2)
        p = np.exp(s - s.max(-1, keepdims=True))
        return p @ v / p.sum(-1, keepdims=True)

    return Subject(k, "float32")


@pytest.mark.parametrize("refused", [(), (0,), (2,)])
def test_one_that_is_refused_proves_nothing(refused):
    CHECK(subject(refused), PROBLEM)


def test_where_both_are_refused_nothing_was_measured():
    with pytest.raises(NotTaken, match=r"it refuses both: .*strides must be less than 2147483647"):
        CHECK(subject((0, 2)), PROBLEM)


def test_a_crash_is_no_refusal(monkeypatch):
    def crash(*_, **__):
        raise Crashed("the kernel crashed the process (SIGSEGV)")

    monkeypatch.setattr(Subject, "__call__", crash)
    with pytest.raises(Crashed):
        CHECK(subject(()), PROBLEM)
