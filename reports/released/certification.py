"""Runs of ``attn-spec certify`` in the environment of an implementation."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attn_spec import atomic
from attn_spec.evidence.certificate import Certificate
from attn_spec.search.property import load_all

from .environments import Installed, last_line
from .findings import Finding, as_known_defects
from .implementation import Implementation


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A run of the command."""

    #: Certificate; None with the reason.
    document: Certificate | None
    reason: str = ""
    #: Seconds of processor time.
    seconds: float


def certified(
    implementation: Implementation, findings: Sequence[Finding], installed: Installed, *options: str
) -> Certified:
    """Certify one implementation in its environment, with further options of the command."""
    with tempfile.TemporaryDirectory() as name:
        written = Path(name) / "certificate.json"
        command = ["attn-spec", "certify", implementation.spec, *declared(implementation), *options]
        command += ["--output", str(written)]
        if findings and (expected := as_known_defects(findings, load_all())):
            command += ["--known-defects", str(atomic.write(Path(name) / "known.toml", expected))]
        done, seconds = installed.timed(command, Path(name))
        if not written.is_file():
            return Certified(document=None, reason=installed.told(last_line(done.stderr, done.stdout)), seconds=seconds)
        document = Certificate.model_validate(json.loads(installed.told(written.read_text(encoding="utf-8"))))
    return Certified(document=document, seconds=seconds)


def declared(implementation: Implementation) -> list[str]:
    """Return the options of a command that say what an implementation declares."""
    options = [part for dtype in implementation.dtypes for part in ("--dtype", dtype)]
    words = {name: getattr(implementation, name) for name in ("signature", "contract", "supports")}
    return options + [part for word, value in words.items() if value for part in (f"--{word}", value)]
