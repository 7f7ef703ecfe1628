"""The examination of an implementation: its certificate, its verdict at a production size, and its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attn_spec.evidence.certificate import Certificate

from . import production_shape, stale_findings, verdicts
from .certification import certified
from .environments import Installed
from .findings import Finding
from .implementation import Implementation
from .outcome import COULD_NOT_RUN, Outcome
from .reproduction import reproduce


def examine(
    implementation: Implementation, findings: Sequence[Finding], installed: Installed, *, profile: str, workers: int
) -> Outcome:
    """Certify one implementation in its environment, at small problems and at its shape of a production size."""
    effort = ("--profile", profile, "--workers", str(workers))
    run = certified(implementation, findings, installed, *effort)
    shown = tuple(reproduce(finding.script) for finding in findings if finding.script)
    stale = [*stale_findings.about_unknown_properties(findings), *stale_findings.without_evidence(findings, shown)]
    if run.document is None:
        facts = {"result": COULD_NOT_RUN, "reason": run.reason, "stale": tuple(stale), "reproductions": shown}
        return Outcome(implementation=implementation.name, seconds=run.seconds, **facts)
    stale += stale_findings.mended(findings, run.document, verdicts.confirmed(run.document, findings))
    has_groups = "gqa" in run.document.declarations.supports
    at_shape, further = production_shape.examine(implementation, findings, installed, *effort, has_groups=has_groups)
    found = outcome(implementation, run.document, findings)
    return replace(
        found,
        refutations=(*found.refutations, *further),
        at_shape=at_shape,
        stale=tuple(stale),
        reproductions=shown,
        seconds=run.seconds,
    )


def outcome(implementation: Implementation, document: Certificate, findings: Sequence[Finding]) -> Outcome:
    """Return what a certificate says of an implementation."""
    planted = sum(len(one.planted) for one in document.power)
    packages = {_plain(name): version for name, version in document.subject.packages.items()}
    return Outcome(
        implementation=implementation.name,
        result=document.result,
        version=_version(packages.get(_plain(implementation.package), "")),
        packages={name: _version(version) for name, version in sorted(packages.items())},
        contracts={dtype: str(fields["summary"]) for dtype, fields in document.declarations.contracts.items()},
        counts={word: number for word, number in document.summary.items() if number},
        power=(planted - sum(len(one.unseen) for one in document.power), planted),
        ratio=verdicts.largest_ratio(document),
        refutations=verdicts.refutations(document, findings),
        unexercised=verdicts.unexercised(document),
    )


def _plain(name: str) -> str:
    """Return the name of a distribution as indexes spell it."""
    return name.lower().replace("_", "-")


def _version(told: str) -> str:
    """Return the version alone of a package that a certificate names with the digest of its files."""
    return told.partition(",")[0].partition(" ")[0]
