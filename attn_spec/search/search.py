"""Search for a problem that refutes a property, and make it small: Hypothesis, bounded in time."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption

from attn_spec import faults
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Crashed
from attn_spec.kernels.subject import Subject
from attn_spec.kernels.time_limit import crowding
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.problem import Problem
from attn_spec.problem.shape_spec import EXAMPLE
from attn_spec.problem.validation import ProblemError
from attn_spec.search.cases import Case, InFlight, case_of
from attn_spec.search.drawing import turns
from attn_spec.search.drawing.asked_shapes import described
from attn_spec.search.drawing.draws import of_the_seed_alone
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.sizes import is_reached
from attn_spec.search.halves import halves
from attn_spec.search.profiles import Profile
from attn_spec.search.property import NotExamined, Observations, Property, Suspicion, recording
from attn_spec.search.verdict import Row, Verdict

#: Draws for each wanted problem, at most: Hypothesis draws many problems again, and repetitions are not counted.
DRAWS = 4
#: Draws of the one problem of a size, at most. For fewer than ten draws, Hypothesis does not begin with a row of the
#: smallest ones, of which none has the size.
DRAWS_OF_SIZE = 9
#: Number of problems without a measured element, relative to the wanted ones, after which a search without any other
#: problem gives up.
EMPTY = 4
#: Number of problems that the kernel refuses, relative to the wanted ones, after which a search without any other
#: problem gives up.
REFUSED = 10
#: Factor on a profile's seconds for each problem of a list, on average over the list, since these problems are large.
TIMES = 4


class OutOfBudget(BaseException):
    """Leaves Hypothesis when enough was seen; a BaseException, so that it is not taken for a failure."""


class PropertyError(Exception):
    """A property raised an error that says nothing about the kernel; ``row`` is the verdict that remains."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.message)
        self.row = row


def search(
    property_: Property,
    subject: Subject,
    profile: Profile,
    seed: int,
    tick: Callable[[int], None] = lambda examples: None,
    *,
    found: Callable[[str], None] = lambda message: None,
    explained: bool = True,
) -> tuple[Row, Case | None]:
    """Look for a problem that refutes ``property_``; return the verdict, and the smallest refuting case or None.

    The problems depend on the seed, the property, the dtype and what the kernel supports. ``tick`` is called with the
    number of problems tried. ``found`` is called with the message of the first refutation, before the problem is made
    smaller. Unless the failure is to be ``explained``, there is no case, and no hint is looked for. Raises
    :class:`PropertyError`.
    """
    row = Row(property=property_.id, kernel=subject.kernel.name, dtype=subject.dtype, verdict=Verdict.NOT_DECLARED)
    subject = subject.for_gradients if "backward" in property_.needs else subject
    if missing := [option for option in property_.needs if not subject.supports(option)]:
        given = [name for name in missing if name in ABILITIES and ABILITIES[name].of_framework]
        if subject.kernel.limits.contiguous and "strides" in given:
            why = "the kernel takes contiguous tensors alone"
        elif given:
            why = f"{subject.framework.name} does not have {', '.join(given)}"
        else:
            why = f"the kernel does not declare {', '.join(missing)}"
        return replace(row, message=why, lacks=tuple(missing)), None
    if reason := property_.reason_not_to_apply(subject):
        return replace(row, message=reason), None
    if property_.recipes is not None and not subject.shapes:
        return replace(row, message=f"no shape was asked for, as --shape {EXAMPLE} asks for one"), None
    hunt = _Search(property_, subject, profile, tick, found)
    try:
        hunt.run(seed)
    except NotTaken as error:
        return replace(row, message=str(error)), None
    seen = {"examples": hunt.examples, "discarded": hunt.discarded, "ratio": hunt.ratio, "measured": hunt.share}
    seen["quantisation"] = hunt.quantisation
    row = replace(row, **seen, readings=tuple(sorted(hunt.readings)), looked_at=tuple(hunt.looked_at))
    if hunt.failure is None:
        return replace(row, **hunt.outcome_without_failure()), None
    problem, error = hunt.failure
    if not isinstance(error, AssertionError):
        raise PropertyError(replace(row, verdict=Verdict.NOT_EXERCISED, message=faults.text(error))) from error
    verdict, missing = Verdict.SUSPECT if isinstance(error, Suspicion) else Verdict.REFUTED, []
    case, decided = None, replace(row, verdict=verdict, message=str(error))
    if explained:
        with faults.told("case", missing):
            case = replace(case_of(property_, subject, problem, error, hunt.first), others=tuple(hunt.told_apart()))
            decided = case.decides(row, verdict)
    return (replace(decided, message="\n".join([str(error), *missing])) if missing else decided), case


@dataclass
class _Search:
    """One search, and what it has seen so far."""

    property_: Property
    subject: Subject
    profile: Profile
    tick: Callable[[int], None]
    found: Callable[[str], None]
    examples: int = 0
    discarded: int = 0
    #: Number of problems in which no element could be measured.
    empty: int = 0
    #: Number of problems that the kernel refused.
    refused: int = 0
    #: Number of measured elements.
    measured: int = 0
    #: Number of elements that judgements were asked about.
    asked: int = 0
    #: Largest error / bound.
    ratio: float | None = None
    #: Readings of the contract that explained answers, if it leaves a choice.
    readings: set[str] = field(default_factory=set)
    #: Largest quantisation error, as a share of the output; None if the property measures none.
    quantisation: float | None = None
    #: Smallest problem found so far on which the check raised, and the error.
    failure: tuple[Problem, Exception] | None = None
    #: Error of the first problem on which the check raised.
    first: Exception | None = None
    #: Smallest problem and error of each other kind of failure, met while the first was made smaller.
    others: dict[type[Exception], tuple[Problem, Exception]] = field(default_factory=dict)
    #: Time, by time.monotonic, at which the search stops.
    deadline: float = math.inf
    out_of_time: bool = False
    #: Reason why the kernel does not take a problem that the property derived.
    not_taken: str = ""
    #: Reason why a problem could not be examined here.
    not_examined: str = ""
    #: Texts that say which part of an answer was judged, for answers that were judged in part.
    looked_at: list[str] = field(default_factory=list)
    in_flight: InFlight = field(default_factory=InFlight)
    #: Digests of the problems checked so far.
    seen: set[bytes] = field(default_factory=set)
    #: Number of problems to try before Hypothesis is left.
    wanted: int = 0

    def run(self, seed: int) -> None:
        """Try small problems, then one of each size in turn, then small ones in place of sizes that could not be drawn.

        For a property with a list of recipes, try each problem of the list instead.
        """
        if self.property_.recipes is not None:
            self._try_each(self.property_.recipes(self.subject, seed))
            return
        self.deadline = time.monotonic() + self.profile.seconds * crowding()
        own = self._turns()
        for number, turn in enumerate([None, *own, *[None] * bool(own)]):
            self.wanted = self.profile.examples - max(len(own) - number, 0)
            if self.failure is None and not self.out_of_time and self.examples < self.wanted:
                with turns.drawn_in(turn):
                    self._draw(seed + number, self.subject)
        if self.failure is None:
            return
        if isinstance(self.failure[1], Crashed):
            self._halve()
        elif self.subject.kernel.signatures is not None:
            self._make_smaller(seed)

    def _try_each(self, recipes: Sequence[Recipe]) -> None:
        """Check the problems of these recipes, the plainest first, up to the first that refutes."""
        self.deadline = time.monotonic() + TIMES * self.profile.seconds * crowding() * len(recipes)
        self.wanted = len(recipes)
        for recipe in recipes:
            try:
                self.check(recipe.problem())
            except OutOfBudget:
                return
            except UnsatisfiedAssumption as error:
                why = str(error.__cause__ or "") or "of which the contract says anything"
                self.looked_at.append(f"{described(recipe)}: nothing, {why}")
            except Exception:
                if self.failure is None:
                    raise
                return

    def _turns(self) -> list[turns.Turn]:
        """Return the turns of sizes; none for a property about chance, whose probabilities hold for small problems."""
        if self.property_.false_alarm:
            return []
        limits, cross = self.subject.kernel.limits, self.subject.supports("cross")
        layers = "query_projection" in {*limits.always, *self.property_.needs}
        found = [
            turn
            for turn in turns.turns(self.profile.examples, self.property_.id)
            if is_reached(turn.size, limits, self.subject.kernel.slowness, cross=cross, layers=layers)
        ]
        few = self.subject.kernel.signatures is not None  # each size needs a signature of its own
        return found[: len(found) // turns.ORDINARY] if few else found

    def _make_smaller(self, seed: int) -> None:
        """Look for a smaller failing problem among those of any signature, where the search kept to few of them."""
        kept = self.failure
        self.wanted = self.examples + self.profile.examples
        self.deadline = time.monotonic() + self.profile.shrink_seconds
        with turns.drawn_in(None):
            self._draw(seed, replace(self.subject, kernel=replace(self.subject.kernel, signatures=None)))
        if kept and self.failure and _size(kept[0]) <= _size(self.failure[0]):
            self.failure = kept

    def _halve(self) -> None:
        """Make the problem of a crash smaller by halving what its recipe counts, as long as the smaller one crashes."""
        assert self.failure is not None
        self.deadline = time.monotonic() + TIMES * self.profile.shrink_seconds
        recipe = self.failure[0].recipe
        left = halves(recipe) if isinstance(recipe, Recipe) else iter(())
        while (smaller := next(left, None)) is not None:
            try:
                self.check(smaller.problem())
            except OutOfBudget:
                return
            except (UnsatisfiedAssumption, ProblemError):
                continue
            except Crashed:
                left = halves(smaller)

    def _draw(self, seed: int, subject: Subject) -> None:
        """Let Hypothesis draw, check and shrink problems that the subject takes."""
        settings = hypothesis.settings(
            max_examples=(DRAWS if turns.size() is None else DRAWS_OF_SIZE) * (self.wanted - self.examples),
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.target, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] -- its metaclass iterates
            verbosity=Verbosity.quiet,
        )
        problems = self.property_.problems(subject)

        @hypothesis.seed(_seed_of(seed, self.property_, self.subject))
        @settings
        @hypothesis.given(problems)
        def try_problem(problem: Problem) -> None:
            self.check(problem)

        with contextlib.suppress(OutOfBudget, turns.NoProblemOfSizeError, Unsatisfiable), of_the_seed_alone():
            try:
                try_problem()
            except Exception:
                if self.failure is None:
                    raise

    def check(self, problem: Problem) -> None:
        """Check one problem, with its case on disk during the call."""
        if time.monotonic() > self.deadline:
            self.out_of_time = True
            raise OutOfBudget
        if self.failure is None and self.is_repetition(problem):
            return
        if not self.subject.kernel.isolated:  # an isolated kernel can end no process but its own
            self.in_flight.hold(case_of(self.property_, self.subject, problem))
        with recording() as observations:
            try:
                self.property_.check(self.subject, problem)
            except (UnsatisfiedAssumption, NotTaken, NotExamined) as error:
                self.discard(error)
                raise UnsatisfiedAssumption from error
            except Exception as error:
                self.note(observations)
                self.fail(problem, error)
                raise
            finally:
                self.in_flight.release()
                self.tick(self.examples)
        if self.failure is None and observations.is_empty:
            self.leave_out()
        self.note(observations)
        if self.failure is None and self.examples >= self.wanted:
            raise OutOfBudget  # before Hypothesis draws another problem

    def fail(self, problem: Problem, error: Exception) -> None:
        """Keep a failing problem. Raises what leaves Hypothesis for another kind of failure, and after a crash.

        A refutation is kept in place of a suspicion, and either in place of an error that says nothing of the kernel.
        """
        before = self.failure
        if before is not None and _kind(error) is not _kind(before[1]):
            if _weight(error) <= _weight(before[1]):
                self.keep_apart(problem, error)
                raise UnsatisfiedAssumption from error
            self.first = error  # whose hints are those of the verdict
        self.failure = (problem, error)
        if before is None:
            self.first = error
            self.deadline = time.monotonic() + self.profile.shrink_seconds
            if isinstance(error, AssertionError) and not isinstance(error, Suspicion):
                self.found(str(error).partition("\n")[0])
            if isinstance(error, Crashed):
                raise OutOfBudget from error  # Hypothesis would make many more calls than one can wait for
        else:  # Hypothesis has replayed the failure; had small problems been allowed, it might have drawn another one
            turns.take_smaller()

    def keep_apart(self, problem: Problem, error: Exception) -> None:
        """Keep a problem that fails in another way than the one that is made smaller, unless a smaller one is kept."""
        kept = self.others.get(_kind(error))
        if kept is None or _size(problem) < _size(kept[0]):
            self.others[_kind(error)] = problem, error

    def told_apart(self) -> list[str]:
        """Return a line for each other kind of failure: the error, and the smallest problem that was met."""
        found = self.others.values()
        return [f"{str(error).partition(chr(10))[0]}; for {problem!r}" for problem, error in found]

    def discard(self, error: Exception) -> None:
        """Count a problem that could not be used, and keep the reason; give up if the kernel refused many, and all."""
        self.discarded += self.failure is None
        match error:
            case NotTaken():
                self.not_taken = str(error)
                self.refused += 1
                if self.refused >= REFUSED * self.profile.examples and not self.examples:
                    raise OutOfBudget
            case NotExamined():
                self.not_examined = str(error)

    def leave_out(self) -> None:
        """Discard a problem in which no element could be measured; give up if there were many and no other problem."""
        self.discarded += 1
        self.empty += 1
        if self.empty >= EMPTY * self.profile.examples and not self.examples:
            raise OutOfBudget
        raise UnsatisfiedAssumption

    @property
    def share(self) -> float | None:
        """Share of measured elements among those that judgements were asked about."""
        return self.measured / self.asked if self.asked else None

    def is_repetition(self, problem: Problem) -> bool:
        """Return whether the problem was checked before."""
        digest = problem.digest()
        known = digest in self.seen
        self.seen.add(digest)
        return known

    def note(self, observations: Observations) -> None:
        """Count a problem, unless it is a step of shrinking; keep the largest ratio, and the readings."""
        self.examples += self.failure is None
        self.measured += observations.measured
        self.asked += observations.asked
        self.readings |= observations.readings
        self.looked_at += observations.looked_at
        if observations.quantisation is not None and self.failure is None:
            self.quantisation = max(self.quantisation or 0.0, observations.quantisation)
        for what, ratio in observations.ratios.items():
            self.ratio = max(self.ratio or 0.0, ratio)
            if math.isfinite(ratio) and not self.property_.false_alarm and hypothesis.currently_in_test_context():
                hypothesis.target(ratio, label=what)

    def outcome_without_failure(self) -> dict[str, Verdict | str]:
        """Return the verdict "held", or "not exercised" if too few problems were tried and more exist.

        The verdict is "not declared" if the kernel took no problem of the property.
        """
        if self.property_.recipes is not None:
            return self._outcome_of_each()
        exhausted = self.examples and not self.discarded and not self.out_of_time
        if self.examples >= self.profile.floor or exhausted:
            return {"verdict": Verdict.HELD}
        if not self.examples and self.not_taken:
            return {"verdict": Verdict.NOT_DECLARED, "message": self.not_taken}
        time_was_up = f"{self.profile.seconds:g} s were up"
        why = time_was_up if self.out_of_time else f"{self.discarded} drawn problems were unusable"
        if self.empty:
            why += f", {self.empty} of them because the contract covers no element"
        message = f"{self.examples} problems were tried, {self.profile.floor} are needed: {why}"
        return {"verdict": Verdict.NOT_EXERCISED, "message": message}

    def _outcome_of_each(self) -> dict[str, Verdict | str]:
        """Return the verdict "held" if each problem of the list that the kernel takes was examined."""
        if self.not_examined:
            return {"verdict": Verdict.NOT_EXERCISED, "message": self.not_examined}
        if self.out_of_time:
            why = f"{TIMES * self.profile.seconds:g} s for each were up; choose a --profile with more time"
            message = f"{self.examples} of {self.wanted} problems were tried: {why}"
            return {"verdict": Verdict.NOT_EXERCISED, "message": message}
        if self.empty:
            message = f"the contract covers no element of {self.empty} of {self.wanted} problems"
            return {"verdict": Verdict.NOT_EXERCISED, "message": message}
        if not self.examples:
            return {"verdict": Verdict.NOT_DECLARED, "message": self.not_taken}
        return {"verdict": Verdict.HELD}


def _kind(error: Exception) -> type[Exception]:
    """Return the kind of failure: of a crash, of another failed call, of a suspicion, or of an answer.

    A problem is made smaller within one kind, since another one is the mark of another defect.
    """
    kinds = (Crashed, CallFailed, Suspicion, AssertionError)
    return next((kind for kind in kinds if isinstance(error, kind)), type(error))


def _weight(error: Exception) -> int:
    """Return how much an error says: nothing of the kernel, a suspicion, or a refutation."""
    return isinstance(error, AssertionError) + (isinstance(error, AssertionError) and not isinstance(error, Suspicion))


def _size(problem: Problem) -> int:
    """Return the number of scores and of entries of q, k and v."""
    return math.prod(problem.score_shape) + problem.q.size + problem.k.size + problem.v.size


def _seed_of(seed: int, property_: Property, subject: Subject) -> int:
    """Return a seed that differs between properties and dtypes, and is the same for all kernels."""
    digest = hashlib.sha256(f"{seed} {property_.id} {subject.dtype}".encode()).digest()
    return int.from_bytes(digest[:8])
