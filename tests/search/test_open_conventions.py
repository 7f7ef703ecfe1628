"""An undecorated callable leaves open what a query gets that sees no key: it is told what it gives, and not accused."""

import numpy as np
import pytest

from attn_spec.isolation.declared import declaration, kernel_of, told
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.problem.conventions import OF_ANSWERS, OPEN
from attn_spec.search.preflight import preflight
from attn_spec.search.profiles import Profile
from attn_spec.search.property import load_all
from attn_spec.search.search import search

FOLLOWS = "masking.queries_that_see_no_key_follow_the_convention"
#: Properties without a probability of a false alarm that a call of NumPy with a mask can be searched for.
PROPERTIES = {
    name: property_
    for name, property_ in load_all().items()
    if not property_.false_alarm and set(property_.needs) <= {"mask", "cross", "dv", "mask_of_two_axes"}
}


def weighted(s, v):
    with np.errstate(all="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)) @ v


def scores(q, k):
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)


def mean_of_v(q, k, v, mask=None):
    s = scores(q, k)
    return weighted(s if mask is None else np.where(mask, s, np.finfo(s.dtype).min), v)


def nan(q, k, v, mask=None):
    s = scores(q, k)
    return weighted(s if mask is None else np.where(mask, s, -np.inf), v)


def zeros(q, k, v, mask=None):
    return np.nan_to_num(nan(q, k, v, mask))


def unmasked(q, k, v, mask=None):
    s = scores(q, k)
    seen = np.broadcast_to(True if mask is None else mask, s.shape)
    return weighted(np.where(seen | ~seen.any(-1, keepdims=True), s, -np.inf), v)


def sevens(q, k, v, mask=None):
    out = nan(q, k, v, mask)
    seen = np.broadcast_to(True if mask is None else mask, (*q.shape[:3], k.shape[2]))
    return np.where(seen.any(-1)[..., None], out, v.dtype.type(7))


def without_scale(q, k, v, mask=None):
    return nan(q * 2, k, v, mask)


def examined(function, names=tuple(PROPERTIES), **declared):
    checked = preflight(from_callable(function, framework="numpy", dtypes=("float32",), **declared))
    profile = Profile(name="test", examples=4, floor=1, seconds=60, shrink_seconds=0, seed=0)
    (subject,) = checked.subjects
    verdicts = {name: str(search(PROPERTIES[name], subject, profile, seed=0)[0].verdict) for name in names}
    return checked.declined, verdicts


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("function", "gives"),
    [
        (mean_of_v, "the mean of the values of all keys; empty_row='mean_of_v' declares it"),
        (nan, "NaN; empty_row='nan' declares it"),
        (unmasked, "of no known choice"),
        (sevens, "of no known choice"),
    ],
)
def test_an_undecorated_callable_is_told_what_a_query_without_keys_gets_and_not_refuted(function, gives):
    declined, verdicts = examined(function)

    assert declined["empty_row"] == f"the output of a query that sees no key is {gives}"
    assert verdicts.pop(FOLLOWS) == "not declared"
    assert set(verdicts.values()) <= {"held", "not declared"}, verdicts
    assert sum(verdict == "held" for verdict in verdicts.values()) > 30


def test_what_a_call_does_not_show_is_not_told():
    """Nothing lies behind the sequences of a call without lengths, though zeros would be right there too."""
    declined, _ = examined(zeros, [])

    assert {name for name in declined if name in OF_ANSWERS} == {"empty_row"}


def test_a_convention_that_is_declared_is_held_to():
    declined, verdicts = examined(nan, [FOLLOWS], conventions={"empty_row": "zero"})

    assert "empty_row" not in declined
    assert verdicts[FOLLOWS] == "refuted"


def test_what_a_query_with_keys_gets_is_not_left_open():
    accurate = "accuracy.output_is_within_its_bound"

    assert examined(without_scale, [accurate])[1] == {accurate: "refuted"}


@pytest.mark.parametrize("named", [{}, {"empty_row": "nan"}])
def test_another_process_leaves_the_same_open(named):
    made = from_callable(nan, framework="numpy", conventions=named)
    there = kernel_of(declaration(told(made, "nan")), "nan", lambda *_: None, lambda *_: None)

    assert there.conventions == made.conventions
    assert there.conventions.empty_row == named.get("empty_row", OPEN)
