"""A row sum in a narrow format is found where it stops counting."""

import pytest
import torch

from attn_spec import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.probe.arithmetic import arithmetic
from attn_spec.probe.contracts import _agrees
from attn_spec.probe.row_sum import row_sum_format


def one_by_one(p):
    total = torch.zeros_like(p[..., :1])
    for weight in p.split(1, dim=-1):
        total = total + weight
    return total


def attending(row_sum, dtype, **changes):
    @kernel(framework="torch", dtypes=(dtype,), contract="eager", name="mine", **changes)
    def attention(q, k, v):
        s = q @ k.mT * q.shape[-1] ** -0.5
        p = torch.exp(s - s.amax(-1, keepdim=True))
        return (p.float() @ v.float() / row_sum(p).float()).to(q.dtype)

    return Subject(attention, dtype)


@pytest.mark.parametrize(("dtype", "total"), [("bfloat16", 256), ("float16", 2048)])
def test_a_row_sum_that_stops_counting_is_told(dtype, total):
    found = row_sum_format(attending(one_by_one, dtype))

    assert found.value == dtype
    assert found.evidence == f"{2 * total} equal weights have the sum {total}"


@pytest.mark.parametrize(
    "subject",
    [
        attending(lambda p: p.float().sum(-1, keepdim=True), "bfloat16"),
        attending(one_by_one, "float32"),
        attending(one_by_one, "bfloat16", slowness=8.0),
    ],
)
def test_nothing_is_told_of_a_wide_row_sum_or_where_it_would_take_long(subject):
    assert row_sum_format(subject) is None


def test_no_contract_with_a_wider_row_sum_agrees():
    narrow, wide = attending(one_by_one, "bfloat16"), attending(lambda p: p.float().sum(-1, keepdim=True), "bfloat16")
    of_narrow, of_wide = (
        {str(one): one for one in arithmetic(subject) if one.name == "row sum"} for subject in (narrow, wide)
    )

    assert list(of_narrow) == ["row sum: bfloat16  # 512 equal weights have the sum 256"]
    assert not of_wide
    assert not _agrees("fused", narrow, list(of_narrow.values()))
    assert _agrees("fused", wide, [])
