"""A small, plain call, and the arguments with which an undecorated callable turns off options that a problem lacks.

An option that is off is left out of a call. But its parameter may be required, or its default may turn the option on:
``is_causal=True``, ``feature_map="elu_plus_one"``. Then the call passes None, or a value by which callables turn the
option off. A callable that accepts no such value always uses the option, which becomes a limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.abilities import ABILITIES, DESCALE_AXES
from attn_spec.problem.dtypes import input_dtypes
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.shapes import at_most_heads

#: Largest number of combinations of values for these options that are tried.
MOST_WAYS = 27


def with_defaults_off(subjects: Sequence[Subject]) -> tuple[Kernel, dict[str, str]]:
    """Find how to call an undecorated function with its options off.

    Return the kernel of all these subjects with ``when_off`` and ``always`` set, and the reason for each ``always``.
    The first combination with a right answer is chosen, else the first that returns finite numbers, else none.
    """
    kernel = subjects[0].kernel
    asked = [name for name in OPTIONS if name in kernel.supports and name not in kernel.limits.always]
    passed = {name: kernel.parameters[word] for name in asked if (word := kernel.keyword(name)) in kernel.parameters}
    names = [name for name, parameter in passed.items() if _is_on(name, parameter.default)]
    if not names:
        return kernel, {}
    every = islice(product(*(_ways(kernel, name) for name in names)), MOST_WAYS)
    made = [_called(kernel, dict(zip(names, ways, strict=True))) for ways in every]
    right = {number: found for number, one in enumerate(made) if (found := _is_right(subjects, one)) is not None}
    chosen = made[max(right, key=right.__getitem__)] if right else kernel
    always = set(chosen.limits.always) - set(kernel.limits.always)
    return chosen, {f"calls without {name}": "no value turns it off" for name in names if name in always}


def _is_on(name: str, default: Any) -> bool:
    """Return whether the option is on if its parameter is not passed: its default turns it on, or it has none."""
    row = OPTIONS[name]
    if default is None or not isinstance(default, bool | int | float | str | tuple):
        return default is not row.off
    off = (row.off, *row.spelled_off)
    return not any(isinstance(x, bool) == isinstance(default, bool) and x == default for x in off)


#: Marker for an option that the callable always uses, in place of a value that turns it off.
_NEVER = object()


def _ways(kernel: Kernel, name: str) -> tuple[Any, ...]:
    """Return the values that may turn the option off, the likeliest first, then ``_NEVER``; a choice has its
    convention.
    """
    own = getattr(kernel.conventions, name, OPTIONS[name].off)
    return (own, *OPTIONS[name].spelled_off, _NEVER)


def _called(kernel: Kernel, ways: dict[str, Any]) -> Kernel:
    """Return the kernel with these values for options that are off."""
    always = tuple(name for name, way in ways.items() if way is _NEVER)
    when_off = {name: way for name, way in ways.items() if way is not _NEVER}
    limits = replace(kernel.limits, always=(*kernel.limits.always, *always))
    return replace(kernel, when_off={**kernel.when_off, **when_off}, limits=limits)


def _is_right(subjects: Sequence[Subject], kernel: Kernel) -> bool | None:
    """Return whether a plain call, at the first dtype with finite numbers, is within the bound; None if no dtype has
    any.
    """
    for subject in (replace(one, kernel=kernel) for one in subjects):
        with contextlib.suppress(FrameworkError, Misbehaviour, NotTaken, ProblemError):
            problem = plain(kernel, subject.dtype)
            answer = subject(problem)
            if np.isfinite(answer["output"]).all():
                return not judged(subject, problem, answer).refuted
    return None


def failure(subject: Subject) -> str | None:
    """Make a plain call; return why it failed, None if it returned anything."""
    try:
        subject(plain(subject.kernel, subject.dtype))
    except FrameworkError as error:
        return str(error)
    except CallFailed as error:
        return str(error)
    except Misbehaviour:
        return None  # it returned something wrong, which a property will refute with a case to replay
    return None


def plain(kernel: Kernel, dtype: str, option: str | None = None, *, larger: int = 0) -> Problem:
    """Return a small problem that the kernel takes, with the options it requires and the named shape ability.

    Its number of batch entries and its lengths grow with ``larger``, within the kernel's limits.
    """
    limits, shaped = kernel.limits, {option, *kernel.limits.needed}
    step = limits.step("QK")
    wanted = (8 + larger) * step
    length = min(wanted, int(min(limits.most("Q"), limits.most("K"), wanted)) // step * step)
    queries = length if limits.query_lengths is None else limits.query_lengths[0]
    keys = int(min(2 * length, limits.most("K"))) // step * step if "cross" in shaped else length
    keys = 0 if "empty" in shaped else keys
    tied = any(OPTIONS[name].ties_values for name in shaped & set(OPTIONS))
    head_dim, value_dim = _plain_dims(limits, unequal="dv" in shaped, tied=tied)
    lacking = any(OPTIONS[name].lacks_products for name in shaped & set(OPTIONS))
    rng = np.random.default_rng(0)

    def normal(dtype: str, heads: int, length: int, dim: int) -> bits.Values:
        return bits.nearest(rng.standard_normal((batch, heads, length, dim)), dtype)

    kv_heads = 2 if limits.kv_heads is None else limits.kv_heads[0]
    heads = (2 * kv_heads if "gqa" in shaped else kv_heads, kv_heads)  # (2, 1) may be right by broadcasting
    query_heads, kv_heads = at_most_heads(limits.heads(heads), limits.most("H"))
    if "query_projection" in shaped:
        query_heads = kv_heads = 1
    batch = int(min(1 + larger, limits.most("B"), max(limits.most("BH") / query_heads, 1)))
    of_q, of_k, of_v = input_dtypes(dtype)
    problem = Problem(
        q=normal(of_q, query_heads, queries, head_dim),
        k=normal(of_k, kv_heads, keys, head_dim),
        v=normal(of_v, kv_heads, keys, value_dim),
        dtypes=kernel.dtypes_at(dtype),
    )
    if tied:
        problem = problem.replace(v=problem.k[..., :value_dim])
    always = {name: used(name, problem) for name in limits.always if name in OPTIONS}
    if lacking:
        always |= {"q": np.zeros_like(problem.q[..., :1]), "k": np.zeros_like(problem.k[..., :1])}
        # Equal log-sum-exps would make a mean right.
        lses = np.random.default_rng(1).standard_normal((1, query_heads, 1, keys))
        always |= {"bias": bits.nearest(lses, problem.dtype_of("bias"))}
    if option in DESCALE_AXES:
        own = [name for name in ABILITIES[option].of_any if name in kernel.supports]
        always |= {name: _varying(name, DESCALE_AXES[option], problem) for name in own}
    return problem.replace(**always)


def _varying(name: str, axes: str, problem: Problem) -> np.ndarray:
    """Return a descale with several numbers along such axes alone; powers of 2 are numbers of every dtype."""
    row = OPTIONS[name]
    whole = zip(row.axes, row.shape(problem.lengths), strict=True)
    shape = [length if axis in axes else 1 for axis, length in whole]
    return np.exp2(np.arange(np.prod(shape)) % 3 - 1.0).reshape(shape)


def _plain_dims(limits: Limits, *, unequal: bool, tied: bool) -> tuple[int, int]:
    """Return D and Dv of a plain problem: ``unequal`` or not if the kernel takes that, and Dv <= D if ``tied``."""
    if limits.widths is None:
        return (16, 16) if not unequal else (24, 16) if tied else (16, 24)
    able = (pair for pair in limits.widths if pair[1] <= pair[0] or not tied)
    first = next(able, limits.widths[0])
    return next((pair for pair in chain([first], able) if (pair[0] != pair[1]) == unequal), first)


def with_an_empty_row(kernel: Kernel, dtype: str) -> Problem:
    """Return a plain problem with a mask under which the second query, or the only one, sees no key.

    The kernel must take a mask.
    """
    problem = plain(kernel, dtype)
    return problem.replace(mask=_all_but_one_row(problem))


def with_a_row_empty_by_bias(kernel: Kernel, dtype: str) -> Problem:
    """Return a plain problem with a bias of 0, and of -inf for all keys of the second query, or of the only one.

    The kernel must take a bias.
    """
    problem = plain(kernel, dtype)
    return problem.replace(bias=np.where(_all_but_one_row(problem), 0.0, -np.inf))


def _all_but_one_row(problem: Problem) -> np.ndarray:
    seen = np.ones(problem.score_shape[2:], dtype=bool)
    seen[min(1, len(seen) - 1)] = False
    return seen[None, None]


def used(name: str, problem: Problem) -> Any:
    """Return a value with which a plain problem uses an option."""
    row = OPTIONS[name]
    return next(filter(row.is_used, row.draws), row.off) if row.plain is None else row.plain(problem.lengths)
