"""Known arithmetic against what a probe finds: nothing it says is wrong."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.kernels import emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.probe.accumulators import output_accumulator
from attn_spec.probe.scores import product_format, score_format
from attn_spec.probe.weight_gradients import weight_gradient_format

FORMATS = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16 or tf32", "tf32": "float16 or tf32"}


def known(scores, accumulator, tile, reverse):
    """Return attention with scores and accumulator rounded to these formats, in tiles, from either end."""

    def attention(q, k, v):
        s = rounded(np.float64(q) @ np.float64(k).swapaxes(-1, -2) * 0.25, scores)
        keys = s.shape[-1]
        m, l, acc = np.full((*s.shape[:3], 1), -np.inf), 0.0, np.zeros(v.shape)
        starts = range(0, keys, tile)
        for start in reversed(starts) if reverse else starts:
            part = s[..., start : start + tile]
            new = np.maximum(m, part.max(-1, keepdims=True))
            p, alpha = np.exp(part - new), np.exp(m - new)
            l, acc, m = l * alpha + p.sum(-1, keepdims=True), rounded(acc * alpha, accumulator), new
            for j in range(part.shape[-1]):
                acc = rounded(acc + p[..., j, None] * v[:, :, None, start + j], accumulator)
        return (acc / l).astype(q.dtype)

    return attention


TABLE = list(itertools.product(FORMATS, FORMATS, (16, 32), (False, True)))


@pytest.mark.parametrize("chosen", TABLE, ids=str)
def test_formats_of_scores_and_accumulator_are_found(chosen):
    scores, accumulator, *_ = chosen
    with np.errstate(all="ignore"):
        subject = Subject(from_callable(known(*chosen), framework="numpy"), "float32")
        found = [score_format(subject), output_accumulator(subject)]

    assert [one.value for one in found] == [FORMATS[scores], FORMATS[accumulator]], found


def test_a_kernel_that_ignores_scores_tells_nothing_of_them():
    def mean(q, k, v):
        return np.broadcast_to(v.mean(2, keepdims=True), v.shape).copy()

    assert score_format(Subject(from_callable(mean, framework="numpy"), "float32")).value is None
    assert product_format(Subject(from_callable(mean, framework="numpy"), "float16"), None).value is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("products", "value"), [(None, "exact"), ("input", None)])
def test_whether_products_are_rounded_before_their_sum_is_found(dtype, products, value):
    subject = Subject(emulate("known", replace(PRECISE, products=products), dtypes=(dtype,)), dtype)
    found = product_format(subject, "float32")

    assert found.value == (value or dtype)
    assert ("products='input'" in found.evidence) == (products == "input")
    assert product_format(subject, None) == found
    assert product_format(subject, "bfloat16") is None
    assert product_format(Subject(emulate("wide", PRECISE), "float32"), "float32") is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16"])
def test_the_format_of_gradients_of_weights_is_found(dtype, form):
    contract = replace(PRECISE, weight_gradients=form, probabilities=dtype)
    subject = Subject(emulate_both("known", contract, dtypes=(dtype,)), dtype)

    assert weight_gradient_format(subject).value == FORMATS[form]


def test_a_kernel_without_gradients_tells_nothing_of_them():
    assert weight_gradient_format(Subject(emulate("forward", PRECISE), "float32")) is None
