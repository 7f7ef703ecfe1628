"""Tensors of calls in the kernel's own process."""

import numpy as np

from attn_spec.isolation.handed import Handed
from attn_spec.kernels.frameworks.numpy import NUMPY


def of_rows(**further):
    return {"place": 0, "shape": [2, 4], "dtype": "float32", "freed": [], **further}


def test_memory_of_tensors_far_apart_is_given_back_before_the_next_call(monkeypatch):
    released = []
    monkeypatch.setattr(type(NUMPY), "release", lambda own: released.append(own.name))
    handed, blob = Handed(), np.zeros(8, np.float32).view(np.uint8)

    counts = []
    for described in (of_rows(), of_rows(apart=[2**20, 1]), of_rows(), of_rows()):
        handed.tensors(NUMPY, "cpu", [described], [blob])
        counts.append(len(released))

    assert counts == [0, 0, 1, 1]
