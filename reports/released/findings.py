"""Refutations that somebody has looked at: how each was judged, why, and where the project says otherwise.

They stand in ``findings.toml``. A refutation without an entry is shown as "not judged yet".
"""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_spec.kernels.defects import Defect, DefectError

from .environments import ReleasedError

#: Words by which a refutation is judged, and what each means.
WORDS = {
    "defect": "the answer contradicts the project's documentation, or any contract that it documents",
    "convention": "the project answers differently on purpose, and no convention of attn-spec says so yet",
    "limit": "the call is outside of what the project takes, and no limit of attn-spec says so yet",
    "contract": "the arithmetic is that of another contract, which holds",
}
FINDINGS = Path(__file__).parent / "findings.toml"
#: Folder of the scripts that show a defect by the released package alone.
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about an implementation that explains some of its refutations.

    It covers the refutations of ``properties``, and those that need all options in ``needs``.
    """

    #: Name of the implementation's row.
    implementation: str
    #: One of ``WORDS``.
    word: str
    #: Sentence that says what the implementation does.
    reason: str
    #: Place where the project, or a run, shows that the word is right.
    source: str
    properties: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    #: Dtype of the refutations; None is every dtype.
    dtype: str | None = None
    #: File in ``SCRIPTS`` that shows a defect; empty for other words.
    script: str = ""

    def __post_init__(self) -> None:
        if self.word not in WORDS:
            raise ReleasedError(f"a finding is judged as {', '.join(WORDS)}, not as {self.word!r}")
        if not self.source.strip():
            raise ReleasedError(f"the finding {self.reason!r} needs a source")
        if not self.defects:
            raise ReleasedError(f"the finding {self.reason!r} covers nothing; give properties, needs, or both")
        if (self.word == "defect") != bool(self.script):
            raise ReleasedError(f"the finding {self.reason!r} needs a script if it is a defect, and only then")
        if self.script and not (SCRIPTS / self.script).is_file():
            raise ReleasedError(f"the script {self.script!r} of the finding {self.reason!r} is not in {SCRIPTS}")

    @property
    def defects(self) -> tuple[Defect, ...]:
        """Known defects of a search that expect what the finding covers. Raises :class:`DefectError`."""
        facts = {"reason": self.reason, "dtype": self.dtype}
        found = [Defect(property=name, **facts) for name in self.properties]
        return (*found, Defect(needs=self.needs, **facts)) if self.needs else tuple(found)


def read(path: Path = FINDINGS) -> tuple[Finding, ...]:
    """Return the findings of a TOML file of tables [[finding]]. Raises :class:`ReleasedError`."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("finding", [])
        return tuple(_finding(row) for row in rows)
    except (OSError, tomllib.TOMLDecodeError, TypeError, DefectError) as error:
        raise ReleasedError(f"{path} cannot be read as findings: {error}") from error


def _finding(row: dict[str, Any]) -> Finding:
    lists = {name: tuple(row[name]) for name in ("properties", "needs") if name in row}
    return Finding(**{**row, **lists})


def as_known_defects(findings: Iterable[Finding], properties: Container[str]) -> str:
    """Return the text of a file for ``--known-defects`` that expects the refutations of these findings.

    Entries about none of the ``properties`` are left out, which the command refuses. The text is empty without entries.
    """
    every = (defect for finding in findings for defect in finding.defects)
    return "\n".join(_table(one) for one in every if one.property is None or one.property in properties)


def _table(defect: Defect) -> str:
    values = {"property": defect.property, "dtype": defect.dtype, "reason": defect.reason}
    lines = [f"{name} = {_quoted(value)}" for name, value in values.items() if value is not None]
    if defect.needs:
        lines.append(f"needs = [{', '.join(map(_quoted, defect.needs))}]")
    return "\n".join(("[[defect]]", *lines, ""))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
