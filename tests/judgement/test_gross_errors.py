"""Gross errors, which people try first on a judge, are refuted at every length and dtype, even undeclared."""

import numpy as np
import pytest

from attn_spec.bounds.intermediates import intermediates
from attn_spec.contract.presets import EAGER, UNDECLARED
from attn_spec.judgement import measure
from attn_spec.numbers import bits
from attn_spec.numbers.formats import DTYPES
from attn_spec.search.drawing.regimes import Recipe

LENGTHS = (2, 8, 32, 128, 512, 1025)


def without_last_key(p):
    return p.replace(k=p.k[:, :, :-1], v=p.v[:, :, :-1])


#: Wrong outputs by name: of a problem, and its regime, or "last" where the last key holds all that there is.
WRONG = {
    "zeros": (lambda p: 0 * intermediates(p).O, "normal"),
    "mean of V": (lambda p: p.v.mean(2, keepdims=True) + 0 * intermediates(p).O, "normal"),
    "no scale": (lambda p: intermediates(p.replace(scale=1.0)).O, "normal"),
    "last key lost": (lambda p: intermediates(without_last_key(p)).O, "last"),
}


def problem(dtype, regime, length):
    sizes = {"query_length": 4, "key_length": length, "head_dim": 64, "value_dim": 16}
    drawn = Recipe(dtypes=dtype, regime="normal" if regime == "last" else regime, seed=0, **sizes).problem()
    if regime != "last":
        return drawn
    v = np.zeros(drawn.v.shape)
    v[:, :, -1] = drawn.v[:, :, -1]
    return drawn.replace(v=v)


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("contract", [EAGER, UNDECLARED], ids=["eager", "undeclared"])
def test_a_gross_error_is_refuted_at_every_length(contract, dtype, kind):
    wrong, regime = WRONG[kind]
    for length in LENGTHS:
        p = problem(dtype, regime, length)
        judgement = measure.judge(p, contract.at(dtype), output=bits.nearest(wrong(p), dtype))
        assert judgement.refuted, (length, judgement.ratio)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_truth_is_not_refuted(dtype):
    for length in LENGTHS:
        p = problem(dtype, "normal", length)
        judgement = measure.judge(p, UNDECLARED.at(dtype), output=bits.nearest(intermediates(p).O, dtype))
        assert judgement.exercised
        assert not judgement.refuted


@pytest.mark.parametrize("quantity", ["dq", "dk", "dv"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_gradients_are_refuted(dtype, quantity):
    for length in (2, 32, 512):
        p = problem(dtype, "normal", length)
        dO = bits.nearest(np.random.default_rng(1).standard_normal((1, 1, 4, 16)), dtype)
        size = {"dq": p.q, "dk": p.k, "dv": p.v}[quantity].shape
        judgement = measure.judge_gradients(p, UNDECLARED.at(dtype), dO, {quantity: np.zeros(size)})
        assert judgement.refuted, (length, judgement.ratio)
