"""Placement of sequences in buffers, and the poison beside them, as the shapes of a problem choose them.

Equal shapes are handed over alike, so that a call for other numbers has the same arguments beside its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.options import FACTORS
from attn_spec.problem.problem import Problem

T = TypeVar("T")
#: Largest product, in magnitude, of a finite poison with a query or key of the problem. As a score it outweighs all
#: others, and no format of tensors overflows at it.
LARGEST_PRODUCT = 2.0**9
#: Magnitude of a finite poison among values and cotangents.
LARGE = 2.0**4
#: Numbers of keys of a page, unless a kernel takes some only.
PAGE_SIZES = (16, 1, 4, 3)
#: Tails that a table may have behind the pages of a sequence, by the convention ``table_tail``: a page of no sequence,
#: pages of the sequence before it, -1, or the largest int32.
TAILS = {"page": ("nobody", "stale"), "any": ("nobody", "stale", "minus_one", "largest")}
#: Log-sum-exps that a state without keys may have, by the convention ``empty_state``.
EMPTY_STATES = {"-inf": (-np.inf,), "either_inf": (-np.inf, np.inf)}
#: Ways of stating a largest length: exactly, as the axis of the problem, or as a multiple of 128.
LONGEST = ("exact", "axis", "rounded_up")
#: One problem in so many lies in buffers that end with the last sequence, as most callers' do.
TIGHT = 3


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Choices of a call that change no answer: they are drawn from the shapes of a problem."""

    #: Names of choices that are drawn a second time, so that a call differs from another one in these alone.
    redrawn: frozenset[str] = frozenset()
    #: Numbers of keys of a page, one of which is chosen.
    page_sizes: tuple[int, ...] = PAGE_SIZES
    #: Names of what a table has behind the pages of a sequence, one of which is chosen.
    tails: tuple[str, ...] = TAILS["page"]
    #: Ways of stating a largest length, one of which is chosen.
    longest: tuple[str, ...] = LONGEST
    #: Log-sum-exps of states without keys, one of which is chosen for each such state.
    empty_states: tuple[float, ...] = EMPTY_STATES["-inf"]
    #: Base of the log-sum-exps of states, by the convention ``lse_base``.
    lse_base: str = "e"
    #: True if sequences share the pages at their beginning that hold equal keys and values.
    shares_pages: bool = False
    #: True if nothing lies in a buffer, and nothing stands in a list of pages, behind the last sequence.
    tight: bool = False
    #: True if so may it be for one problem in ``TIGHT``, by its shapes, of those that have a query and a key.
    may_be_tight: bool = False
    #: True if the descales of keys and values have a number for each key, which lies where the key does. False if they
    #: have one for each sequence and kv head, unless the descale of a problem varies by key.
    descales_by_key: bool = False
    #: True if a new number that over its descale is beyond the largest of a cache may be appended, by the convention
    #: ``cache_overflow``.
    saturates: bool = False
    #: Numbers that choices are drawn from, in place of the shapes of a problem: calls to one cache have it in common.
    shapes: tuple[int, ...] = ()

    def one_of(self, problem: Problem, ways: int, about: str) -> int:
        """Return a number below ``ways`` that depends on the shapes of the problem, and on what it is about."""
        return int(self.chance(problem, about).integers(ways))

    def chance(self, problem: Problem, about: str) -> np.random.Generator:
        """Return random numbers that depend on the shapes of the problem, and on what they are about."""
        again = (1,) if about in self.redrawn else ()
        shapes = self.shapes or (*problem.q.shape, *problem.k.shape, *problem.v.shape)
        return np.random.default_rng((*shapes, *about.encode(), *again))

    def choice(self, problem: Problem, among: Sequence[T], about: str) -> T:
        """Return an element of a sequence that depends on the shapes of the problem, and on what it is about."""
        return among[self.one_of(problem, len(among), about)]

    def is_tight(self, problem: Problem) -> bool:
        """Return whether nothing lies in the buffers of a problem, or in a list of pages, behind the last sequence."""
        if self.tight or not self.may_be_tight:
            return self.tight
        has_both = bool(used(problem, "q").sum() and used(problem, "k").sum())
        return has_both and self.one_of(problem, TIGHT, "tight") == 0

    def stated_longest(self, problem: Problem, side: str) -> int:
        """Return the largest length as a call states it: exact, or the axis of the problem, or a multiple of 128.

        It is at least 1: kernels launch a grid for as many rows, and CUDA launches no empty grid.
        """
        exact, axis = int(used(problem, side).max(initial=1)), max(problem.lengths[{"q": "Q", "k": "K"}[side]], 1)
        stated = {"exact": exact, "axis": axis, "rounded_up": -(-axis // 128) * 128}
        return stated[self.choice(problem, self.longest, f"longest {side}")]


#: Every choice as the shapes of a problem draw it first.
DRAWN_ONCE = Placement()


def used(problem: Problem, side: str) -> np.ndarray:
    """Return the number of queries or keys of each batch entry, integers [B]."""
    return problem.used_queries if side == "q" else problem.end_keys


def poison(problem: Problem, name: str, unread: bool, *, by_key: bool = False) -> float | None:
    """Return the number in free slots among q, k, v or a descale; None for numbers of other queries and keys.

    It is NaN if free slots are ``unread``, or the largest integer, else a finite number. One problem in four, by its
    shapes, has numbers of other queries and keys, which show where a NaN would be masked. A finite number times a query
    or key, and times descales, is at most ``LARGEST_PRODUCT``, up to the rounding to its dtype; and so it is without
    the descales. A sound kernel may compute such scores before it masks them, and no stage of it may overflow then.
    ``by_key`` says that free slots hold poison among the descales of keys and values too: a number times the largest
    one.
    """
    others, dtype = DRAWN_ONCE.one_of(problem, 4, "poison") == 0, problem.dtype_of(name)
    if name in FACTORS:
        large = LARGE * largest_descale(problem, name)
        return None if others else _given(large, dtype, unread)
    partner, tensors = {"q": (problem.k, "qk"), "k": (problem.q, "qk")}.get(name, (None, name))
    grown = LARGE if by_key and name != "q" and getattr(problem, f"{name}_descale") is not None else 1.0
    reach = grown * math.prod(max(1.0, largest_descale(problem, f"{each}_descale")) for each in tensors)
    if partner is not None:
        finite = np.where(np.isfinite(partner), np.abs(partner), 0.0)
        reach *= max(1.0, abs(problem.scale_value)) * float(finite.sum(axis=-1).max(initial=1.0))
    if others and (unread or reach * np.abs(getattr(problem, name)).max(initial=0.0) <= LARGEST_PRODUCT):
        return None
    return _given((LARGE if partner is None else LARGEST_PRODUCT) / reach, dtype, unread)


def _given(large: float, dtype: str, unread: bool) -> float:
    """Return NaN if a slot is ``unread``, or the largest integer, else the nearest number of a dtype to a large one."""
    form = FORMATS[dtype]
    if unread:
        return form.largest if form.is_integer else np.nan
    return bits.nearest(np.array(min(large, form.largest)), dtype).item()


def largest_descale(problem: Problem, name: str) -> float:
    """Return the largest number of a descale; 1 without it."""
    x = getattr(problem, name)
    return 1.0 if x is None or not x.size else float(x.max())
