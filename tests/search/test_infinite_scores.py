"""An infinite score leaves a number where no formula subtracts it from itself, and only there."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.contract.presets import FP32
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

PROPERTY = load_all()["special_values.an_infinite_score_gives_no_number"]
BY_DIFFERENCES = replace(FP32, lse_merges=4096, merging="difference")


def scores(q, k):
    return q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)


def by_maximum(q, k, v):
    s = scores(q, k)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def with_a_shortcut(q, k, v):
    """Attend; one key has the weight 1, and its score is not computed."""
    if k.shape[2] == 1:
        return np.broadcast_to(v, (*q.shape[:3], v.shape[-1])).copy()
    return by_maximum(q, k, v)


def by_differences(q, k, v):
    """Attend as FLASH-D (arXiv 2505.14201): each weight is the sigmoid of a score less the log-sum-exp before it."""
    s, out = scores(q, k), np.broadcast_to(v[:, :, :1], (*q.shape[:3], v.shape[-1]))
    lse = s[..., :1]
    for j in range(1, k.shape[2]):
        with np.errstate(over="ignore"):
            w = 1 / (1 + np.exp(lse - s[..., j : j + 1]))
        out = out + (v[:, :, j : j + 1] - out) * w
        lse = np.logaddexp(lse, s[..., j : j + 1])
    return out


@pytest.mark.parametrize(
    ("function", "contract", "verdict"),
    [
        (by_maximum, FP32, Verdict.HELD),
        (with_a_shortcut, FP32, Verdict.HELD),
        (by_differences, BY_DIFFERENCES, Verdict.NOT_DECLARED),
        (by_maximum, replace(FP32, reference="zero", reference_range=60.0), Verdict.NOT_DECLARED),
        (by_differences, FP32, Verdict.REFUTED),
    ],
)
def test_it_must_be_nan_where_a_maximum_is_subtracted(function, contract, verdict):
    made = kernel(framework="numpy", dtypes=("float32",), contract=contract, supports=("dv", "cross"))(function)

    row, case = search(PROPERTY, Subject(made, "float32"), PROFILES["smoke"], 0)

    assert row.verdict is verdict
    if verdict is Verdict.REFUTED:
        assert "a kernel that subtracts no maximum of a row says so by the contract field" in str(case)
