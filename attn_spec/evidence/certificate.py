"""The certificate: every verdict on one kernel, and what the verdicts rest on, as one JSON document.

It holds no time, and no path of this machine except the kernel's own, so that equal runs write equal files. The command
``python -m attn_spec.evidence.certificate`` prints its JSON Schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from attn_spec import atomic
from attn_spec.judgement.planted_errors import Power
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
    """A measured number, twice: as a decimal to read, and as a hexadecimal float to compare exactly."""

    #: Decimal value; "inf", "-inf" and "nan" are strings, since JSON has no such numbers.
    value: float | Literal["inf", "-inf", "nan"]
    hex: str

    @classmethod
    def of(cls, x: float) -> Self:
        """Return the number ``x`` as a part of the document."""
        return cls(value=x if math.isfinite(x) else str(x), hex=x.hex())  # type: ignore[arg-type]


class Subject(Model):
    """The code that was examined."""

    spec: str
    name: str
    source_sha256: str
    #: SHA-256 of every imported file outside installed packages, by path relative to the kernel's folder, as reported
    #: by the kernel's process. Empty if the kernel ran in the judge's process.
    imported_sha256: dict[str, str] = {}
    #: Installed packages that the kernel's process had imported: version, and digest of the list of their files.
    packages: dict[str, str] = {}
    #: Descriptions of global state of the kernel's process that calls changed.
    changes: tuple[str, ...] = ()
    #: Installed distribution that the kernel belongs to, with its version.
    distribution: str | None
    git_commit: str | None


class Suite(Model):
    """The attn-spec that examined the kernel."""

    version: str
    properties_sha256: str


class Configuration(Model):
    """The effort of the search."""

    dtypes: tuple[str, ...]
    #: Parts of the ids of the selected properties; empty if all properties were selected.
    only: tuple[str, ...]
    device: str
    profile: str
    examples: int
    floor: int
    seed: int
    #: True if ``seed`` is the fixed seed of the profile: every run of that profile draws the same problems, which a
    #: kernel may know. None in a certificate of an earlier version, which does not record it.
    seed_of_profile: bool | None = None
    #: Shapes that the user asked for.
    shapes: tuple[str, ...] = ()
    #: True if the kernel had a process of its own; ``memory`` is the limit of this process's address space in GiB.
    isolated: bool = False
    memory: float | None = None


class Declarations(Model):
    """The declarations of the kernel."""

    #: False if the callable was undecorated, so that its options were found by trying them.
    declared: bool
    #: Name of the library's signature with which the kernel is called. Empty without one, and in a certificate of an
    #: earlier version.
    signature: str = ""
    supports: tuple[str, ...]
    conventions: dict[str, str | bool]
    #: Limits that the kernel sets to problems, by name; those that it does not declare are left out. Empty in a
    #: certificate of an earlier version, which does not record them.
    limits: dict[str, Any] = Field(default_factory=dict)
    #: Limits that only calls with gradients have, and what such calls do not have. Empty in a certificate of an earlier
    #: version, which does not record them.
    backward_limits: dict[str, Any] = Field(default_factory=dict)
    forward_only: tuple[str, ...] = ()
    #: Contract of each dtype: a summary and every field.
    contracts: dict[str, dict[str, str | float | int | bool | None]]
    #: Dtypes and options that were tried and failed, with the reason.
    declined: dict[str, str]
    #: Number of signatures (shapes with options) that each search draws; None is any number. None in a certificate of
    #: an earlier version, which does not record it.
    signatures: int | None = None
    #: Sentence about the cost of a new shape, if searches keep to few signatures for it; else empty.
    cost_of_new_shapes: str = ""


class AllowedBy(Model):
    """A term of the worst element's bound, and its share of the error that the contract allows there."""

    term: str
    share: float


class Finding(Model):
    """The verdict on one property at one dtype."""

    verdict: Verdict
    examples: int
    discarded: int
    #: Share of the elements of the answers that the contract bounds; null if no elements are judged.
    measured: float | None = None
    #: Largest error / bound.
    ratio: Number | None
    #: Largest quantisation error, as a share of the output in the 2-norm; null if the property measures none.
    quantisation: float | None = None
    #: Id of the stored case.
    case: str | None
    message: str
    #: Readings of the contract that explained the answers, in words, if the contract has alternatives.
    readings: tuple[str, ...] = ()
    #: Problems whose answers were examined in part, each with the examined share, and the errors this may have missed.
    looked_at: tuple[str, ...] = ()
    #: Explanations of the answer to the stored case; each explains it alone.
    hints: tuple[str, ...] = ()
    #: Terms with the largest share of the error allowed to the stored case's worst element, the largest first.
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
    #: Worst verdict over all dtypes.
    verdict: Verdict
    dtypes: dict[str, Finding]


class UnseenError(Model):
    """A planted error that would not have been refuted."""

    #: Description of the planted error.
    error: str
    #: Largest error / bound that the planted error reached.
    ratio: Number
    #: Field of the contract that hides the error, with its value; ``sharper`` is the ratio under the tightest value.
    #: Empty if no single field does.
    hidden_by: str
    sharper: Number


class PowerResult(Model):
    """Errors planted at problems of one dtype that the kernel passed, and those the judge would have missed."""

    dtype: str
    #: Problems of the experiment: "small problems", "gradients of small problems", or a shape.
    where: str
    #: Descriptions of the planted errors.
    planted: tuple[str, ...]
    unseen: tuple[UnseenError, ...]


class Certificate(Model):
    """The whole document."""

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    #: Result: "certified" only by the profile of that name with all properties; "passed" by less.
    result: Result
    #: True if the examination was completed; properties that it did not reach are "not exercised".
    complete: bool = True
    subject: Subject
    environment: dict[str, str | None]
    suite: Suite
    configuration: Configuration
    declarations: Declarations
    properties: tuple[PropertyResult, ...]
    #: Power of the judgement; empty if the kernel is refuted.
    power: tuple[PowerResult, ...] = ()
    #: Result of the examination of a definition's reference, if the kernel is a solution of FlashInfer-Bench and its
    #: reference was examined too; else None. The exit code is that of a refutation if either is refuted.
    reference: Result | None = None
    #: Number of pairs of property and dtype with each verdict, and their total.
    summary: dict[str, int]


class Refusal(Model):
    """The document printed in place of a certificate if the kernel could not be examined."""

    schema_version: Literal[2] = Field(default=SCHEMA, alias="schema")
    result: Literal["could not run"] = "could not run"
    #: Reason, and what to do next.
    message: str


def build(
    kernel: dict[str, Any], rows: Iterable[Row], powers: Iterable[Power] = (), *, complete: bool = True
) -> Certificate:
    """Return the certificate of a kernel, from what a session reported of it, its verdicts and their power.

    A certificate that is not ``complete``, because the examination was stopped, certifies nothing.
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
    """Return the verdict on the kernel."""
    code = exit_code(rows)
    if code or not complete:
        return "refuted" if code == 1 else "inconclusive"
    return "certified" if PROFILES[chosen.profile].certifies and not chosen.only else "passed"


def result_of(entry: dict[str, Any], rows: list[Row]) -> PropertyResult:
    """Return the verdicts on the property that an entry of the catalogue describes."""
    findings = {
        row.dtype: Finding(
            verdict=row.verdict,
            examples=row.examples,
            discarded=row.discarded,
            measured=row.measured,
            ratio=None if row.ratio is None else Number.of(row.ratio),
            quantisation=row.quantisation,
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
    """Return the document as JSON text."""
    return json.dumps(document.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the documents that ``attn-spec certify --json`` prints."""
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
    """Return whether a file is a certificate, of any version."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"schema", "result", "properties"} <= document.keys()


def compare(old: Certificate, new: Certificate) -> list[str]:
    """List the differences, one line each; empty if both certificates say the same."""
    lines = []
    for part in ("subject", "environment", "suite", "configuration", "declarations"):
        lines += _differences(part, *(document.model_dump(mode="json")[part] for document in (old, new)))
    before, after = _findings(old), _findings(new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            lines.append(f"{' '.join(key)}: {_phrase(before.get(key))} -> {_phrase(after.get(key))}")
    return lines


def _differences(name: str, before: Any, after: Any) -> Iterator[str]:
    """Yield a line for each differing entry of nested documents, and one line for a document that only one side has."""
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
