"""Findings that an examination does not confirm: mended since, or about a property that no longer exists."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path

from attn_spec.evidence.certificate import Certificate
from attn_spec.nearest_names import suggestion
from attn_spec.search.property import load_all
from attn_spec.search.verdict import Verdict

from .environments import Installed, last_line
from .findings import SCRIPTS, Finding
from .outcome import Stale

#: Seconds that a script of a defect may take.
SCRIPT_LIMIT = 300.0
#: Exit status of a script that shows its defect; Python ends with 1 where a script fails, for instance to import.
SHOWN = 3
#: Runs of a script that must show a defect.
RUNS = 2
MENDED = "mended since"


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


def without_evidence(findings: Sequence[Finding], installed: Installed) -> Iterator[Stale]:
    """Yield the findings whose script does not show the defect with the packages of an environment, each time."""
    for finding in (one for one in findings if one.script):
        told = next(filter(None, (_not_shown(finding.script, installed) for _ in range(RUNS))), "")
        if told:
            yield Stale(reason=finding.reason, why=told)


def _not_shown(script: str, installed: Installed) -> str:
    """Run a script; return what it did in place of showing its defect, or an empty text if it shows it."""
    with tempfile.TemporaryDirectory() as name:
        try:
            done = installed.run(["python", str(SCRIPTS / script)], Path(name), SCRIPT_LIMIT)
        except subprocess.TimeoutExpired:
            return f"has a script without a result: {script} took more than {SCRIPT_LIMIT:g} s"
    if done.returncode == SHOWN:
        return ""
    if done.returncode == 0:
        return f"is {MENDED}: {script} ends with 0, not with {SHOWN}"
    return f"has a script that fails: {script} ends with {done.returncode}: {last_line(done.stderr)}"
