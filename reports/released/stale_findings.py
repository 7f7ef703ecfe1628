"""Findings that an examination does not confirm: mended since, or about a property that no longer exists."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from attn_spec.evidence.certificate import Certificate
from attn_spec.nearest_names import suggestion
from attn_spec.search.property import load_all
from attn_spec.search.verdict import Verdict

from .findings import Finding
from .outcome import MENDED, Reproduction, Stale


def about_unknown_properties(findings: Iterable[Finding]) -> Iterator[Stale]:
    """Yield the findings that name a property which attn-spec does not have."""
    for finding in findings:
        for name in finding.properties:
            if name not in load_all():
                near = suggestion(name, load_all(), "; `attn-spec properties` lists those that exist")
                yield Stale(reason=finding.reason, why=f"names the property {name!r}, which does not exist{near}")


def mended(findings: Iterable[Finding], document: Certificate, confirmed: Container[str]) -> Iterator[Stale]:
    """Yield the findings of which a certificate shows less than they say.

    ``confirmed`` are the reasons of findings that cover a refutation of the certificate.
    """
    for finding in findings:
        held = list(_held(finding, document))
        if finding.reason not in confirmed and not held:
            held = ["it covers no refutation"]
        yield from (Stale(reason=finding.reason, why=f"is {MENDED}: {each}") for each in held)


def _held(finding: Finding, document: Certificate) -> Iterator[str]:
    for one in document.properties:
        if one.id not in finding.properties:
            continue
        for dtype, found in one.dtypes.items():
            if found.verdict is Verdict.MENDED and finding.dtype in (None, dtype):
                yield f"{one.id}, {dtype} held in {found.examples} problems"


def without_evidence(findings: Iterable[Finding], reproductions: Iterable[Reproduction]) -> Iterator[Stale]:
    """Yield the findings whose script does not show the defect with the released packages, each time."""
    failures = {one.script: one.failure for one in reproductions}
    for finding in findings:
        if failure := failures.get(finding.script):
            yield Stale(reason=finding.reason, why=failure)
