"""Sinusoidal encodings added to queries and keys: what they add to the scores, and when they decide the weights.

Vaswani et al., arXiv 1706.03762, section 3.5: pairs of columns A cos(2 pi i / T), A sin(2 pi i / T) at position i, one
pair for each period T.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import sympy as sp
from mpmath import mp

from attn_spec.attention import definition
from tests.one_head import one_head

BITS = 120
#: Periods of section 3.5, for eight columns.
PERIODS = tuple(2 * math.pi * 10000 ** (m / 4) for m in range(4))


def encoded(positions, periods, amplitude=1.0):
    """Return encodings [S, 2 periods] in float64, equal at positions that are whole periods apart."""
    turns = [[Fraction(i) / Fraction(T) % 1 for T in periods] for i in positions]
    angles = 2 * math.pi * np.array(turns, dtype=float)
    return amplitude * np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(positions), -1)


def scores(q, k):
    """Compute scores in mpmath, [Sq, Sk]."""
    return definition.scores(one_head(q, k, np.eye(len(k))), BITS)[0, 0]


def heaviest(q, k):
    """Return the key of the largest score of each query."""
    return scores(q, k).argmax(axis=1)


def test_a_score_has_four_terms():
    """The terms are products of content and position on either side; the rows are dyadic, so that sums are exact."""
    rng = np.random.default_rng(0)
    x, y, p, r = (rng.integers(-64, 65, (n, 8)) / 32 for n in (3, 5, 3, 5))

    with mp.workprec(BITS):
        apart = scores(x, y) + scores(x, r) + scores(p, y) + scores(p, r)
        assert abs(scores(x + p, y + r) - apart).max() < 2.0 ** (10 - BITS)


def test_the_term_of_positions_is_a_function_of_the_offset():
    """cos a cos b + sin a sin b = cos(a - b), for each period."""
    a, b = sp.symbols("a b", real=True)
    assert sp.simplify(sp.cos(a) * sp.cos(b) + sp.sin(a) * sp.sin(b) - sp.cos(a - b)) == 0

    positions, A = np.arange(24), 3.0
    x = encoded(positions, PERIODS, A)
    offsets = np.subtract.outer(positions, positions)
    of_offset = A**2 / math.sqrt(8) * sum(np.cos(2 * math.pi * offsets / T) for T in PERIODS)

    # Each entry is within a few roundings of A cos, A sin; angles of up to 24 are off by 24 of them.
    assert abs(scores(x, x).astype(float) - of_offset).max() < 8 * A**2 * 64 * 2.0**-53


def test_content_alone_does_not_see_the_offset():
    x = np.random.default_rng(1).standard_normal((24, 8))
    along = np.diagonal(scores(x, x).astype(float), offset=1)
    assert np.ptp(along) > 1.0


def test_one_period_takes_a_key_for_one_a_period_later():
    x = encoded(range(16), (8,))
    s = scores(x, x)
    assert (s[:8, :8] == s[:8, 8:]).all()
    P = definition.weights(one_head(x, x, np.eye(16)), BITS)[0, 0]
    assert (P[0] == P[8]).all()


@pytest.mark.parametrize("periods", [(3, 5), (4, 9), (2, 3, 5)])
def test_coprime_periods_take_it_for_one_their_product_later_and_no_sooner(periods):
    product = math.prod(periods)
    s = scores(encoded([0], periods), encoded(range(product + 1), periods))[0]
    assert s[product] == s[0]
    assert max(s[1:product]) < s[0]


@pytest.mark.parametrize(("ratio", "least", "most"), [(1 / 16, 0.25, 0.75), (1.0, 0.55, 1.0), (16.0, 1.0, 1.0)])
def test_positions_outweigh_content_from_an_amplitude_on(ratio, least, most):
    """A period of 2 adds A^2 to scores of keys at an even offset and takes it from others.

    The product of contents of variance sigma^2 has the standard deviation sigma^2 sqrt(D). At 16 times that, a key at
    an odd offset wins if normal numbers are 8 standard deviations off: at odds below 1e-11 for all pairs together.
    """
    D, sigma, S = 64, 0.5, 48
    rng = np.random.default_rng(2)
    x, y = (sigma * rng.standard_normal((S, D)) for _ in range(2))
    assert abs(np.std(x @ y.T) / (sigma**2 * math.sqrt(D)) - 1) < 0.1
    p = np.zeros((S, D))
    p[:, :2] = encoded(range(S), (2,), math.sqrt(ratio * sigma**2 * math.sqrt(D)))

    even = (heaviest(x + p, y + p) - np.arange(S)) % 2 == 0

    assert least <= even.mean() <= most
