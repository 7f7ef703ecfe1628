"""Runs of the scripts that show defects, each in a fresh environment of the packages that the script names.

A script names them as its inline metadata (PEP 723), so that ``uv run SCRIPT`` does the same elsewhere.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

from .environments import Environment, Installed, ReleasedError, fresh, last_line
from .findings import SCRIPTS
from .outcome import MENDED, Reproduction

#: Seconds that a script may take.
LIMIT = 300.0
#: Exit status of a script that shows its defect; Python ends with 1 where a script fails, for instance to import.
SHOWN = 3
#: Runs of a script that must show a defect.
RUNS = 2
#: Block of inline metadata, by the expression of PEP 723.
_METADATA = re.compile(r"(?m)^# /// script$\s(?P<lines>(^#(| .*)$\s)+)^# ///$")


def requirements(script: str) -> tuple[str, ...]:
    """Return the requirements that a script names. Raises :class:`ReleasedError` if it names none."""
    found = _METADATA.search((SCRIPTS / script).read_text(encoding="utf-8"))
    lines = found.group("lines").splitlines(keepends=True) if found else []
    try:
        named = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise ReleasedError(f"the inline metadata of {SCRIPTS / script} is no TOML: {error}") from error
    if not named.get("dependencies"):
        raise ReleasedError(
            f"{SCRIPTS / script} names no packages; give it inline metadata with dependencies (PEP 723)"
        )
    return tuple(named["dependencies"])


def reproduce(script: str) -> Reproduction:
    """Run a script in a fresh environment until a run shows no defect, at most ``RUNS`` times."""
    needed, printed, failure = requirements(script), [], ""
    with tempfile.TemporaryDirectory() as name:
        try:
            installed = fresh(Environment(name=Path(script).stem, requirements=needed), Path(name))
            while len(printed) < RUNS and not failure:
                text, failure = _run(script, installed, Path(name))
                printed.append(text)
        except ReleasedError as error:
            failure = f"has a script that no environment could run: {error}"
    if not failure and len(set(printed)) > 1:
        failure = f"has a script that prints another text each time: {script}"
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return Reproduction(script=script, requirements=needed, printed=tuple(printed), failure=failure, date=today)


def _run(script: str, installed: Installed, folder: Path) -> tuple[str, str]:
    """Return what a script printed, and what it did in place of showing its defect; empty if it shows it."""
    try:
        done = installed.run(["python", str(SCRIPTS / script)], folder, LIMIT)
    except subprocess.TimeoutExpired:
        return "", f"has a script without a result: {script} took more than {LIMIT:g} s"
    failure = ""
    if done.returncode == 0:
        failure = f"is {MENDED}: {script} ends with 0, not with {SHOWN}"
    elif done.returncode != SHOWN:
        failure = f"has a script that fails: {script} ends with {done.returncode}: {last_line(done.stderr)}"
    return done.stdout, failure
