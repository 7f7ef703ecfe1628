"""The certificate: every verdict on one kernel and what it rests on, as one JSON document.

It holds no time and no path of this machine beside the kernel's own, so that equal runs give equal files. Its JSON
Schema is printed by ``python -m attn_spec.evidence.certificate``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attn_spec import atomic
from attn_spec.judgement.power import Power
from attn_spec.search.profiles import PROFILES
from attn_spec.search.verdict import Row, Verdict, count, exit_code, worst

#: Version of the document. A reader takes version 1 too, and refuses any other.
SCHEMA = 2

Result = Literal["certified", "passed", "refuted", "inconclusive"]


class CertificateError(Exception):
    """A certificate that cannot be read; the text says what is wrong and where."""


class Model(BaseModel):
    """A part of the document; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Number(Model):
    """A measured number, twice: to be read, and to be compared exactly."""

    #: Decimal; "inf" and "nan" are words, since JSON has no such numbers.
    value: float | Literal["inf", "-inf", "nan"]
    hex: str

    @classmethod
    def of(cls, x: float) -> Self:
        """The number ``x``."""
        return cls(value=x if math.isfinite(x) else str(x), hex=x.hex())  # type: ignore[arg-type]


class Subject(Model):
    """The code that was examined."""

    spec: str
    name: str
    source_sha256: str
    #: The same of each file of no installed package that the kernel's process had imported, as that told, by path from
    #: the kernel's folder; empty where it ran in the process of the judge.
    imported_sha256: dict[str, str] = {}
    #: Installed packages that this process had imported: version, and digest of the list of their files.
    packages: dict[str, str] = {}
    #: State that all code of its process shares and that calls changed, in words.
    changes: tuple[str, ...] = ()
    #: The installed distribution it belongs to, with its version.
    distribution: str | None
    git_commit: str | None


class Suite(Model):
    """The attn-spec that examined it."""

    version: str
    properties_sha256: str


class Configuration(Model):
    """The effort of the search."""

    dtypes: tuple[str, ...]
    #: Parts of the ids of the properties chosen; empty for all of them.
    only: tuple[str, ...]
    device: str
    profile: str
    examples: int
    floor: int
    seed: int
    #: True if ``seed`` is the fixed seed of the profile: every run of that profile draws the same problems, which a
    #: kernel may know. None: the certificate is of an earlier version, which does not say.
    seed_of_profile: bool | None = None
    #: Shapes that were asked for.
    shapes: tuple[str, ...] = ()
    #: Whether the kernel had a process of its own, and the GiB of addresses that this might have.
    isolated: bool = False
    memory: float | None = None


class Declarations(Model):
    """The declarations of the kernel."""

    #: False when an undecorated callable was examined, and its shape options were found by trying them.
    declared: bool
    supports: tuple[str, ...]
    conventions: dict[str, str | bool]
    #: The arithmetic, for each dtype: a summary and every field.
    contracts: dict[str, dict[str, str | float | int | bool | None]]
    #: Dtypes and options that were tried in vain, with the reason.
    declined: dict[str, str]


class AllowedBy(Model):
    """A term of the bound of the worst element, and its share of the error that the contract allows there."""

    term: str
    share: float


class Finding(Model):
    """The verdict on one property at one dtype."""

    verdict: Verdict
    examples: int
    discarded: int
    #: The share of the elements of their answers that the contract says something of; null where none are judged.
    measured: float | None = None
    #: Largest error / bound.
    ratio: Number | None
    #: Id of the stored case.
    case: str | None
    message: str
    #: Which readings of the contract explained the answers, in words, where it leaves a choice.
    readings: tuple[str, ...] = ()
    #: Of problems whose answers were looked at in part, each with how much of it, and what may have been missed.
    looked_at: tuple[str, ...] = ()
    #: What would explain the answer to the stored case, each alone.
    hints: tuple[str, ...] = ()
    #: The terms that weigh most in what is allowed to the worst element of the stored case, the largest first.
    bound_terms: tuple[AllowedBy, ...] = ()


class PropertyResult(Model):
    """The verdicts on one property."""

    id: str
    statement: str
    source: str
    hunts: str
    needs: tuple[str, ...]
    #: Largest probability that one problem makes a sound kernel suspect; 0 for a theorem.
    false_alarm: float = 0.0
    #: The worst over all dtypes.
    verdict: Verdict
    dtypes: dict[str, Finding]


class UnseenError(Model):
    """A planted error that would not have been refuted."""

    #: In words.
    error: str
    #: Largest error / bound that it reached.
    ratio: Number
    #: The field of the contract that would have to say more, as it is; and the ratio if it said most. Empty: none.
    hidden_by: str
    sharper: Number


class PowerResult(Model):
    """Which errors the judgement would have refuted that the kernel passed, at some problems of one dtype."""

    dtype: str
    #: "small problems", "gradients of small problems", or a shape.
    where: str
    #: In words.
    planted: tuple[str, ...]
    unseen: tuple[UnseenError, ...]


class Certificate(Model):
    """The whole document."""

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    #: "certified" by the profile of that name and all properties alone; "passed" by less.
    result: Result
    #: Whether the examination came to its end; what it did not come to is "not exercised".
    complete: bool = True
    subject: Subject
    environment: dict[str, str | None]
    suite: Suite
    configuration: Configuration
    declarations: Declarations
    properties: tuple[PropertyResult, ...]
    #: Empty where the kernel is refuted.
    power: tuple[PowerResult, ...] = ()
    #: How many property x dtype bear each verdict, and their total.
    summary: dict[str, int]


class Refusal(Model):
    """What stands in place of a certificate of a kernel that could not be examined."""

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    result: Literal["could not run"] = "could not run"
    #: Why, and what to do next.
    message: str


def build(
    kernel: dict[str, Any], rows: Iterable[Row], powers: Iterable[Power] = (), *, complete: bool = True
) -> Certificate:
    """The certificate of a kernel, from what a session reported of it, its verdicts and their power.

    One that is not ``complete``, since the examination was stopped, certifies nothing.
    """
    rows = list(rows)
    entries = [entry for entry in kernel["catalogue"] if any(row.property == entry["id"] for row in rows)]
    counted = {str(verdict): number for verdict, number in count(rows).items()}
    parts = {name: kernel[name] for name in ("subject", "environment", "suite", "configuration", "declarations")}
    return Certificate.model_validate(
        {
            "schema": SCHEMA,
            "result": _result(rows, Configuration.model_validate(kernel["configuration"]), complete=complete),
            "complete": complete,
            **parts,
            "properties": [result_of(entry, [row for row in rows if row.property == entry["id"]]) for entry in entries],
            "power": [_power(one) for one in sorted(powers, key=lambda one: (one.where, one.dtype))],
            "summary": {**counted, "total": len(rows)},
        }
    )


def _power(found: Power) -> PowerResult:
    unseen = tuple(
        UnseenError(
            error=one.words, ratio=Number.of(one.ratio), hidden_by=one.hidden_by, sharper=Number.of(one.sharper)
        )
        for one in found.unseen
    )
    return PowerResult(dtype=found.dtype, where=found.where, planted=found.planted, unseen=unseen)


def _result(rows: list[Row], chosen: Configuration, *, complete: bool) -> Result:
    """The verdict on the kernel."""
    code = exit_code(rows)
    if code or not complete:
        return "refuted" if code == 1 else "inconclusive"
    return "certified" if PROFILES[chosen.profile].certifies and not chosen.only else "passed"


def result_of(entry: dict[str, Any], rows: list[Row]) -> PropertyResult:
    """The verdicts on the property of an entry of the catalogue."""
    findings = {
        row.dtype: Finding(
            verdict=row.verdict,
            examples=row.examples,
            discarded=row.discarded,
            measured=row.measured,
            ratio=None if row.ratio is None else Number.of(row.ratio),
            case=row.case,
            message=row.message,
            readings=row.readings,
            looked_at=row.looked_at,
            hints=row.hints,
            bound_terms=tuple(AllowedBy(term=name, share=share) for name, share in row.bound_terms),
        )
        for row in rows
    }
    return PropertyResult(**entry, verdict=worst(row.verdict for row in rows), dtypes=findings)


def save(certificate: Certificate, path: Path) -> Path:
    """Write the document and return its path."""
    return atomic.write(path, text(certificate))


def text(document: Certificate | Refusal) -> str:
    """The document as JSON."""
    return json.dumps(document.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema of what ``attn-spec certify --json`` prints."""
    return TypeAdapter(Certificate | Refusal).json_schema(by_alias=True)


def load(path: Path) -> Certificate:
    """Read a document, of schema 1 too. Raises :class:`CertificateError`."""
    try:
        return Certificate.model_validate_json(_in_schema_2(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        shown = "\n".join(f"  {'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}" for fault in faults[:5])
        raise CertificateError(
            f"{path} is not a certificate of schema 1 or {SCHEMA}:\n{shown}\nMake it again with `attn-spec certify`"
        ) from error


#: Words of schema 1, and those that schema 2 has in their place.
_RENAMED = {"claims": "declarations", "not claimed": str(Verdict.NOT_DECLARED)}


def _in_schema_2(text: str) -> str:
    """Return a document of schema 1 as one of schema 2; return any other text as it is."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if not isinstance(document, dict) or document.get("schema") != 1:
        return text
    document = _renamed_keys(document) | {"schema": SCHEMA}
    if isinstance(summary := document.get("summary"), dict):
        document["summary"] = _renamed_keys(summary)
    return json.dumps({**document, "properties": _renamed_verdicts(document.get("properties"))})


def _renamed_keys(part: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(key, key): value for key, value in part.items()}


def _renamed_verdicts(part: Any) -> Any:
    """Return a part of a document of schema 1 with the verdicts of schema 2, at any depth."""
    if isinstance(part, list):
        return [_renamed_verdicts(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _RENAMED.get(value, value) if key == "verdict" and isinstance(value, str) else _renamed_verdicts(value)
        for key, value in part.items()
    }


def is_one(path: Path) -> bool:
    """Whether a file is a certificate, of any version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"schema", "result", "properties"} <= document.keys()


def compare(old: Certificate, new: Certificate) -> list[str]:
    """List the differences, one line each; empty when the two say the same."""
    lines = []
    for part in ("subject", "environment", "suite", "configuration", "declarations"):
        lines += _differences(part, *(document.model_dump(mode="json")[part] for document in (old, new)))
    before, after = _findings(old), _findings(new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines.append(f"{' '.join(key)}: {_phrase(before.get(key))} -> {_phrase(after.get(key))}")
    return lines


def _differences(name: str, before: Any, after: Any) -> Iterator[str]:
    """A line for each entry that both have; one for all entries of what only one has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(f"{name}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield f"{name}: " + " -> ".join(f"{len(x)} entries" if isinstance(x, dict) else str(x) for x in (before, after))


def _findings(certificate: Certificate) -> dict[tuple[str, str], Finding]:
    return {(result.id, dtype): found for result in certificate.properties for dtype, found in result.dtypes.items()}


def _phrase(finding: Finding | None) -> str:
    if finding is None:
        return "absent"
    ratio = "" if finding.ratio is None else f", ratio {float(finding.ratio.value):.3g}"
    return f"{finding.verdict} ({finding.examples} examples{ratio})"


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201 -- a command
