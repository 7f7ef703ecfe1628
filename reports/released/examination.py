"""The examination of an implementation: ``attn-spec certify`` in its environment, and the scripts of its defects."""

from __future__ import annotations

import json
import math
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attn_spec import atomic
from attn_spec.evidence.certificate import Certificate
from attn_spec.evidence.certificate import Finding as Found
from attn_spec.search.verdict import Verdict

from .environments import Installed
from .findings import SCRIPTS, Finding, as_known_defects
from .implementations import Implementation
from .outcome import COULD_NOT_RUN, Outcome, Refutation

#: Seconds that a script of a defect may take.
SCRIPT_LIMIT = 300.0
#: Exit status of a script that shows its defect; Python ends with 1 where a script fails, for instance to import.
SHOWN = 3


def examine(
    implementation: Implementation, findings: Sequence[Finding], installed: Installed, *, profile: str, workers: int
) -> Outcome:
    """Certify one implementation in its environment."""
    with tempfile.TemporaryDirectory() as name:
        known, written = Path(name) / "known.toml", Path(name) / "certificate.json"
        command = ["attn-spec", "certify", implementation.spec, *_options(implementation)]
        command += ["--profile", profile, "--workers", str(workers), "--output", str(written)]
        if findings:
            atomic.write(known, as_known_defects(findings))
            command += ["--known-defects", str(known)]
        before = _processor_seconds()
        done = installed.run(command, Path(name))
        seconds = _processor_seconds() - before
        if not written.is_file():
            told = (done.stderr or done.stdout).strip().splitlines()
            return Outcome(
                implementation=implementation.name,
                result=COULD_NOT_RUN,
                reason=told[-1] if told else "no output",
                seconds=seconds,
            )
        document = Certificate.model_validate(json.loads(written.read_text(encoding="utf-8")))
    return outcome(implementation, document, findings, seconds)


def _options(implementation: Implementation) -> list[str]:
    options = [part for dtype in implementation.dtypes for part in ("--dtype", dtype)]
    words = {name: getattr(implementation, name) for name in ("signature", "contract", "supports")}
    return options + [part for word, value in words.items() if value for part in (f"--{word}", value)]


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def outcome(
    implementation: Implementation, document: Certificate, findings: Sequence[Finding], seconds: float
) -> Outcome:
    """Return what a certificate says of an implementation."""
    shown = [(one.id, dtype, found) for one in document.properties for dtype, found in one.dtypes.items()]
    bad = (Verdict.REFUTED, Verdict.KNOWN)
    ratios = [
        float.fromhex(found.ratio.hex) for _, _, found in shown if found.ratio is not None and found.verdict not in bad
    ]
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
        ratio=max((ratio for ratio in ratios if math.isfinite(ratio)), default=None),
        refutations=tuple(_refutation(*one, findings) for one in shown if one[2].verdict in bad),
        seconds=round(seconds, 1),
    )


def _plain(name: str) -> str:
    """Return the name of a distribution as indexes spell it."""
    return name.lower().replace("_", "-")


def _version(told: str) -> str:
    """Return the version alone of a package that a certificate names with the digest of its files."""
    return told.partition(",")[0].partition(" ")[0]


def _refutation(property_id: str, dtype: str, found: Found, findings: Sequence[Finding]) -> Refutation:
    known, message = found.verdict is Verdict.KNOWN, found.message
    judged = next((one.reason for one in findings if known and message.startswith(one.reason)), "")
    while judged and message.startswith(judged):  # once for each entry that covers the refutation
        message = message.removeprefix(judged).removeprefix("; ").removeprefix(". ")
    first = next(iter(message.splitlines()), "")
    return Refutation(property_id=property_id, dtype=dtype, message=first, hints=found.hints, judged=judged)


def shows(script: str, installed: Installed) -> bool:
    """Return whether a script shows its defect with the packages of an environment."""
    with tempfile.TemporaryDirectory() as name:
        return installed.run(["python", str(SCRIPTS / script)], Path(name), SCRIPT_LIMIT).returncode == SHOWN
