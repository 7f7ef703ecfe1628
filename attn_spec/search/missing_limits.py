"""Hints about limits that a declaration may lack: the kernel is asked again, for the nearest problem within a limit.

No verdict depends on these hints; they are for the reader of a refutation. A limit is named only if the property holds
of the nearest problem within it, so that the failing problem differs from a right one in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from hypothesis.errors import UnsatisfiedAssumption

from attn_spec.judgement.neighbours import without_options
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import GRID, MEASURED, Limits, NotTaken, largest_position, measured
from attn_spec.kernels.misbehaviour import CallFailed, Crashed, Misbehaviour, Raised
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.property import NotExamined, recording

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.search.property import Property

#: Largest number of limits in a hint.
MOST = 2
#: Largest number of problems that a kernel is asked for again; of one that crashes, since each crash costs seconds.
TRIES, TRIES_OF_CRASHES = 40, 6
#: Divisors that kernels ask of lengths, which are tiles, and of head dimensions, the least first.
TILES = (8, 16, 32, 64, 128)
DIVISORS = (2, 4, *TILES)
#: Head dimensions that kernels have as their largest.
WIDEST = (256, 128, 64)


@dataclass(frozen=True)
class Remedies:
    """Words of a declaration by which a kernel is not asked for a problem again."""

    #: True if the kernel answers the problem, and fails only where gradients are asked for.
    of_gradients: bool

    def without(self, name: str) -> str:
        """Return the words by which no problem uses an option or ability."""
        return f"declare forward_only=({name!r},)" if self.of_gradients else f"take {name!r} out of supports"

    def limit(self, name: str, value: str) -> str:
        """Return the words of a limit; ``value`` is empty where the reader must fill it in."""
        return (
            f"declare backward_limits={{{name!r}: {value or '..'}}}" if self.of_gradients else f"declare {name}={value}"
        )

    @property
    def equal_lengths(self) -> str:
        """Words by which queries and keys have one length."""
        return self.limit("equal_lengths", "True") if self.of_gradients else self.without("cross")


@dataclass(frozen=True)
class Within:
    """Problems near a failing one, all within a limit that the failing one is beyond."""

    #: Words for the difference of the problems, and the limit to declare.
    says: str
    #: Functions that make the problems. Each may raise :class:`ProblemError`.
    problems: tuple[Callable[[], Problem], ...]
    #: Kind of the limit, of which the first that explains is named alone.
    kind: str = ""


def missing_limits(property_: Property, subject: Subject, problem: Problem, error: Exception | None) -> list[str]:
    """Return the limits that the smallest failing problem suggests, and within which the property holds.

    Without an ``error`` the kernel's call ends this process, so that nothing can be asked: see :func:`unasked`.
    """
    if error is None:
        return unasked(subject.kernel.limits, problem)
    if isinstance(error, CallFailed) and not isinstance(error, Crashed | Raised):
        return []  # a call that hangs may do so again, at the full cost of its time limit
    tries = TRIES_OF_CRASHES if isinstance(error, Crashed) else TRIES
    found: list[Within] = []
    failed = isinstance(error, CallFailed)
    asks_more = {"backward", "strides"}.intersection(property_.needs)
    answers = failed and bool(asks_more) and _answers(subject, problem)
    remedies = Remedies(answers and "backward" in property_.needs)
    if answers and isinstance(error, Raised) and "strides" in property_.needs:  # the layout is all that differs
        return [f"right with contiguous tensors: if the kernel needs them, {remedies.limit('contiguous', 'True')}"]
    for near in _near(subject, problem, remedies, failed=failed):
        if near.kind and near.kind in {one.kind for one in found}:
            continue
        if len(found) == MOST or (tries := tries - len(near.problems)) < 0:
            break
        if all(_holds(property_, subject, make) for make in near.problems):
            found.append(near)
    return [f"right {near.says}" for near in found]


def needed(property_: Property, subject: Subject, problem: Problem) -> tuple[str, ...]:
    """Return the options of a refuting problem that the refutation needs: without each of them the property holds."""
    made = _less(subject, problem)
    return tuple(name for name, make in made.items() if _holds(property_, subject, make))


def unasked(limits: Limits, problem: Problem) -> list[str]:
    """Return limits that kernels often have, and that a problem is beyond, in words that leave open whether this one
    has them.
    """
    found = []
    if _has_far_positions(limits, problem):
        reached = largest_position(problem)
        found.append(f"the problem has positions up to {reached}; if the kernel has a table, declare largest_position=")
    return found + [
        f"the problem has {length:,} {MEASURED[axis]}; if these are blocks in an axis of a grid, which has "
        f"{GRID:,} at most, declare largest={{{axis!r}: {GRID}}}"
        for axis, length in _beyond_grids(limits, problem)
    ]


def _answers(subject: Subject, problem: Problem) -> bool:
    """Return whether the kernel answers the problem, without gradients."""
    try:
        subject(problem)
    except (Misbehaviour, NotTaken):
        return False
    return True


def _holds(property_: Property, subject: Subject, make: Callable[[], Problem]) -> bool:
    """Return whether the property holds of a problem, and measures some of its elements if it measures any."""
    try:
        with recording() as observations:
            property_.check(subject, make())
    except (AssertionError, ProblemError, NotTaken, NotExamined, UnsatisfiedAssumption, KernelError):
        return False
    return not observations.is_empty


def _near(subject: Subject, problem: Problem, remedies: Remedies, *, failed: bool) -> Iterator[Within]:
    """Yield problems near a failing one; ``failed``: the call itself failed."""
    limits = subject.kernel.limits
    if not limits.positive_scale and problem.scale_value <= 0:
        positive = -problem.scale_value or problem.scored_width**-0.5
        yield Within(
            f"with a scale above 0: if the kernel needs one, {remedies.limit('positive_scale', 'True')}",
            (lambda: problem.replace(scale=positive),),
        )
    if not failed:
        return
    if _has_far_positions(limits, problem):
        counted = dict.fromkeys(("rotary_query_positions", "rotary_key_positions"))
        yield Within(
            "with positions that are counted: if the kernel has a table of them, "
            f"{remedies.limit('largest_position', '')}",
            (lambda: problem.replace(**counted),),
        )
    for axis, _ in _beyond_grids(limits, problem):
        yield Within(
            f"with {GRID:,} {MEASURED[axis]}: if these are blocks in an axis of a grid, "
            f"{remedies.limit('largest', f'{{{axis!r}: {GRID}}}')}",
            (lambda axis=axis: _at_most(problem, axis, GRID),),
        )
    yield from _of_tensors(problem)
    yield from _of_pairs(subject, problem, remedies)
    yield from _of_lengths(subject, problem, remedies)
    yield from _of_widths(subject, problem, remedies)
    yield from _of_options(subject, problem, remedies)


def _has_far_positions(limits: Limits, problem: Problem) -> bool:
    """Return whether positions of ``rotary`` are given that counting would not reach, and no limit restricts them."""
    longest = max(problem.query_length, problem.key_length)
    return problem.rotary is not None and limits.largest_position is None and largest_position(problem) >= longest


def _beyond_grids(limits: Limits, problem: Problem) -> list[tuple[str, int]]:
    """Return the axes of a problem that have more entries than an axis of a grid, and their lengths."""
    return [(axis, length) for axis, length in measured(problem).items() if length > GRID and limits.most(axis) > GRID]


def _at_most(problem: Problem, axis: str, most: int) -> Problem:
    """Return the first part of a problem that has ``most`` entries along an axis, or fewer where heads are whole."""
    if axis == "BH":
        axis, most = "B", max(most // problem.query_heads, 1)
    if axis == "H":
        most //= problem.group
    return problem.take(axis, range(most))


def _of_lengths(subject: Subject, problem: Problem, remedies: Remedies) -> Iterator[Within]:
    """Yield problems of other lengths: as many keys as queries, some where there are none, and whole tiles."""
    Q, K, limits = problem.query_length, problem.key_length, subject.kernel.limits
    if not (Q and K):
        some = {"a query": (max(Q, 1), K), "a key": (Q, max(K, 1)), "a query and a key": (max(Q, 1), max(K, 1))}
        for what, (queries, keys) in some.items() if subject.supports("empty") else ():
            if (queries, keys) != (Q, K):
                yield Within(
                    f"with {what}: if the kernel needs that, {remedies.without('empty')}",
                    (lambda queries=queries, keys=keys: _of_zeros(problem, Q=queries, K=keys),),
                    "empty",
                )
        return
    if Q != K and subject.supports("cross") and not limits.equal_lengths:
        least = min(Q, K)
        yield Within(
            f"with as many keys as queries: if the kernel needs that, {remedies.equal_lengths}",
            (lambda: problem.take("Q", range(least)).take("K", range(least)),),
            "lengths",
        )
    if problem.group > 1 and subject.supports("gqa"):
        fewer = 2 ** (problem.group.bit_length() - 1)
        if fewer != problem.group and limits.group_sizes is None:
            yield Within(
                "with a power of 2 of query heads for each kv head: if the kernel needs that, "
                f"{remedies.limit('group_sizes', '(1, 2, 4, 8, 16)')}",
                (lambda: problem.of_groups(fewer),),
            )
        own = np.arange(problem.query_heads) // problem.group
        yield Within(
            f"with as many kv heads as query heads: if the kernel needs that, {remedies.without('gqa')}",
            (lambda: problem.replace(k=problem.k[:, own], v=problem.v[:, own]),),
        )
    for axis, length in (("Q", Q), ("K", K), ("QK", 0)):
        for divisor in TILES:
            if any(n % divisor for n in ((length,) if length else (Q, K))):
                told = ", ".join(f"{letter!r}: {divisor}" for letter in axis)
                yield Within(
                    f"with a length of {' and '.join(axis)} that {divisor} divides: if the kernel needs that, "
                    f"{remedies.limit('multiples', f'{{{told}}}')}",
                    (lambda axis=axis, divisor=divisor: _repeated(problem, axis, divisor),),
                    "lengths",
                )


def _of_zeros(problem: Problem, **lengths: int) -> Problem:
    """Return a problem of these lengths with zeros in q, k and v, and without options."""
    axes = {"q": "Q", "k": "K", "v": "K"}
    shapes = {name: (*x.shape[:2], lengths[axes[name]], x.shape[3]) for name in "qkv" for x in [getattr(problem, name)]}
    plain = {name: row.off for name, row in OPTIONS.items() if row.axes and not row.projects_values}
    return problem.replace(**plain, **{name: np.zeros(shape) for name, shape in shapes.items()})


def _repeated(problem: Problem, axes: str, divisor: int) -> Problem:
    """Return a problem with its first queries or keys once more behind its last, up to a multiple of ``divisor``."""
    for axis in axes:
        length = problem.lengths[axis]
        problem = problem.take(axis, np.arange(_odd_multiple(length, divisor)) % length)
    return problem


def _odd_multiple(least: int, divisor: int) -> int:
    """Return the least odd multiple of ``divisor`` from ``least`` on, which twice the divisor does not divide."""
    times = math.ceil(least / divisor)
    return divisor * (times + 1 - times % 2)


def _of_widths(subject: Subject, problem: Problem, remedies: Remedies) -> Iterator[Within]:
    """Yield problems of other head dimensions: of equal ones, of multiples, and of fewer columns."""
    D, Dv = problem.scored_width, problem.head_value_dim
    if problem.projects or problem.states or subject.kernel.limits.head_dims is not None:
        return
    if Dv != D and subject.supports("dv"):
        yield Within(
            f"with values as wide as keys: if the kernel needs that, {remedies.without('dv')}",
            (lambda: _of_width(problem, D, D),),
            "widths",
        )
    for divisor in DIVISORS:
        if D % divisor or Dv % divisor:
            wide = [_odd_multiple(width, divisor) for width in (D, Dv)]
            yield Within(
                f"with head dimensions that {divisor} divides: if the kernel needs that, "
                f"{remedies.limit('head_dims', f'tuple(range({divisor}, 257, {divisor}))')}",
                (lambda wide=wide: _of_width(problem, *wide),),
                "widths",
            )
    for most in WIDEST:
        if max(D, Dv) > most:
            narrow = [min(width, most) for width in (D, Dv)]
            yield Within(
                f"with head dimensions up to {most}: if the kernel takes no larger ones, "
                f"{remedies.limit('head_dims', '')}",
                (lambda narrow=narrow: _of_width(problem, *narrow),),
                "widths",
            )


def _of_width(problem: Problem, D: int, Dv: int) -> Problem:
    """Return a problem with D columns in q and k, and Dv in v: the first ones, with zeros behind the last."""

    def cut(x: np.ndarray, width: int) -> np.ndarray:
        lacking = max(width - x.shape[-1], 0)
        return np.pad(x[..., :width], [(0, 0)] * 3 + [(0, lacking)])

    return problem.replace(q=cut(problem.q, D), k=cut(problem.k, D), v=cut(problem.v, Dv))


def _of_tensors(problem: Problem) -> Iterator[Within]:
    """Yield problems with an option's tensor of its full size in place of a broadcast one."""
    for name, row in OPTIONS.items():
        x, whole = getattr(problem, name), row.shape(problem.lengths) if row.tensor and len(row.axes) == 4 else ()
        if isinstance(x, np.ndarray) and x.shape != whole:
            yield Within(
                f"with {name} of its full size: if the kernel needs that, expand it in a function around the kernel",
                (lambda name=name, x=x, whole=whole: problem.replace(**{name: np.broadcast_to(x, whole).copy()}),),
                "options",
            )


def _of_pairs(subject: Subject, problem: Problem, remedies: Remedies) -> Iterator[Within]:
    """Yield problems with one of two options: the kernel does not combine them if it is right with either alone."""
    made = _less(subject, problem)
    for pair in combinations(made, 2):
        yield Within(
            f"with {pair[0]} alone and with {pair[1]} alone: if they are never combined, "
            f"{remedies.limit('exclusive', f'({pair},)')}",
            (made[pair[0]], made[pair[1]]),
            "options",
        )


def _of_options(subject: Subject, problem: Problem, remedies: Remedies) -> Iterator[Within]:
    """Yield problems with an option beside causality, and without one."""
    made, able = _less(subject, problem), subject.kernel.supports
    for name in made:
        if "causal" in able and not problem.causal and name not in subject.kernel.limits.beside:
            other = f"{{{name!r}: ('causal',)}}"
            yield Within(
                f"with {name} beside causal: if the kernel needs that, {remedies.limit('beside', other)}",
                (lambda: problem.replace(causal=True),),
                "options",
            )
    for name, make in made.items():
        says = f"without {name}: if the kernel does not take it so, {remedies.without(name)}"
        yield Within(says, (make,), "options")


def _less(subject: Subject, problem: Problem) -> dict[str, Callable[[], Problem]]:
    """Return functions that make the problem without an option, by that option."""
    kernel = subject.kernel
    changes = {words.removeprefix("without "): fields for words, fields in without_options(problem)}
    able = [name for name in changes if name in kernel.supports and name not in kernel.limits.always]
    return {name: (lambda fields=changes[name]: problem.replace(**fields)) for name in able}
