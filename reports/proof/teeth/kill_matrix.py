"""The kill matrix: every mutant against every property, and what the suite as a whole needs to refute one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.subject import Subject
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.search import property as properties
from attn_spec.search.cases import Case
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Property
from attn_spec.search.search import PropertyError, search
from attn_spec.search.verdict import Row, Verdict

from ..zoo.mutants import Mutant

#: Verdicts that distinguish a mutant from a sound kernel.
CAUGHT = (Verdict.REFUTED, Verdict.SUSPECT)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Verdict of one property on one mutant."""

    mutant: str
    property_id: str
    verdict: Verdict
    #: Problems tried until the verdict.
    examples: int
    seconds: float
    #: Share of the elements of its answers that were measured, if the property reports it.
    measured: float | None = None

    @property
    def caught(self) -> bool:
        return self.verdict in CAUGHT


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The first kill of a mutant: a refutation if there is one, by the fewest problems; the catalogue breaks ties."""

    mutant: str
    property_id: str
    verdict: Verdict
    examples: int
    seconds: float
    #: The smallest problem that shows it, as an expression; and what is wrong there.
    problem: str
    message: str


def row_of_matrix(mutant: Mutant, profile: Profile, seed: int = 0) -> list[Cell]:
    """Try one mutant on every property that applies to it, each with the profile's budget and without shrinking."""
    plain = replace(profile, shrink_seconds=0.0)
    cells = []
    for property_ in catalogue():
        start = time.monotonic()
        row, _ = examine(property_, mutant.kernel, mutant.dtype, plain, seed, shapes=mutant.shapes)
        seconds = round(time.monotonic() - start, 2)
        if row.verdict is Verdict.NOT_DECLARED:
            continue
        found = {"verdict": row.verdict, "examples": row.examples, "seconds": seconds, "measured": row.measured}
        cells.append(Cell(mutant=mutant.id, property_id=property_.id, **found))
    return cells


def first_kill(mutant: Mutant, cells: Sequence[Cell], profile: Profile, seed: int = 0) -> Kill | None:
    """Run the first property that catches the mutant once more, to shrink its problem; return None when none did."""
    caught = [cell for cell in cells if cell.caught]
    if not caught:
        return None
    first = min(caught, key=lambda cell: (cell.verdict is Verdict.SUSPECT, cell.examples))
    property_ = properties.load_all()[first.property_id]
    row, case = examine(property_, mutant.kernel, mutant.dtype, profile, seed, shapes=mutant.shapes, explained=True)
    found = {"verdict": first.verdict, "examples": first.examples, "seconds": first.seconds}
    problem = "" if case is None else repr(case.problem)
    return Kill(mutant=mutant.id, property_id=first.property_id, problem=problem, message=row.message, **found)


def examine(
    property_: Property,
    kernel: Kernel,
    dtype: str,
    profile: Profile,
    seed: int = 0,
    *,
    shapes: tuple[AskedShape, ...] = (),
    explained: bool = False,
) -> tuple[Row, Case | None]:
    """Return the verdict of one property, and if it is to be ``explained`` the case of a refutation.

    A property that fails by itself has not exercised the kernel.
    """
    try:
        return search(property_, Subject(kernel, dtype, shapes=shapes), profile, seed, explained=explained)
    except PropertyError as error:
        return error.row, None


def measured_of(cells: Iterable[Cell]) -> dict[str, float]:
    """Return the mean share of elements that was measured of each mutant, over the properties that report it."""
    shares: dict[str, list[float]] = {}
    for cell in cells:
        if cell.measured is not None:
            shares.setdefault(cell.mutant, []).append(cell.measured)
    return {mutant: sum(found) / len(found) for mutant, found in shares.items()}


def unique_kills(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Return the mutants that a property alone catches, by property."""
    unique: dict[str, list[str]] = {}
    for mutant, row in groupby(sorted(cells, key=lambda cell: cell.mutant), key=lambda cell: cell.mutant):
        caught = [cell.property_id for cell in row if cell.caught]
        if len(caught) == 1:
            unique.setdefault(caught[0], []).append(mutant)
    return unique


def catalogue() -> list[Property]:
    """Return every property, in the order of their files."""
    return list(properties.load_all().values())
