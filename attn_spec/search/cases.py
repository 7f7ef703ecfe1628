"""A case: a problem that refutes a property, stored so that it can be run again, bit for bit.

While a problem is being checked, its case is stored in ``.attn-spec/in-flight``. If the kernel ends the process, the
file remains and names the culprit. A refuting case is stored in ``.attn-spec/cases``, under its id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import textwrap
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attn_spec import __version__, atomic, faults
from attn_spec.judgement.worst import WorstElement, worst_element
from attn_spec.nearest_names import suggestion
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.causes import hints_of
from attn_spec.search.drawing.regimes import Recipe, RecipeError
from attn_spec.search.missing_limits import missing_limits

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.search.property import Property
    from attn_spec.search.verdict import Row, Verdict

#: Version of the document. A reader accepts version 3 too, in which "dtypes" of problem and recipe are "dtype" and
#: "option_dtypes", and version 2, in which "property_id" is "claim" as well. It refuses any other.
SCHEMA = 4

#: Folder of stored cases and other state, relative to the working directory.
HOME = Path(".attn-spec")


#: Number of tensor entries above which a problem is stored as its recipe and a digest of its bits.
LARGE = 2**20


class CaseError(Exception):
    """A case cannot be found or read; the message says what to do next."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem for one property, kernel and dtype. Raises :class:`CaseError` when read from a bad document."""

    #: Id of the property.
    property_id: str
    #: Name by which ``attn_spec.kernels.resolve`` finds the kernel again; empty for a call of an assertion.
    kernel: str
    #: Declarations that were given with the name of an undecorated callable.
    declared: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    #: Exact input. Its dtype is the case's dtype.
    problem: Problem
    #: Reason for the refutation.
    message: str = ""
    #: Hints that each alone would explain the answer: a declaration, or another problem.
    hints: tuple[str, ...] = ()
    #: Element farthest outside its bound; None if the property measures none.
    worst: WorstElement | None = None
    #: Lines that each name a piece of evidence that could not be made, and the error.
    missing: tuple[str, ...] = ()
    #: Lines on problems that failed otherwise while this one was made smaller: the error, and the problem.
    others: tuple[str, ...] = ()
    #: Digest of the kernel's declarations when the case was found, see :func:`declaration_of`.
    declaration: str = ""

    @property
    def is_large(self) -> bool:
        """True if the problem is stored as a recipe only, since its tensors are too large."""
        return isinstance(self.problem.recipe, Recipe) and self.problem.entries > LARGE

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that depend only on the property, the kernel and the problem."""
        key = [self.property_id, self.kernel, repr(self.problem) if self.is_large else self.problem.to_json()]
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]

    def decides(self, row: Row, verdict: Verdict) -> Row:
        """Return the row of the case's property, with the verdict that rests on this case."""
        terms = () if self.worst is None else self.worst.bound_terms
        message = self.message.splitlines()[0]
        return replace(row, verdict=verdict, case=self.id, message=message, hints=self.hints, bound_terms=terms)

    def to_json(self, *, exact: bool = True) -> dict[str, Any]:
        """Return a JSON document that :meth:`from_json` reads, with every bit of the problem.

        If ``exact`` is False, a problem with a recipe is stored as its recipe only. A large problem is stored as its
        recipe, and if ``exact`` with a digest of every bit.
        """
        document = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "problem"}
        document["worst"] = None if self.worst is None else asdict(self.worst)
        recipe = self.problem.recipe
        document["recipe"] = recipe.to_json() if isinstance(recipe, Recipe) else None
        whole = document["recipe"] is None or (exact and not self.is_large)
        document["problem"] = self.problem.to_json() if whole else None
        document["bits"] = self.problem.digest_of_bits().hex() if exact and not whole else None
        return {"schema": SCHEMA, **document}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return the case of a document that :meth:`to_json` wrote. Raises :class:`CaseError` for another document."""
        parts = (document.get("problem"), document.get("recipe")) if isinstance(document, dict) else (None, None)
        if parts == (None, None):
            raise CaseError("it is not a case: a case is a JSON object with a 'problem' or a 'recipe'")
        if document.get("schema") not in (2, 3, SCHEMA):
            raise CaseError(f"its schema is {document.get('schema')!r}; this attn-spec reads schemas 2 to {SCHEMA}")
        if document["schema"] == 2:
            document = {"property_id" if key == "claim" else key: value for key, value in document.items()}
        try:
            stored = ("schema", "problem", "recipe", "bits")
            others = {key: value for key, value in document.items() if key not in stored}
            others |= {name: tuple(others.get(name, ())) for name in ("hints", "missing", "others")}
            if others["worst"] is not None:
                others["worst"] = WorstElement.from_json(others["worst"])
            # The digest of an earlier schema is of other fields, so it cannot be compared.
            digest = document.get("bits") if document["schema"] == SCHEMA else None
            return cls(problem=_problem(document["problem"], document["recipe"], digest), **others)
        except (ProblemError, RecipeError, TypeError, KeyError) as error:
            raise CaseError(f"{type(error).__name__}: {error}") from error


def case_of(
    property_: Property,
    subject: Subject,
    problem: Problem,
    error: Exception | None = None,
    first: Exception | None = None,
) -> Case:
    """Return the case of a property and a problem for a subject, refuted by ``error``.

    ``error`` is None before the call, in case the kernel ends the process. ``first`` is the error of the first refuting
    problem, of which this problem is the smallest version.
    """
    measurement = getattr(error, "measurement", None)
    hints, missing = (), []
    with faults.told("hint", missing):
        hints = hints_of(error, first) or tuple(missing_limits(property_, subject, problem, error))
    worst = getattr(error, "worst", None) if measurement is None else worst_element(measurement)
    with faults.told("terms of the bound", missing):
        worst = worst and replace(worst, bound_terms=getattr(error, "bound_terms", ()))
    return Case(
        property_id=property_.id,
        kernel=subject.kernel.spec or subject.kernel.name,
        declared=dict(subject.kernel.given),
        device=subject.device,
        problem=problem,
        message=str(error or "") or type(error).__name__,
        hints=hints,
        missing=tuple(missing),
        worst=worst,
        declaration=declaration_of(subject),
    )


def declaration_of(subject: Subject) -> str:
    """Return a digest of this attn-spec version and of a kernel's declarations at a dtype, which decide the problems
    drawn.
    """
    kernel = subject.kernel
    declared = {
        "supports": sorted(kernel.supports),
        "conventions": asdict(kernel.conventions),
        "contract": kernel.contract_declared(subject.dtype),
        "limits": kernel.limits,
        "presentation": kernel.presentation,
        "option_dtypes": sorted(kernel.option_dtypes.items()),
        "index_dtypes": sorted(kernel.index_dtypes.items()),
        "merge": kernel.merge,
    }
    return hashlib.sha256(f"{__version__} {declared!r}".encode()).hexdigest()[:16]


def _problem(exact: dict[str, Any] | None, recipe: dict[str, Any] | None, digest: str | None) -> Problem:
    """Return the problem of the stored bits, with its recipe if that still makes them; else the recipe's problem.

    Raises :class:`CaseError` if the recipe's problem has another digest than the stored one.
    """
    made = None if recipe is None else Recipe.from_json(recipe).problem()
    if exact is None:
        assert made is not None
        if digest is not None and made.digest_of_bits().hex() != digest:
            raise CaseError("its recipe makes other tensors here than in the version that stored it")
        return made
    stored = Problem.from_json(exact)
    return made if made is not None and made.to_json() == stored.to_json() else stored


def is_of_large(text: str) -> bool:
    """Return whether the text of a stored case is of a large problem, which loading would make in full."""
    return '"bits": "' in text


def save(case: Case, home: Path = HOME) -> Path:
    """Store a case and return the path of its file. A ``.gitignore`` in the folder excludes all cases from git."""
    if not (ignore := home / ".gitignore").exists():
        atomic.write(ignore, "*\n")
    return atomic.write(home / "cases" / f"{case.id}.json", json.dumps(case.to_json(), indent=1, sort_keys=True) + "\n")


def load(path: Path) -> Case:
    """Read a case. Raises :class:`CaseError`."""
    try:
        return Case.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, CaseError) as error:
        text = f"{path} cannot be replayed: {error}. Delete the file, or run certify again to make a new one"
        raise CaseError(text) from error


def described(path: Path) -> list[str]:
    """Return two lines that describe a stored case, or one line with the error of its file."""
    try:
        case = load(path)
    except CaseError as error:
        return [f"{path.stem}  {error}"]
    problem = textwrap.shorten(repr(case.problem), 110, placeholder=" ...")
    kernel = case.kernel or "a call of an assertion"
    return [
        f"{path.stem}  {kernel}, {case.problem.dtype}, {case.device}  {case.property_id}",
        f"          {problem}",
    ]


def delete(path: Path) -> None:
    """Delete a stored case: its file, and the script beside it."""
    for file in (path, path.with_suffix(".py")):
        file.unlink(missing_ok=True)


def find(name: str | None, home: Path = HOME) -> list[Path]:
    """Return the files of the stored cases that ``name`` (a path, or the start of an id) means; all files for None.

    Raises :class:`CaseError` if there are none, or if the start of an id fits several.
    """
    if name is not None and Path(name).is_file():
        return [Path(name)]
    stored = sorted((home / "cases").glob("*.json"))
    found = [path for path in stored if path.stem.startswith(name or "")]
    if not stored:
        raise CaseError(f"no cases are stored in {home / 'cases'}; `attn-spec certify KERNEL` stores what it finds")
    if not found:
        near = suggestion(str(name), (path.stem for path in stored))
        raise CaseError(
            f"no stored case is called {name!r}{near}\n"
            f"`attn-spec replay --list` lists the {len(stored)} that are stored"
        )
    if name is not None and len(found) > 1:
        raise CaseError(f"{name!r} fits several cases: {', '.join(path.stem for path in found)}; write more of the id")
    return found


class InFlight:
    """The case that this process is checking, on disk before the kernel is called."""

    def __init__(self, home: Path = HOME, process: int | None = None) -> None:
        self.path = home / "in-flight" / f"{process or os.getpid()}.json"

    def hold(self, case: Case) -> None:
        """Write the case if possible; this is fast enough for every problem."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(case.to_json(exact=False)), encoding="utf-8")

    def release(self) -> None:
        """Delete the case, which did not end the process."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def take(self, message: str) -> Case | None:
        """Return and delete the case that an ended process left, refuted with ``message``; None if there is none."""
        if not self.path.is_file():
            return None
        case = replace(load(self.path), message=message)
        self.release()
        return case
