"""The mathematics the suite rests on, derived with sympy once, so that code and theorems cannot drift apart."""

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from sympy.utilities.iterables import multiset_partitions

from attn_spec.attention import definition
from attn_spec.problem.problem import Problem

S = sp.symbols("s1:5", real=True)
V = sp.symbols("v1:5", real=True)


def softmax(s):
    total = sum(sp.exp(x) for x in s)
    return [sp.exp(x) / total for x in s]


def log_sum_exp(s):
    return sp.log(sum(sp.exp(x) for x in s))


# The scale.


@pytest.mark.parametrize("D", [1, 2, 5])
def test_the_variance_of_a_scaled_score_is_one(D):
    q, k = sp.symbols(f"q1:{D + 1}"), sp.symbols(f"k1:{D + 1}")
    score = sum(map(sp.Mul, q, k)) / sp.sqrt(D)
    unit = dict.fromkeys((*q, *k), 1)

    assert expectation(score, unit) == 0
    assert expectation(score**2, unit) == 1


def test_the_variance_of_a_scaled_score_is_one_for_every_d_by_induction():
    # t is the unscaled score of the first D entries, of variance D; the next entries q and k add one to it.
    t, q, k, D = sp.symbols("t q k D", positive=True)
    variance = expectation((t + q * k) ** 2, {t: D, q: 1, k: 1})

    assert sp.simplify(variance / sp.sqrt(D + 1) ** 2) == 1


def expectation(polynomial, variances):
    """Return the mean of a polynomial, at most quadratic in each variable, in independent variables of mean 0."""
    powers = {x: (1, 0, variance) for x, variance in variances.items()}
    terms = sp.Poly(polynomial, *variances).terms()
    means = [c * sp.prod(powers[x][n] for x, n in zip(variances, exponents, strict=True)) for exponents, c in terms]
    return sp.simplify(sum(means))


# The softmax.


def test_the_jacobian_of_softmax_is_diag_p_minus_p_p_transposed():
    p = sp.Matrix(softmax(S))

    assert sp.simplify(p.jacobian(S) - (sp.diag(*p) - p * p.T)) == sp.zeros(4)


def test_the_gradient_of_log_sum_exp_is_softmax():
    assert [sp.simplify(sp.diff(log_sum_exp(S), s) - p) for s, p in zip(S, softmax(S), strict=True)] == [0] * 4


def test_softmax_ignores_a_shift_and_log_sum_exp_follows_it():
    c = sp.symbols("c", real=True)
    shifted = [s + c for s in S]

    assert [sp.simplify(a - b) for a, b in zip(softmax(shifted), softmax(S), strict=True)] == [0] * 4
    assert sp.simplify(sp.exp(log_sum_exp(shifted)) - sp.exp(log_sum_exp(S) + c)) == 0


def test_the_rows_of_softmax_sum_to_one():
    assert sp.simplify(sum(softmax(S))) == 1


def test_two_keys_expose_the_score_through_values_0_and_1():
    output = softmax(S[:2])[1]

    assert sp.simplify(sp.exp(S[1] - S[0]) - output / (1 - output)) == 0


# Online rescaling: Milakov and Gimelshein (2018); Dao et al., "FlashAttention" (2022), section 3.1.


def tile(scores, values):
    """Return (m, l, o) of one tile: greatest score, sum of exp(s - m), sum of exp(s - m) v."""
    m = sp.Max(*scores)
    return (
        m,
        sum(sp.exp(s - m) for s in scores),
        sum(sp.exp(s - m) * v for s, v in zip(scores, values, strict=True)),
    )


def merge(left, right):
    """Merge the states of two tiles: both sums rescaled to the greater maximum."""
    (m1, l1, o1), (m2, l2, o2) = left, right
    m = sp.Max(m1, m2)
    return m, sp.exp(m1 - m) * l1 + sp.exp(m2 - m) * l2, sp.exp(m1 - m) * o1 + sp.exp(m2 - m) * o2


def same(left, right):
    return all(sp.simplify(sp.powsimp(sp.expand(a - b))) == 0 for a, b in zip(left, right, strict=True))


def states(count):
    return [sp.symbols(f"m{i} l{i} o{i}", real=True) for i in range(count)]


def test_merge_is_associative():
    a, b, c = states(3)

    assert same(merge(merge(a, b), c), merge(a, merge(b, c)))


def test_merge_is_commutative():
    a, b = states(2)

    assert same(merge(a, b), merge(b, a))


def test_a_merge_that_forgets_to_rescale_is_not_associative():
    def forgetful(left, right):
        return sp.Max(left[0], right[0]), left[1] + right[1] * sp.exp(right[0] - sp.Max(left[0], right[0])), left[2]

    a, b, c = states(3)

    assert not same(forgetful(forgetful(a, b), c), forgetful(a, forgetful(b, c)))


@pytest.mark.parametrize("partition", list(multiset_partitions(list(range(4)))), ids=str)
def test_merging_any_partition_gives_the_direct_softmax(partition):
    m, l, o = reduce(merge, (tile([S[j] for j in part], [V[j] for j in part]) for part in partition))
    direct = sum(p * v for p, v in zip(softmax(S), V, strict=True))

    # exp(m) l and exp(m) o are free of every maximum, so that o / l and m + log l are what they should be.
    total, weighted = (sp.powsimp(sp.expand(sp.exp(m) * x)) for x in (l, o))
    assert sp.simplify(weighted / total - direct) == 0
    assert sp.simplify(total - sp.exp(log_sum_exp(S))) == 0


def test_parts_merge_through_their_log_sum_exp():
    # Split-and-merge of finished outputs: o = (o1 e^L1 + o2 e^L2) / (e^L1 + e^L2), with L = log(e^L1 + e^L2).
    parts = ((S[:1], V[:1]), (S[1:], V[1:]))
    outputs = [sum(p * v for p, v in zip(softmax(s), values, strict=True)) for s, values in parts]
    masses = [sp.exp(log_sum_exp(s)) for s, _ in parts]
    direct = sum(p * v for p, v in zip(softmax(S), V, strict=True))

    assert sp.simplify(sum(o * mass for o, mass in zip(outputs, masses, strict=True)) / sum(masses) - direct) == 0
    assert sp.simplify(sum(masses) - sp.exp(log_sum_exp(S))) == 0


@given(
    seed=st.integers(0, 2**32),
    cuts=st.sets(st.integers(1, 11)),
    spread=st.sampled_from([1.0, 30.0, 1e4]),
    backwards=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_online_rescaling_equals_the_definition_to_full_precision(seed, cuts, spread, backwards):
    rng = np.random.default_rng(seed)
    n, precision = 12, 200
    q, k, v = np.ones((1, 1, 1, 1)), spread * rng.standard_normal((1, 1, n, 1)), rng.standard_normal((1, 1, n, 2))
    problem = Problem(q=q, k=k, v=v, dtypes="float64")
    tiles = list(pairwise([0, *sorted(cuts), n]))
    with mp.workprec(precision + 40):
        m, l, o = mp.ninf, mp.zero, np.array([mp.zero, mp.zero])
        for start, stop in reversed(tiles) if backwards else tiles:
            s = [mp.convert(x) for x in k[0, 0, start:stop, 0].tolist()]
            new = max(m, *s)
            p = np.array([mp.exp(x - new) for x in s])
            l = mp.exp(m - new) * l + p.sum()
            o = mp.exp(m - new) * o + p @ v[0, 0, start:stop]
            m = new
        error = max(abs(o / l - definition.attention(problem, precision)[0, 0, 0]))
        lse_error = abs(m + mp.log(l) - definition.log_sum_exp(problem, precision).item())

    assert error <= mp.ldexp(1, 8 - precision)
    assert lse_error <= mp.ldexp(1, 8 - precision)


# Symmetries that properties demand of kernels bit by bit.


def test_negating_q_and_k_together_leaves_every_score():
    q, k = sp.symbols("q1:4"), sp.symbols("k1:4")

    assert sp.expand(sum(-x * -y for x, y in zip(q, k, strict=True)) - sum(map(sp.Mul, q, k))) == 0


def test_output_is_linear_in_v_and_stays_in_the_hull_of_v():
    p, w, a = softmax(S), sp.symbols("w1:5"), sp.symbols("a")
    combined = sum(x * (a * y + z) for x, y, z in zip(p, V, w, strict=True))
    apart = a * sum(map(sp.Mul, p, V)) + sum(map(sp.Mul, p, w))

    assert sp.expand(combined - apart) == 0
    assert all(x.is_positive for x in p)


def test_a_capped_score_is_below_the_cap_and_has_slope_one_at_zero():
    s, c = sp.symbols("s c", positive=True)
    capped = c * sp.tanh(s / c)

    assert sp.diff(capped, s).subs(s, 0) == 1
    assert sp.limit(capped, s, sp.oo) == c
    assert sp.simplify(capped + capped.subs(s, -s)) == 0


# The definition is the formula: exact expressions against its numbers.


def test_the_definition_evaluates_the_symbolic_formula():
    q, k, v = [2, -1, 3], [[1, 0, 2], [-1, 4, 1], [0, 2, -2]], [[3], [-5], [7]]
    cap, bias = sp.Rational(3, 2), [sp.Rational(1, 4), 0, sp.Rational(-1, 2)]
    s = [sum(map(sp.Mul, q, map(sp.Integer, row))) / sp.sqrt(3) for row in k]
    s = [cap * sp.tanh(x / cap) + y for x, y in zip(s, bias, strict=True)]
    output = sum(p * x[0] for p, x in zip(softmax(s), v, strict=True))
    problem = Problem(
        q=np.array([[[q]]], float),
        k=np.array([[k]], float),
        v=np.array([[v]], float),
        softcap=1.5,
        bias=np.array([[[bias]]], float),
    )

    with mp.workdps(60):
        assert abs(definition.attention(problem, 190).item() - mp.mpf(str(sp.N(output, 60)))) < mp.mpf(10) ** -56
        assert (
            abs(definition.log_sum_exp(problem, 190).item() - mp.mpf(str(sp.N(log_sum_exp(s), 60)))) < mp.mpf(10) ** -56
        )
