"""Powers of 2 and logarithms lie within their radii, against mpmath."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from attn_spec.numbers.double_double import DoubleDouble
from attn_spec.numbers.powers_of_two import POWER_ERROR, constants, exp2, inverse_root, log, power

BITS = 400


def exact(x):
    return mp.mpf(float(x.hi)) + mp.mpf(float(x.lo))


def relative_errors(h, l, n):
    hi, lo = power(h, l, n)
    with mp.workprec(BITS):
        found = [mp.mpf(a) + mp.mpf(b) for a, b in zip(hi.tolist(), lo.tolist(), strict=True)]
        true = [mp.mpf(2) ** (mp.mpf(a) + mp.mpf(b) - n) for a, b in zip(h.tolist(), l.tolist(), strict=True)]
        return [float(abs(x / y - 1)) for x, y in zip(found, true, strict=True)]


@given(seed=st.integers(0, 2**32), n=st.integers(-1000, 1000), span=st.sampled_from([1e-6, 1.0, 40.0, 900.0]))
def test_powers_are_within_their_error(seed, n, span):
    rng = np.random.default_rng(seed)
    h = n + 1 - rng.uniform(0, span, 20)
    errors = relative_errors(h, rng.uniform(-1, 1, 20) * np.minimum(2.0**-42, 2.0**-53 * np.abs(h)), n)

    assert max(errors) <= POWER_ERROR


def test_powers_at_the_edges_of_the_table_s_steps():
    j = np.arange(-40, 40)
    h = (j + 0.5) * 2.0**-14
    h = np.concatenate([h, np.nextafter(h, 1), np.nextafter(h, -1), j * 2.0**-14])
    errors = relative_errors(h, np.resize([2.0**-42, -(2.0**-42), 0.0], len(h)), 0)

    assert POWER_ERROR / 64 < max(errors) <= POWER_ERROR


@given(h=st.floats(-900, 900), part=st.floats(-1, 1), radius=st.sampled_from([0.0, 2.0**-80, 2.0**-31]))
def test_exponentials_are_within_their_radius(h, part, radius):
    t = DoubleDouble(np.array(h), np.array(part * 2.0**-53 * abs(h)), np.array(radius))
    found = exp2(t)
    with mp.workprec(BITS):
        for moved in (-radius, radius):
            assert abs(exact(found) - mp.mpf(2) ** (exact(t) + moved)) <= mp.mpf(float(found.radius))


@pytest.mark.parametrize(("h", "radius"), [(901.0, 0.0), (-901.0, 0.0), (0.0, 1e-3), (np.nan, 0.0)])
def test_exponentials_out_of_range_are_not_known(h, radius):
    assert np.isinf(exp2(DoubleDouble(np.array(h), np.array(0.0), np.array(radius))).radius)


@given(h=st.floats(2.0**-800, 2.0**800), part=st.floats(-1, 1))
def test_logarithms_are_within_a_sharp_radius(h, part):
    x = DoubleDouble(np.array(h), np.array(part * 2.0**-54 * h), np.zeros(()))
    found = log(x)
    with mp.workprec(BITS):
        assert abs(exact(found) - mp.log(exact(x))) <= mp.mpf(float(found.radius))
    assert found.radius <= 2.0**-88


def test_constants_are_within_their_radii():
    with mp.workprec(BITS):
        known = {"ln 2": mp.log(2), "log2 e": 1 / mp.log(2)}
        for name, x in constants().items():
            assert abs(exact(x) - known[name]) <= mp.mpf(float(x.radius)) < mp.mpf(2) ** -104
        for n in (1, 2, 3, 4, 5, 64, 96, 576):
            x = inverse_root(n)
            assert abs(exact(x) - 1 / mp.sqrt(n)) <= mp.mpf(float(x.radius)) < mp.mpf(2) ** -104
