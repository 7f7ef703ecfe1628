"""Limits of what scores can represent, by constructions with exact weights: numbers a reader can check by hand."""

import numpy as np
import pytest
import sympy as sp
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.attention.enclosure import enclose
from attn_spec.attention.gradients import gradients
from attn_spec.contract.presets import EAGER
from attn_spec.judgement.analysis import GradientAnalysis
from tests.one_head import one_head

BITS = 200
ONE = np.ones((1, 1, 1, 1))
#: Two bits as queries and as keys.
FALSE_AND_TRUE = np.array([[0.0], [1.0]])


def row(*numbers):
    return np.array(numbers)[None, None, None]


def columns(*numbers):
    return np.array(numbers)[None, None, :, None]


# XOR: to attend to the key that differs from the query.


def test_an_additive_score_represents_xor():
    """s = tanh(8 u - 4) - tanh(8 u - 12) of u = q + k is the same for u = 0 and 2, and larger for u = 1."""
    problem = one_head(
        FALSE_AND_TRUE, FALSE_AND_TRUE, FALSE_AND_TRUE, score_query_weight=columns(8.0, 8.0),
        score_key_weight=columns(8.0, 8.0), score_bias=row(-4.0, -12.0), score_vector=row(1.0, -1.0),
    )  # fmt: skip
    s = definition.scores(problem, BITS)[0, 0]

    assert s[0, 0] == s[1, 1]
    assert s[0, 1] == s[1, 0] > s[0, 0] + 1.99
    output = enclose(problem)["output"].value[0, 0, :, 0]
    assert output[0] > 0.85  # 0 finds the 1
    assert output[1] < 0.15  # and 1 the 0


def test_no_bilinear_score_represents_xor():
    """With q = 0 every W makes the scores 0, so that 0 attends to both keys alike."""
    W, k = sp.symbols("W k")
    q, bits = sp.Integer(0), {0: 0, 1: 1}
    assert {(q * W * k).subs(k, bit) for bit in bits} == {0}

    for number in (-1e3, -1.0, 0.5, 1e3):
        problem = one_head(FALSE_AND_TRUE, FALSE_AND_TRUE, FALSE_AND_TRUE, score_weight=number * ONE, scale=1.0)
        assert enclose(problem)["output"].value[0, 0, 0, 0] == 0.5


# Even and odd.


def test_products_are_even_and_sums_odd():
    """(-q)^T W (-k) = q^T W k; without b, w^T tanh(-W1 k - W2 q) = -w^T tanh(W1 k + W2 q)."""
    q, k, W, W1, W2, w, b = sp.symbols("q k W W1 W2 w b", real=True)
    product, cosine = q * W * k, q * k / (sp.Abs(q) * sp.Abs(k))
    additive = w * sp.tanh(W1 * k + W2 * q + b)
    negated = {q: -q, k: -k}

    assert sp.simplify(product.subs(negated, simultaneous=True) - product) == 0
    assert sp.simplify(cosine.subs(negated, simultaneous=True) - cosine) == 0
    without = additive.subs(b, 0)
    assert sp.simplify(without.subs(negated, simultaneous=True) + without) == 0
    assert sp.simplify(additive.subs(negated, simultaneous=True) + additive) != 0


# Lengths.


def normalized(x):
    """Normalize a layer without an epsilon."""
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True))


@pytest.mark.parametrize("length", [1.0, 4.0, 1024.0])
def test_layer_normalized_products_are_cosines_times_the_root_of_d(length):
    """LN(x) = sqrt(D) x / |x| where the entries of x add up to 0: LN(q).LN(k) / sqrt(D) = sqrt(D) cos(q, k)."""
    q, k = (length * np.array(rows) for rows in ([[1.0, -1.0, 1.0, -1.0]], [[3.0, 3.0, -3.0, -3.0], [2, -2, 2, -2]]))
    v = [[0.0], [1.0]]
    by_layer = one_head(normalized(q), normalized(k), v)
    by_cosine = one_head(q, k, v, score_gamma=2.0 * ONE)

    for problem in (by_layer, by_cosine):
        assert [float(s) for s in definition.scores(problem, BITS)[0, 0, 0]] == [0.0, 2.0]


# Saturation.


def saturated(bias):
    """Make one query of 6 and keys of 6 and 6.5: without b the argument of tanh is at 12."""
    return one_head(
        [[6.0]], [[6.0], [6.5]], [[0.0], [1.0]], dtypes="float32", score_vector=ONE, score_query_weight=ONE,
        score_key_weight=ONE, score_bias=bias * ONE,
    )  # fmt: skip


def test_the_bias_keeps_tanh_out_of_saturation():
    """Without it the gradient of q is below its bound, so that no kernel could be told its sign."""
    relative = []
    for bias in (0.0, -12.0):
        problem, dO = saturated(bias), np.ones((1, 1, 1, 1))
        with mp.workprec(BITS):
            dq = abs(float(gradients(problem, dO, BITS)["dq"].item()))
        allowed = GradientAnalysis(problem, dO).bound(EAGER.at("float32")).allowed["dq"].item()
        relative.append((dq, dq / allowed))

    (vanished, drowned), (kept, counted) = relative
    assert 0 < vanished < 1e-8 * kept
    assert drowned < 1
    assert counted > 1000
