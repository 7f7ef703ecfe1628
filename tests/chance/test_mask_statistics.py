"""Statistics of keep masks: tails against exact ones, counts against loops, and how often they reject by chance."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from attn_spec.chance import mask_statistics
from attn_spec.chance.mask_statistics import Counts, least_likely, likenesses, shares, translations

SHAPE = (2, 2, 4, 32, 64)
SEEN = np.ones(SHAPE, dtype=bool)


def drawn(q, seed=0, shape=SHAPE):
    return np.random.default_rng(seed).random(shape) < q


def families(kept, seen, q):
    return [shares(kept, seen, q), likenesses(kept, seen, q), translations(kept, seen, q)]


@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(9, 10), Fraction(1, 5)])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_the_tail_is_no_less_than_that_of_the_binomial(n, q):
    terms = [math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
    for k in range(n + 1):
        exact = sum(terms[k:]) if Fraction(k, n) >= q else sum(terms[: k + 1])
        bound = Counts(np.array(k), np.array(n), float(q), str).surprise
        assert float(exact) <= math.exp(-bound) * (1 + 1e-12)
    assert math.exp(-Counts(np.array(n), np.array(n), float(q), str).surprise) == pytest.approx(float(q**n))


def test_by_hand():
    """All 64 of one chance in two: 2^-64. Two tests of each count, so 2^-63 may be said, which is 1.1e-19."""
    alone = Counts(np.array([64]), np.array([64]), 0.5, lambda at: f"weights kept of head {at[0]}")
    found = least_likely([alone])

    assert alone.surprise[0] == pytest.approx(64 * math.log(2))
    assert found.ratio == pytest.approx(64 * math.log(2) / math.log(2 / 1e-12))
    assert found.text == (
        "weights kept of head 0: 64 of 64, where a share of 0.5 is expected; independent weights do so with "
        "probability at most 1e-18"
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("q", [0.5, 0.8])
@pytest.mark.parametrize("test", [shares, likenesses, translations])
def test_all_tests_together_reject_no_more_often_than_they_say(test, q, monkeypatch):
    """Every mask of two heads of one query and five keys, with its exact probability."""
    monkeypatch.setattr(mask_statistics, "FEWEST", 1)
    monkeypatch.setattr(mask_statistics, "FALSE_ALARM", 0.3)
    seen = np.ones((1, 1, 2, 1, 5), dtype=bool)
    rejected = 0.0
    for bits in itertools.product([False, True], repeat=seen.size):
        kept = np.array(bits).reshape(seen.shape)
        if least_likely(test(kept, seen, q)).ratio > 1:
            rejected += q ** kept.sum() * (1 - q) ** (~kept).sum()
    assert rejected <= 0.3
    assert rejected > 0 or test is not shares  # the others need more weights


@pytest.mark.parametrize("q", [0.5, 0.9, 0.3])
def test_masks_of_independent_weights_are_not_rejected(q):
    causal = np.broadcast_to(np.tri(32, 64, dtype=bool), SHAPE)
    for seed, seen in itertools.product(range(3), (SEEN, causal)):
        for found in families(drawn(q, seed), seen, q):
            assert 0 < least_likely(found).ratio < 0.8


@pytest.mark.parametrize(("p", "other"), [(0.5, 0.525), (0.1, 0.115)])
def test_shares_are_told_apart_as_the_property_says(p, other):
    """At their means; of two calls for 32 queries, 64 keys, four heads and two batch entries."""
    whole = next(shares(drawn(1 - p), SEEN, 1 - p))
    counts = [one for one in shares(drawn(1 - p), SEEN, 1 - p) if one.number.ndim]
    kept = Counts(np.array(round(SEEN.size * (1 - other))), whole.number, 1 - p, whole.what)

    assert least_likely([kept, *counts]).ratio > 1


def test_counts_are_those_of_loops():
    """With hidden keys, on a small mask."""
    shape = (2, 1, 2, 3, 4)
    kept, seen = drawn(0.6, shape=shape), drawn(0.8, 1, shape)
    for axis, counts in enumerate(one for one in likenesses(kept, seen, 0.6) if one.count.shape != (1, 1)):
        mine = [n for n, length in enumerate(shape) if length > 1][axis]
        for i, j in itertools.combinations(range(shape[mine]), 2):
            both = seen.take(i, mine) & seen.take(j, mine)
            assert counts.number[i, j] == both.sum()
            assert counts.count[i, j] == (both & (kept.take(i, mine) == kept.take(j, mine))).sum()

    own, others = translations(kept, seen, 0.6)
    for *at, down, right in itertools.product(range(2), range(1), range(2), range(-2, 3), range(-3, 4)):
        pairs = [((0, 0, 0, i, j), (*at, i + down, j + right)) for i in range(3) for j in range(4)]
        pairs = [(a, b) for a, b in pairs if 0 <= b[3] < 3 and 0 <= b[4] < 4 and a != b and seen[a] and seen[b]]
        counts, here = others if any(at) else own, (*at, down, right)
        assert counts.number[here] == len(pairs)
        if pairs:
            assert counts.count[here] == sum(kept[a] == kept[b] for a, b in pairs)


def repeated(axis, of=0, onto=1):
    """Draw a mask with one index of an axis twice."""
    kept = drawn(0.5)
    np.moveaxis(kept, axis, 0)[onto] = np.moveaxis(kept, axis, 0)[of]
    return kept


ALIKE = {
    "call": (0, 1, "call 0 and of call 1"),
    "batch entry": (1, 1, "batch entry 0 and of batch entry 1"),
    "head": (2, 3, "head 0 and of head 3"),
    "query": (3, 31, "query 0 and of query 31"),
    "key": (4, 32, "key 0 and of key 32"),
}


@pytest.mark.parametrize("axis", ALIKE)
def test_what_is_drawn_once_for_two_is_named(axis):
    number, onto, text = ALIKE[axis]
    found = least_likely(likenesses(repeated(number, onto=onto), SEEN, 0.5))

    assert found.ratio > 5
    assert f"weights that agree of {text}: " in found.text


def test_a_head_that_is_another_one_moved_is_named():
    kept = drawn(0.5)
    kept[1, 0, 2, 3:, :-5] = kept[0, 0, 0, :-3, 5:]
    found = least_likely(translations(kept, SEEN, 0.5))

    assert found.ratio > 5
    assert (
        "of the first head and, 3 queries and -5 keys on, of call 1, batch entry 0, head 2: 1711 of 1711" in found.text
    )
