"""Search for a problem that refutes a claim, and make it small: Hypothesis, bounded in time."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import UnsatisfiedAssumption, Unsatisfiable

from attn_spec.problem import Problem
from attn_spec.profiles import Profile
from attn_spec.property import Property, listening
from attn_spec.reproduce import Case, InFlight, worst_element
from attn_spec.subject import Subject
from attn_spec.verdict import Row, Verdict

#: Seconds a call may run past its limit before the process is ended: only a kernel stuck outside Python gets there.
GRACE = 5.0


class OutOfBudget(BaseException):
    """Leaves Hypothesis when time is up; a BaseException, so that it is not taken for a failure."""


class PropertyError(Exception):
    """A property raised something that says nothing about the kernel; ``row`` is the verdict that remains."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.message)
        self.row = row


@dataclass
class Tally:
    """What one search has seen so far."""

    examples: int = 0
    discarded: int = 0
    #: Largest error / bound.
    ratio: float | None = None
    #: The smallest problem found so far on which the check raised, and what it raised.
    failure: tuple[Problem, Exception] | None = None
    #: Moment, by time.monotonic, at which to stop.
    deadline: float = field(default=math.inf)
    out_of_time: bool = False


def search(
    claim: Property, subject: Subject, profile: Profile, seed: int, tick: Callable[[int], None] = lambda examples: None
) -> tuple[Row, Case | None]:
    """Look for a problem that refutes ``claim``; return the verdict, and the smallest case found if there is one.

    The problems depend on the seed, the claim, the dtype and what the kernel supports. ``tick`` is told the number of
    problems tried. Raises :class:`PropertyError`.
    """
    row = Row(property=claim.id, kernel=subject.kernel.name, dtype=subject.dtype, verdict=Verdict.NOT_CLAIMED)
    if missing := [option for option in claim.needs if not subject.supports(option)]:
        return replace(row, message=f"the kernel does not declare {', '.join(missing)}"), None
    tally = Tally(deadline=time.monotonic() + profile.seconds)
    _run(claim, replace(subject, guard=last_resort), profile, seed, tally, tick)
    row = replace(row, examples=tally.examples, discarded=tally.discarded, ratio=tally.ratio)
    if tally.failure is None:
        return _without_failure(row, profile, tally), None
    problem, error = tally.failure
    if not isinstance(error, AssertionError):
        why = f"the property itself failed, report it as a fault of attn-spec: {type(error).__name__}: {error}"
        raise PropertyError(replace(row, verdict=Verdict.NOT_EXERCISED, message=why)) from error
    case = case_of(claim, subject, problem, error)
    return replace(row, verdict=Verdict.REFUTED, case=case.id, message=case.message.splitlines()[0]), case


def case_of(claim: Property, subject: Subject, problem: Problem, error: BaseException | None = None) -> Case:
    """The case of a claim and a problem for a subject, refuted by ``error``."""
    measurement = getattr(error, "measurement", None)
    return Case(
        property=claim.id,
        kernel=subject.kernel.spec or subject.kernel.name,
        declared=subject.kernel.given,
        device=subject.device,
        problem=problem,
        message=str(error or "") or type(error).__name__,
        worst=None if measurement is None else worst_element(measurement),
    )


@contextlib.contextmanager
def last_resort(seconds: float) -> Iterator[None]:
    """End the process, with the stack on stderr, when the block hangs where no Python signal reaches it."""
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _run(
    claim: Property, subject: Subject, profile: Profile, seed: int, tally: Tally, tick: Callable[[int], None]
) -> None:
    """Let Hypothesis draw, check and shrink; what it finds is left in ``tally``."""
    settings = hypothesis.settings(
        max_examples=profile.examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    check = _checked(claim, subject, profile, tally, tick)
    examine = hypothesis.given(claim.problems(subject))(check)
    with contextlib.suppress(OutOfBudget, Unsatisfiable):
        try:
            hypothesis.seed(_seed_of(seed, claim, subject))(settings(examine))()
        except Exception:
            if tally.failure is None:
                raise


def _checked(
    claim: Property, subject: Subject, profile: Profile, tally: Tally, tick: Callable[[int], None]
) -> Callable[[Problem], None]:
    """The claim's check with bookkeeping: the case on disk before the call, the tally after it."""
    in_flight = InFlight()

    def check(problem: Problem) -> None:
        if time.monotonic() > tally.deadline:
            tally.out_of_time = True
            raise OutOfBudget
        in_flight.hold(case_of(claim, subject, problem))
        try:
            with listening() as heard:
                claim.check(subject, problem)
            _note(tally, heard)
        except UnsatisfiedAssumption:
            tally.discarded += tally.failure is None
            raise
        except Exception as error:
            if tally.failure is None:
                _note(tally, heard)
                tally.deadline = time.monotonic() + profile.shrink_seconds
            tally.failure = problem, error
            raise
        finally:
            in_flight.release()
            tick(tally.examples)

    return check


def _note(tally: Tally, heard: dict[str, float]) -> None:
    """Count a problem and keep its ratios; not while shrinking, which tries problems that prove nothing new."""
    if tally.failure is not None:
        return
    tally.examples += 1
    for what, ratio in heard.items():
        tally.ratio = max(tally.ratio or 0.0, ratio)
        if math.isfinite(ratio):
            hypothesis.target(ratio, label=what)


def _without_failure(row: Row, profile: Profile, tally: Tally) -> Row:
    """Held, or not exercised when too few problems were tried and not because there are no more of them."""
    exhausted = tally.examples and not tally.discarded and not tally.out_of_time
    if tally.examples >= profile.floor or exhausted:
        return replace(row, verdict=Verdict.HELD)
    why = f"{profile.seconds:g} s were up" if tally.out_of_time else f"{tally.discarded} drawn problems were unusable"
    message = f"{tally.examples} problems were tried, {profile.floor} are needed: {why}"
    return replace(row, verdict=Verdict.NOT_EXERCISED, message=message)


def _seed_of(seed: int, claim: Property, subject: Subject) -> int:
    """A seed of its own for every property and dtype, the same for all kernels."""
    digest = hashlib.sha256(f"{seed} {claim.id} {subject.dtype}".encode()).digest()
    return int.from_bytes(digest[:8])
