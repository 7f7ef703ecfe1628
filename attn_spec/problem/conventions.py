"""Conventions, which sound systems answer differently: each is one field of :class:`Conventions`, with its row.

Whoever deals with conventions reads the rows: what kernels declare, the judgement, assertions about one answer, the
probe, help, certificates. A new convention is a new field here, and what decides by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from attn_spec.nearest_names import suggestion
from attn_spec.problem.masks import ALIGNMENTS

#: The choice under which any answer is right.
OPEN = "undeclared"
#: The choice of a convention about fewer cases than another, which stands for the choice of that one.
SAME = "same"


class ConventionError(ValueError):
    """A convention that does not exist, or a value that is no choice of one; the text names those that exist."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """All that is known of one convention."""

    #: The field's name.
    name: str = ""
    #: A sentence about what the convention decides.
    says: str
    #: Meaning of each choice that a kernel may declare, by the choice.
    choices: Mapping[Any, str]
    #: The choice that a kernel promises which does not name the convention.
    default: Any
    #: Quantities of one answer that depend on the convention, names of ``problem.quantities``; none where several
    #: calls, or numbers that are not finite, are needed to see it.
    decides: tuple[str, ...] = ()
    #: True if a problem states the convention, as an option of its name, which the judgement reads instead.
    is_option: bool = False
    #: The option that the convention is about, without which it decides nothing; empty for any problem.
    of: str = ""
    #: The convention whose choice :data:`SAME` stands for, empty where that is no choice.
    follows: str = ""
    #: True if only queries that see no key depend on the convention.
    without_keys: bool = False
    #: True if only what lies behind the lengths of sequences depends on the convention.
    behind_lengths: bool = False
    #: True if the convention is OPEN unless it is named, in a test of one answer and for a callable without @kernel, so
    #: that no sound system is accused. False: the default is taken there too.
    left_open: bool = False
    #: A predicate: True if the answer to a problem shows which choice was made.
    shows: Callable[[Any], bool] = lambda problem: True

    @property
    def known(self) -> tuple[Any, ...]:
        """Every value that the convention may have: the choices of a kernel, and OPEN where a call leaves it so."""
        return (*self.choices, OPEN) if self.left_open and OPEN not in self.choices else tuple(self.choices)

    @property
    def telling(self) -> tuple[Any, ...]:
        """The choices that say by themselves which answers are right."""
        return tuple(choice for choice in self.choices if choice not in (OPEN, SAME))

    @property
    def unnamed(self) -> Any:
        """The value in a call that does not name the convention."""
        return OPEN if self.left_open else self.default

    def check(self, value: Any, allowed: Iterable[Any]) -> None:
        """Raise :class:`ConventionError` unless the value is one of those allowed."""
        allowed = tuple(allowed)
        if value not in allowed:
            near = suggestion(str(value), [str(choice) for choice in allowed])
            names = ", ".join(map(repr, allowed))
            raise ConventionError(f"convention {self.name} must be one of {names}, not {value!r}{near}")


def convention(**row: Any) -> Any:
    """Return a field of :class:`Conventions` whose row is in its metadata."""
    return field(default=row["default"], metadata={"row": Convention(**row)})


def _has_sinks(problem: Any) -> bool:
    return problem.sinks is not None


def _has_blind_queries(problem: Any) -> bool:
    return bool(problem.blind_queries.any())


def _has_queries_blind_by_bias(problem: Any) -> bool:
    by_bias, by_others_too = problem.blind_by_bias
    return bool((by_bias & ~by_others_too).any())


#: Meaning of each output that a query without keys may have.
_OUTPUTS_WITHOUT_KEYS = {"zero": "0", "mean_of_v": "the mean of the values of all keys", "nan": "NaN"}


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """The choices on which sound systems differ."""

    causal_alignment: str = convention(
        says="Which corner the diagonal starts from when Sq != Sk.",
        choices=dict(
            zip(
                ALIGNMENTS,
                ("query i sees key j if j <= i", "query i sees key j if j <= i + Sk - Sq"),
                strict=True,
            )
        ),
        default="top_left",
        decides=("output", "lse"),
        is_option=True,
        shows=lambda p: p.causal and bool((p.end_keys - p.used_queries != p.first_keys).any()),
    )
    empty_row: str = convention(
        says="Output of a query that sees no key and has no sink.",
        choices=_OUTPUTS_WITHOUT_KEYS,
        default="zero",
        decides=("output",),
        without_keys=True,
        left_open=True,
        shows=_has_blind_queries,
    )
    empty_row_by_bias: str = convention(
        says="Output of a query that would see a key if no bias were -inf, and has no sink.",
        choices={SAME: "what empty_row says", **_OUTPUTS_WITHOUT_KEYS},
        default=SAME,
        decides=("output",),
        of="bias",
        follows="empty_row",
        without_keys=True,
        shows=_has_queries_blind_by_bias,
    )
    lse_base: str = convention(
        says="Base of the logarithm in the LSE, and in the LSEs of states that a call merges.",
        choices={"e": "the natural logarithm", "2": "the natural logarithm divided by ln 2"},
        default="e",
        decides=("lse",),
    )
    empty_lse: str = convention(
        says="LSE of a query that sees no key and has no sink.",
        choices={"-inf": "the logarithm of no sum", "+inf": "so that exp(s - LSE) is 0", OPEN: "any number"},
        default="-inf",
        decides=("lse",),
        without_keys=True,
        left_open=True,
        shows=_has_blind_queries,
    )
    sink_in_lse: bool = convention(
        says="Whether the LSE has the term of an attention sink.",
        choices={
            True: "the logarithm of what weights are divided by",
            False: "the logarithm of the sum over keys, without the sink",
        },
        default=True,
        decides=("lse",),
        of="sinks",
        shows=_has_sinks,
    )
    masked_nonfinite: str = convention(
        says="Whether Inf or NaN in a hidden key or value is kept out of the result.",
        choices={"excluded": "the result is that of finite numbers in its place", "may_leak": "the result may be NaN"},
        default="may_leak",
    )
    unused: str = convention(
        says="What may lie where no query or key of a sequence is: behind the lengths of a batch entry.",
        choices={"finite": "finite numbers, as in memory that is cleared", "unread": "anything, NaN and Inf included"},
        default="finite",
        behind_lengths=True,
        shows=lambda p: p.has_lengths,
    )
    table_tail: str = convention(
        says="What a table of pages has behind the pages of a sequence.",
        choices={"page": "numbers of pages of the cache", "any": "any integers, as -1 or what another sequence left"},
        default="page",
        behind_lengths=True,
        shows=lambda p: p.has_lengths,
    )
    unused_rows: str = convention(
        says="Output of rows behind their sequence, and gradients of queries and keys that are not there.",
        choices={OPEN: "any number", "zero": "0"},
        default=OPEN,
        decides=("output",),
        without_keys=True,
        behind_lengths=True,
        shows=lambda p: p.has_lengths and not p.there.all(),
    )
    empty_state: str = convention(
        says="LSE of a state without keys, as a merge of states is given it.",
        choices={"-inf": "the logarithm of no sum", "either_inf": "-inf, or +inf as flash-attention 2 writes it"},
        default="-inf",
        of="states",
        shows=lambda p: p.states and not p.visible.all(),
    )
    cache_overflow: str = convention(
        says="What a call writes to a cache of 8 bits for a new number that is, over its descale, beyond the largest.",
        choices={
            "none": "no new number is beyond the largest number of the cache",
            "saturates": "the largest number of the cache, with the sign of the new one",
        },
        default="none",
    )
    deterministic: bool = convention(
        says="Whether two equal calls agree bit for bit.",
        choices={True: "equal calls, equal bits", False: "each call may round in another order"},
        default=True,
    )
    overwrites_results: bool = convention(
        says="Whether a later call may overwrite what an earlier call returned.",
        choices={
            False: "what a call returned stays as it is",
            True: "the next call may use the memory of the results again, as CUDA graphs do",
        },
        default=False,
    )
    batch_invariant: bool = convention(
        says="Whether a row's bits are independent of the rest of the batch.",
        choices={
            True: "a row has the same bits alone and among others",
            False: "among others it may be rounded in another order",
        },
        default=False,
    )

    def __post_init__(self) -> None:
        for name, row in CONVENTIONS.items():
            row.check(getattr(self, name), row.known)

    def choice(self, name: str) -> Any:
        """Return the choice of a convention, or of the one that it follows where that is :data:`SAME`."""
        chosen = getattr(self, name)
        return getattr(self, CONVENTIONS[name].follows) if chosen == SAME else chosen

    @property
    def outputs_without_keys(self) -> frozenset[str]:
        """The choices of ``empty_row`` and ``empty_row_by_bias``."""
        return frozenset({self.empty_row, self.choice("empty_row_by_bias")})

    @property
    def empty_rows_are_constant(self) -> bool:
        """True if no tensor changes the output of a query that sees no key."""
        return self.outputs_without_keys <= {"zero", "nan"}

    def blind_queries(self, problem: Any) -> dict[str, np.ndarray]:
        """Return which queries of a problem that see no key have which output, bool [B, Hq, Sq] for each choice.

        Where a bias and another option each hide keys of a query, the convention is :data:`OPEN`, unless both agree:
        a finite number in place of hidden scores makes such an output the mean over the keys that are not -inf.
        """
        blind, chosen = problem.blind_queries, (self.empty_row, self.choice("empty_row_by_bias"))
        rows = {choice: np.zeros_like(blind) for choice in (*CONVENTIONS["empty_row"].choices, OPEN)}
        if chosen[0] == chosen[1] or not blind.any():
            rows[chosen[0]] = blind
            return rows
        by_bias, by_others_too = problem.blind_by_bias
        for choice, which in zip((*chosen, OPEN), (~by_bias, by_bias & ~by_others_too, by_others_too), strict=True):
            rows[choice] = rows[choice] | (blind & which)
        return rows

    @property
    def lse_unit(self) -> float:
        """The natural logarithm that a log-sum-exp of 1 is."""
        return math.log(2.0) if self.lse_base == "2" else 1.0


#: Every convention by name.
CONVENTIONS: dict[str, Convention] = {
    each.name: replace(each.metadata["row"], name=each.name) for each in fields(Conventions)
}
#: Conventions that the judgement of one answer needs to be told, beside the problem.
OF_ANSWERS: dict[str, Convention] = {
    name: row for name, row in CONVENTIONS.items() if row.decides and not row.is_option
}
#: Promises of a kernel that names no convention.
DEFAULTS = Conventions()


def of_kernel(named: Mapping[str, Any] | Conventions) -> Conventions:
    """Return the conventions of a kernel that names some; all others have their defaults.

    Raises :class:`ConventionError`.
    """
    chosen = asdict(named) if isinstance(named, Conventions) else named
    _check_names(chosen)
    for name, value in chosen.items():
        CONVENTIONS[name].check(value, CONVENTIONS[name].choices)
    return Conventions(**chosen)


def of_call(named: Mapping[str, Any]) -> Conventions:
    """Return the conventions by which a call that names some is judged. Raises :class:`ConventionError`."""
    _check_names(named)
    return Conventions(**{name: row.unnamed for name, row in CONVENTIONS.items()} | dict(named))


def _check_names(named: Mapping[str, Any]) -> None:
    if unknown := sorted(set(named) - set(CONVENTIONS)):
        near = suggestion(unknown[0], CONVENTIONS)
        raise ConventionError(f"unknown conventions {', '.join(unknown)}; known are {', '.join(CONVENTIONS)}{near}")
