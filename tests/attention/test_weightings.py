"""Formulas of weights, by hand and in both arithmetics."""

import math

import numpy as np
import pytest
from flint import arb
from mpmath import mp

from attn_spec.attention.arithmetic import BALLS, REALS, entries
from attn_spec.attention.definition import exact
from attn_spec.attention.enclosure import as_row
from attn_spec.attention.weightings import SOFTMAX


def balls(*values):
    return as_row({j: arb(x) for j, x in enumerate(values)})


def test_two_keys_by_hand():
    """Scores log(3) and 0 have weights 3/4 and 1/4, whose sum of exponentials is 4."""
    with mp.workprec(120):
        s = entries([mp.log(3), mp.zero], (1, 2))
        P, L = SOFTMAX.value(REALS, s)
        assert max(abs(p - share) for p, share in zip(P.ravel(), (0.75, 0.25), strict=True)) < mp.mpf(2) ** -110
        assert abs(L.item() - mp.log(4)) < mp.mpf(2) ** -110

        dA = SOFTMAX.pull(REALS, s, exact(np.array([[0.75, 0.25]])), exact(np.array([[8.0, 0.0]])), mp.mpf(4))
    assert [float(x) for x in dA.ravel()] == [0.75 * (8 - 6 + 4), 0.25 * (0 - 6 + 4)]


@pytest.mark.parametrize("scores", [(0.0,), (1.0, 2.0, -3.0), (1000.0, 0.0), (-1000.0, -1001.0)])
def test_balls_contain_the_reals(scores):
    dP, dL = tuple(math.sin(1 + j) for j in range(len(scores))), 0.5
    with mp.workprec(200):
        s = exact(np.array([scores]))
        P, L = SOFTMAX.value(REALS, s)
        dA = SOFTMAX.pull(REALS, s, P, exact(np.array([dP])), dL)
    P_balls, L_ball = SOFTMAX.value(BALLS, balls(*scores))
    dA_balls = SOFTMAX.pull(BALLS, balls(*scores), P_balls, balls(*dP), dL)

    for real, ball in zip(
        (*P.ravel(), L.item(), *dA.ravel()), (*P_balls.ravel(), L_ball.item(), *dA_balls.ravel()), strict=True
    ):
        assert abs(float(real) - float(ball.mid())) <= float(ball.rad()) + 1e-14 * abs(float(real)) + 1e-300
        assert float(ball.rad()) <= 1e-12 * max(abs(float(real)), 1.0)


def test_what_arrives_on_the_heaviest_key_of_all_leaves_nothing_to_cancel():
    """P = 1 - e^-60 of one key, whose dP is common to the row: dA is as good as e^-60 of it, relatively."""
    s = balls(60.0, 0.0)
    P, _ = SOFTMAX.value(BALLS, s)
    dA = SOFTMAX.pull(BALLS, s, P, balls(1e6, 1e6 + 1), 0)

    found = dA[0, 0]
    assert float(found.rad()) < 1e-10 * abs(float(found.mid()))
    assert float(found.mid()) == pytest.approx(-math.exp(-60), rel=1e-10)
