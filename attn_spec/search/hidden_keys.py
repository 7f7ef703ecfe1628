"""Assertions about masked keys and values: their contents change neither an answer nor a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_spec.attention.scores import parameters_of
from attn_spec.contract.readings import readings_of
from attn_spec.contract.terms import guard
from attn_spec.kernels.presentations.placement import largest_descale
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.options import FACTORS
from attn_spec.problem.used_places import used_places
from attn_spec.search.assertions import (
    assert_gradients_unchanged,
    assert_gradients_within_bound,
    assert_kept,
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    has_unknown_operands,
)
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.property import NotExamined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem


def assert_hidden_keys_have_no_influence(subject: Subject, problem: Problem) -> None:
    """Raise :class:`Refutation` if keys or values that a row does not see change the row.

    For one query of each batch entry and kv head, every key and value masked for it is rewritten. All rows that see
    none of them must keep their bits, or stay within their bounds if the kernel does not declare bits. Beside NaN and
    infinity the bounds are those of the problem before, see :func:`assertions.assert_kept`. Rows without a
    visible key are left out if the convention makes them the mean of masked values, or leaves them open.

    Raises :class:`NotExamined` for a problem in which the operand of a masked key or value may overflow, since 0 times
    infinity is NaN.
    """
    if has_unknown_operands(subject, problem):
        raise NotExamined("the operand of a key or value, visible or masked, may overflow")
    rng, before = randomness(problem), subject(problem)
    hidden = _hidden_from_one_query(problem, rng)
    rows = np.logical_not((problem.visible & problem.per_query_head(hidden)[:, :, None]).any(axis=-1))
    if not subject.conventions.empty_rows_are_constant:
        rows = rows & guard("hidden keys may change a mean of V", ~problem.empty_rows, without=True)
    for what, k, v in _contents(subject, problem, rng):
        changed = problem.with_inputs(
            k=np.where(hidden[..., None], k, problem.k), v=np.where(hidden[..., None], v, problem.v)
        )
        if has_unknown_operands(subject, changed):
            continue
        after = subject(changed)
        if compares_bits(subject) or not _is_finite(changed):
            did = f"after masked keys and values were replaced by {what}"
            assert_kept(subject, problem, before, after, did, rows)
        else:
            assert_within_bound(subject, changed, after)


def assert_unseen_keys_reach_no_gradient(subject: Subject, problem: Problem, dO: np.ndarray) -> None:
    """Raise :class:`Refutation` if keys or values that no query sees change a gradient.

    Keys and values masked for every query of their group are rewritten. All gradients must keep their bits, or stay
    within their bounds if the kernel does not declare bits. Beside NaN and infinity these are the bounds of the problem
    before, whose truth has no such number.
    """
    rng, before = randomness(problem), subject.gradients(problem, dO)
    seen = np.any(problem.visible.reshape(problem.batch, problem.kv_heads, -1, problem.key_length), axis=2)[..., None]
    for what, k, v in _contents(subject, problem, rng, _largest(subject, problem, dO)):
        changed = problem.with_inputs(k=np.where(seen, problem.k, k), v=np.where(seen, problem.v, v))
        if has_unknown_operands(subject, changed):
            continue
        after = subject.gradients(changed, dO)
        if compares_bits(subject):
            did = f"after keys and values that no query sees were replaced by {what}"
            assert_gradients_unchanged(before, after, did)
        else:
            finite = changed if _is_finite(changed) else problem
            assert_gradients_within_bound(subject, finite, dO, after)


def assert_unused_places_have_no_influence(subject: Subject, problem: Problem) -> None:
    """Raise :class:`Refutation` if what lies where no query or key of a sequence is changes the answer.

    Queries, keys and values behind the lengths are rewritten: by other numbers, by those of another batch entry, and by
    Inf and NaN if the convention ``unused`` is "unread". The answer must keep its bits, or stay within its bounds if
    the kernel does not declare bits.
    """
    rng, before = randomness(problem), subject(problem)
    rows = problem.there & (subject.conventions.empty_rows_are_constant | ~problem.empty_rows)
    for what, changed in _with_other_unused(subject, problem, rng):
        after = subject(changed)
        if compares_bits(subject):
            assert_unchanged(before, after, f"after {what} were written behind the sequences", rows)
        assert_within_bound(subject, problem, after)


def assert_unused_places_reach_no_gradient(subject: Subject, problem: Problem, dO: np.ndarray) -> None:
    """Raise :class:`Refutation` if what lies where no query or key of a sequence is changes a gradient.

    Queries, keys, values and dO behind the lengths are rewritten, as :func:`assert_unused_places_have_no_influence`
    does. All gradients must stay within their bounds, and keep their bits if the kernel declares bits.
    """
    rng, before = randomness(problem), subject.gradients(problem, dO)
    for what, changed in _with_other_unused(subject, problem, rng, _largest(subject, problem, dO)):
        other = np.full(dO.shape, np.nan) if subject.conventions.unused == "unread" else -dO
        after = subject.gradients(changed, np.where(problem.there[..., None], dO, other))
        if compares_bits(subject):
            assert_gradients_unchanged(before, after, f"after {what} were written behind the sequences")
        assert_gradients_within_bound(subject, problem, dO, after)


def _with_other_unused(
    subject: Subject, problem: Problem, rng: np.random.Generator, largest_value: float = np.inf
) -> Iterator[tuple[str, Problem]]:
    """Yield problems with other contents behind the lengths, and what these are; the numbers overflow nothing."""
    used = {name: used_places(problem, name, getattr(problem, name).shape) for name in "qkv"}
    unread = subject.conventions.unused == "unread"
    contents = list(_contents(subject, problem, rng, largest_value, nonfinite=unread))
    contents.append(("numbers of another sequence", np.roll(problem.k, 1, 0), np.roll(problem.v, 1, 0)))
    for what, k, v in contents:
        q = np.full(problem.q.shape, np.nan) if np.isnan(k).any() else np.roll(problem.q, 1, 0)
        written = {"q": q, "k": k, "v": v}
        changed = problem.with_inputs(**{n: np.where(used[n], getattr(problem, n), x) for n, x in written.items()})
        if not has_unknown_operands(subject, changed):
            yield what, changed


def _is_finite(problem: Problem) -> bool:
    """Return whether all keys and values of a problem are finite."""
    return bool(np.isfinite(problem.k).all() and np.isfinite(problem.v).all())


def _hidden_from_one_query(problem: Problem, rng: np.random.Generator) -> np.ndarray:
    """Return the keys masked for one random query of each batch entry and kv head, if possible one with masked keys."""
    B, Hkv, G = problem.batch, problem.kv_heads, problem.group
    visible = problem.visible.reshape(B, Hkv, G * problem.query_length, problem.key_length)
    preference = rng.random(visible.shape[:3]) + ~visible.all(axis=-1)
    chosen = preference.argmax(axis=-1)[..., None, None]
    return ~np.take_along_axis(visible, chosen, axis=2)[:, :, 0]


def _contents(
    subject: Subject,
    problem: Problem,
    rng: np.random.Generator,
    largest_value: float = np.inf,
    *,
    nonfinite: bool | None = None,
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield contents to write into masked keys and values: a name, K and V.

    Inf and NaN are among them if ``nonfinite`` is True, by default if the convention ``masked_nonfinite`` allows them.
    """
    factor = np.prod([np.abs(x).sum(axis=-1).max(initial=1.0) for x in parameters_of(problem).values()])
    if problem.projects:  # values and cotangents pass projections too, by rows or by columns
        factor *= np.prod([np.abs(x).sum(axis=-2).max(initial=1.0) for x in parameters_of(problem).values()])
        largest_value = min(largest_value, _largest(subject, problem, np.ones(1))) / factor
    of_q, of_keys, of_values = (max(1.0, largest_descale(problem, name)) for name in FACTORS)
    factor *= of_q * of_keys
    largest_key = _largest(subject, problem, problem.q * max(1.0, abs(problem.scale_value)) * factor)
    held = _largest(subject, problem, np.ones(1))  # keys and values may be stored with their descales
    largest_key = min(largest_key, held / of_keys if of_keys > 1 else np.inf)
    largest_value = min(largest_value, held / of_values if of_values > 1 else np.inf)
    if problem.latent:  # a key's first columns are its value
        largest_key = largest_value = min(largest_key, largest_value)
    of_k, of_v = (FORMATS[problem.dtype_of(name)].largest / 4 for name in "kv")  # a normal number is clipped to 4
    for what, size in (("N(0, 1) values", 1.0), ("values of size 1e4", 1e4)):
        k = min(size, largest_key, of_k) * rng.standard_normal(problem.k.shape).clip(-4, 4)
        v = min(size, largest_value, of_v) * rng.standard_normal(problem.v.shape).clip(-4, 4)
        yield what, bits.nearest(k, problem.dtype_of("k")), bits.nearest(v, problem.dtype_of("v"))
    if (subject.conventions.masked_nonfinite == "excluded") if nonfinite is None else nonfinite:
        k, v = (_nonfinite(problem, name, rng) for name in "kv")
        yield "Inf and NaN", k, v


def _nonfinite(problem: Problem, name: str, rng: np.random.Generator) -> np.ndarray:
    """Return Inf and NaN in the shape of k or v; the largest and the least number of a format of integers."""
    x, form = getattr(problem, name), FORMATS[problem.dtype_of(name)]
    found = rng.choice(np.array([np.inf, -np.inf, np.nan]), x.shape)
    found = np.where(np.isnan(found), form.largest, found) if form.is_integer else found
    return bits.nearest(found, form.name)


def _largest(subject: Subject, problem: Problem, vectors: np.ndarray) -> float:
    """Return a magnitude of entries whose products with these vectors [.., D] overflow no stage of the contract."""
    stages = ("operands", "products", "score_accumulation", "inner_accumulation", "stored_scores", "softmax")
    kept = min(reading.largest(*stages, "gradient_accumulation") for reading in readings_of(subject.contract, problem))
    limit = min(*(FORMATS[problem.dtype_of(name)].largest for name in "qk"), kept)
    return limit / (64.0 * np.abs(vectors).sum(axis=-1).max(initial=1.0))
