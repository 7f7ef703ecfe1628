"""Properties: one statement about every problem, its source, the bug it hunts, and the options it needs.

A property is a function ``(subject, problem)`` that raises if its statement is false. :func:`attention_property` turns
it into a pytest function that searches for a refuting problem with Hypothesis. It also registers the property, so that
a stored case can be replayed and the catalogue can be printed.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest
    from hypothesis.strategies import SearchStrategy

    from attn_spec.judgement.bound_terms import BoundTerm
    from attn_spec.judgement.measure import Measurement
    from attn_spec.judgement.worst import WorstElement
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.drawing.regimes import Recipe

Check = Callable[["Subject", "Problem"], None]


@dataclass(frozen=True, kw_only=True)
class Property:
    """A property, with all that the catalogue, the certificate and a replay need to know about it."""

    #: Id as family.name, e.g. ``causality.future_keys_change_nothing``.
    id: str
    #: Statement as a sentence: the first line of the docstring.
    statement: str
    #: Reason why the statement is true, or the place where it is stated.
    source: str
    #: Bug that the property hunts.
    hunts: str
    #: Options and abilities that the kernel must declare, or its framework have, for the property to apply.
    needs: tuple[str, ...]
    #: Function that raises if the statement is false for a problem.
    check: Check
    #: Strategy of the problems that are searched.
    problems: Callable[[Subject], SearchStrategy[Problem]]
    #: Function that says why the property does not apply to a subject; its text is empty if it does.
    not_applicable: Callable[[Subject], str] = lambda subject: ""
    #: Largest probability that one problem makes a sound kernel suspect, or refutes it if the property is about chance.
    #: It is 0 for a property that is a theorem.
    false_alarm: float = 0.0
    #: Function that lists recipes, by subject and seed, for a property that is checked on given problems. None for a
    #: property that is searched.
    recipes: Callable[[Subject, int], Sequence[Recipe]] | None = None
    #: True if each answer is judged as that of its own call, or of one with equal q, k, v and sequences. Only such a
    #: property holds of a kernel that quantises, whose numbers depend on all others of a block.
    each_call: bool = False

    def applies_to(self, subject: Subject) -> bool:
        """Return whether the subject has the options that the property needs, and the property applies to it."""
        return subject.supports(*self.needs) and not self.reason_not_to_apply(subject)

    def reason_not_to_apply(self, subject: Subject) -> str:
        """Return why the property does not apply to the contract of a subject; an empty text if it does."""
        if not self.each_call and quantises(subject):
            return "it relates calls whose quantised numbers differ, since the kernel's contract has quantisers"
        return self.not_applicable(subject)


def quantises(subject: Subject) -> bool:
    """Return whether the contract of a subject has quantisers."""
    return bool(subject.contract.quantisers)


class NotExamined(Exception):  # noqa: N818 -- a verdict that is missing, not an error of ours
    """A problem that the kernel takes could not be examined here; the message says why."""


class Refutation(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A property is false for one problem.

    ``measurement`` is the measurement with the worst element, if the property measures one. ``worst`` is the element
    alone, for an answer too long to be measured at once. ``bound`` finds the largest terms of its allowed error.
    """

    def __init__(
        self,
        text: str,
        measurement: Measurement | None = None,
        explain: Callable[[], Sequence[str]] = tuple,
        worst: WorstElement | None = None,
        bound: Callable[[], Sequence[BoundTerm]] = tuple,
    ) -> None:
        super().__init__(text)
        self.measurement = measurement
        self.worst = worst
        self._explain = explain
        self._bound = bound

    @cached_property
    def hints(self) -> tuple[str, ...]:
        """Hints that each alone would explain the answer; they are found on request, not while shrinking."""
        return tuple(self._explain())

    @cached_property
    def bound_terms(self) -> tuple[BoundTerm, ...]:
        """Largest terms of the allowed error of the worst element; they are found on request, not while shrinking."""
        return tuple(self._bound())


class Suspicion(AssertionError):  # noqa: N818 -- a verdict, not an error of ours
    """A statistical test failed for one problem, which a sound kernel does with probability ``false_alarm``.

    The test assumes a model of the kernel's errors that the kernel does not declare. If a property is about chance
    itself, the kernel is refuted instead.
    """


@dataclass
class Observations:
    """Ratios and readings that a check reports to the search that runs it."""

    #: Largest ratio of each kind.
    ratios: dict[str, float] = field(default_factory=dict)
    #: Readings of a contract, in words, that explained an answer.
    readings: set[str] = field(default_factory=set)
    #: Texts that say which part of an answer was judged, for answers that were judged in part.
    looked_at: list[str] = field(default_factory=list)
    #: Largest quantisation error, as a share of the output; None if none was measured.
    quantisation: float | None = None
    #: Number of elements that the contract covers.
    measured: int = 0
    #: Number of elements that a judgement was asked about.
    asked: int = 0

    @property
    def is_empty(self) -> bool:
        """True if judgements were asked about elements, and none of them could be measured."""
        return self.asked > 0 and not self.measured


_recording: ContextVar[Observations | None] = ContextVar("_recording", default=None)


def observe(ratio: float, what: str = "error / bound") -> None:
    """Tell the search how near a problem came to a refutation (1 refutes); the search climbs towards larger ratios.

    Ratios of statistical properties are not targets: their false-alarm probability holds for independent draws only.
    Outside a search the function does nothing, so that a property replays unchanged.
    """
    observations = _recording.get()
    if observations is not None:
        size = math.inf if math.isnan(ratio) else float(ratio)
        observations.ratios[what] = max(observations.ratios.get(what, 0.0), size)


def observe_reading(words: str) -> None:
    """Tell the search which reading of a contract that leaves a choice explained an answer."""
    observations = _recording.get()
    if observations is not None:
        observations.readings.add(words)


def observe_measured(measured: int, asked: int) -> None:
    """Tell the search how many elements a judgement measured, of those that it was asked about."""
    observations = _recording.get()
    if observations is not None:
        observations.measured += measured
        observations.asked += asked


def observe_quantisation(share: float) -> None:
    """Tell the search the quantisation error of a problem, as a share of its output."""
    observations = _recording.get()
    if observations is not None:
        observations.quantisation = max(observations.quantisation or 0.0, share)


def observe_sample(words: str) -> None:
    """Tell the search which part of an answer was judged."""
    observations = _recording.get()
    if observations is not None:
        observations.looked_at.append(words)


@contextmanager
def recording() -> Iterator[Observations]:
    """Collect the observations of checks inside the block."""
    observations = Observations()
    token = _recording.set(observations)
    try:
        yield observations
    finally:
        _recording.reset(token)


#: Every property defined so far, by id.
REGISTRY: dict[str, Property] = {}


def attention_property(
    *,
    source: str,
    hunts: str,
    needs: tuple[str, ...] = (),
    problems: Callable[[Subject], SearchStrategy[Problem]] | None = None,
    not_applicable: Callable[[Subject], str] = lambda subject: "",
    false_alarm: float = 0.0,
    recipes: Callable[[Subject, int], Sequence[Recipe]] | None = None,
    each_call: bool = False,
) -> Callable[[Check], Callable[..., None]]:
    """Make ``check(subject, problem)`` a property and a pytest test over the fixture ``subject``.

    ``problems`` returns the strategy to search, by default every problem that the kernel supports. ``not_applicable``,
    ``recipes``, ``each_call`` and ``false_alarm`` are fields of :class:`Property`. A property with a false alarm raises
    :class:`Suspicion`, unless it is about chance itself.
    """

    def decorate(check: Check) -> Callable[..., None]:
        family = check.__module__.rpartition(".")[2].removeprefix("test_")
        statement = inspect.cleandoc(check.__doc__ or "").splitlines()[0]
        name = check.__name__.removeprefix("test_")
        made = Property(
            id=f"{family}.{name}",
            statement=statement,
            source=source,
            hunts=hunts,
            needs=needs,
            check=check,
            problems=problems or _every_problem,
            not_applicable=not_applicable,
            false_alarm=false_alarm,
            recipes=recipes,
            each_call=each_call,
        )
        REGISTRY[made.id] = made

        def test(subject: Subject, search: Any) -> None:
            search(made, subject)

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
        test.__module__ = check.__module__
        test.attention_property = made  # type: ignore[attr-defined]
        return _marked(test, made)

    return decorate


def home() -> ModuleType:
    """Import and return the package of the properties, which is above this package."""
    return importlib.import_module("attn_spec.properties")


def load_all() -> dict[str, Property]:
    """Import every module of ``attn_spec.properties`` and return the registry."""
    package = home()
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("test_"):
            importlib.import_module(f"attn_spec.properties.{module.name}")
    return REGISTRY


def _every_problem(subject: Subject) -> SearchStrategy[Problem]:
    from attn_spec.search.drawing import strategies

    return strategies.problems(subject)


def _marked(test: Callable[..., None], made: Property) -> Callable[..., None]:
    import pytest

    mark: pytest.MarkDecorator = pytest.mark.property(made)
    return mark(test)
