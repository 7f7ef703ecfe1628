"""Kernels that are made for a GPU, on one: their bounds at every dtype, views, long sequences.

What asks them is shown to work here by kernels of the CPU, and of the interpreter.
"""

import numpy as np
import pytest
from attn_spec.reports.gpu.examination import cuda_kernels

from attn_spec.judgement.long.blocks import judge_parts, parts_of
from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.judgement.measure import judge_gradients
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from tests.implementations.kernel_inputs import HAS_TRITON, interpreted
from tests.implementations.test_backward_kernels import problem_and_cotangents

CUDA = [
    pytest.param(name, dtype, "cuda", id=f"{name}-{dtype}", marks=pytest.mark.gpu)
    for name in (cuda_kernels() if HAS_TRITON else [])
    if "states" not in resolve(name).supports  # a merge of states has problems of its own
    for dtype in resolve(name).dtypes
]
CPU = [
    pytest.param("torch_sdpa:flash", "float32", "cpu", id="torch_sdpa:flash-cpu"),
    pytest.param("triton_tiled", "float32", "cpu", id="triton_tiled-cpu", marks=interpreted),
]
#: Lengths and head dimensions that every one of the kernels takes.
SHAPE = {"B": 2, "Hq": 3, "Hkv": 3, "Sq": 130, "Sk": 130, "D": 64, "Dv": 64}
each = pytest.mark.parametrize(("name", "dtype", "device"), [*CPU, *CUDA])


def judged(subject, problem, sample=None, **how):
    answer = subject(problem, **how)
    judgement = judge_parts(parts_of(problem, **answer), subject.contract, sample=sample)
    assert not judgement.refuted, judgement.worst
    assert judgement.exercised
    return judgement


@each
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_plain_problems_are_within_their_bounds(name, dtype, device, causal):
    problem, _, _ = problem_and_cotangents(dtype, {"causal": True} if causal else {}, **SHAPE)

    assert judged(Subject(resolve(name), dtype, device), problem).ratio > 0


@each
@pytest.mark.parametrize("arrange", [memory.swapped, memory.sliced, memory.expanded], ids=lambda way: way.__name__)
def test_views_are_read_where_they_lie(name, dtype, device, arrange):
    problem, _, _ = problem_and_cotangents(dtype, **SHAPE)
    if arrange is memory.expanded:
        problem = problem.take("B", [0, 0])

    judged(Subject(resolve(name), dtype, device), problem, arrange=arrange)


@each
def test_gradients_are_within_their_bounds(name, dtype, device):
    problem, dO, _ = problem_and_cotangents(dtype, **{**SHAPE, "Sq": 66, "Sk": 66})
    subject = Subject(resolve(name), dtype, device)
    judgement = judge_gradients(problem, subject.contract, dO, subject.gradients(problem, dO))

    assert not judgement.refuted, judgement.worst


@pytest.mark.parametrize(("name", "dtype", "device"), [CPU[0], *CUDA])
def test_sampled_rows_of_a_long_problem_are_within_their_bounds(name, dtype, device):
    shape = {"query_length": 8192, "key_length": 8192, "head_dim": 64, "value_dim": 64}
    problem = Recipe(dtypes=dtype, causal=True, **shape).problem()
    judgement = judged(Subject(resolve(name), dtype, device), problem, RowSample(64))

    assert (judgement.rows, judgement.of) == (64, 8192)


@pytest.mark.gpu
def test_columns_that_lie_2_to_the_31_apart_are_read():
    """Offsets of columns need 64 bits: 16 columns, 2^28 elements apart, pass 2^31."""
    import torch
    from attn_spec.implementations import triton_tiled

    apart = 2**28
    try:
        buffer = torch.empty(15 * apart + 64, dtype=torch.float16, device="cuda")
    except torch.OutOfMemoryError:
        pytest.skip("needs 8 GiB of device memory")
    q, k, v = (torch.randn(1, 1, 32, 16, dtype=torch.float16, device="cuda") for _ in range(3))
    far = buffer.as_strided((1, 1, 32, 16), (0, 0, 1, apart))
    far.copy_(k)

    np.testing.assert_array_equal(*(triton_tiled.attention(q, x, v)[0].cpu().numpy() for x in (far, k)))
