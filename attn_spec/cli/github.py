"""Output for GitHub Actions: annotations of the lines that define kernels, and the summary of a step.

The workflow commands are those of docs.github.com, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from pathlib import Path

import click

from attn_spec import faults
from attn_spec.evidence.certificate import Certificate, PropertyResult
from attn_spec.search.causes import causes
from attn_spec.search.verdict import Verdict, denominator
from attn_spec.sessions.progress import Progress

#: Annotation level of each verdict; other verdicts are not annotated. GitHub shows ten errors of a step.
LEVELS = {Verdict.REFUTED: "error", Verdict.SUSPECT: "warning", Verdict.MENDED: "warning"}


def tell(document: Certificate, progress: Progress) -> None:
    """Annotate the kernel on stderr and append to the step's summary, if the environment is that of a step."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in commands(document):
            click.echo(line, err=True)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        missing: list[str] = []
        with faults.told("summary of the step", missing), Path(path).open("a", encoding="utf-8") as file:
            file.write(summary(document, progress))
        for line in missing:
            click.echo(line, err=True)


def commands(document: Certificate) -> list[str]:
    """Return a workflow command for each property that is refuted, suspect or mended, the worst first."""
    place = {"title": "", **_place(document.subject.spec)}
    lines = []
    for result in _marked(document.properties):
        named = ",".join(f"{name}={_escaped(text, ':,')}" for name, text in {**place, "title": _title(result)}.items())
        lines.append(f"::{LEVELS[result.verdict]} {named}::{_escaped(_message(result))}")
    return lines


def summary(document: Certificate, progress: Progress) -> str:
    """Return the summary of a step as Markdown: result, causes, failures, first failure block, denominator."""
    marked = _marked(document.properties)
    lines = [f"## attn-spec: {document.subject.name} is {document.result}", "", denominator(progress.rows.values()), ""]
    lines += [f"- {cause}" for cause in causes(progress.rows.values())] + [""]
    if marked:
        lines += ["| verdict | property | why |", "| --- | --- | --- |"]
        lines += [f"| {one.verdict} | `{one.id}` | {_cell(_message(one))} |" for one in marked] + [""]
    if block := next((progress.blocks[key] for one in marked for key in progress.blocks if key[0] == one.id), ""):
        lines += ["```text", block, "```", ""]
    return "\n".join(lines) + "\n"


def _marked(results: Iterable[PropertyResult]) -> list[PropertyResult]:
    levels = list(LEVELS)
    return sorted((one for one in results if one.verdict in LEVELS), key=lambda one: levels.index(one.verdict))


def _title(result: PropertyResult) -> str:
    dtypes = ", ".join(dtype for dtype, found in result.dtypes.items() if found.verdict is result.verdict)
    return f"{result.verdict}: {result.id} ({dtypes})"


def _message(result: PropertyResult) -> str:
    """Return the statement of a property, and the reason for its verdict at the first dtype with that verdict."""
    why = next(found.message for found in result.dtypes.values() if found.verdict is result.verdict)
    return f"{result.statement} {why}"


def _place(spec: str) -> dict[str, str]:
    """Return file and line of a kernel named by its file; empty for others, which are not imported here."""
    file, _, name = spec.partition(":")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        return {}
    root = Path(os.environ.get("GITHUB_WORKSPACE", Path.cwd()))
    shown = path.resolve()
    place = {"file": str(shown.relative_to(root) if shown.is_relative_to(root) else path)}
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError):
        return place
    lines = [node.lineno for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
    return {**place, "line": str(lines[0])} if lines else place


def _escaped(text: str, further: str = "") -> str:
    """Return a text escaped for a workflow command."""
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
