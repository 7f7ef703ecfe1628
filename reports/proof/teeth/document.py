"""The power of the suite as a document: mutants, peers' rules on the same mutants, false alarms, detection limits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from attn_spec.evidence.report import ReportError
from attn_spec.search.verdict import Verdict

from ..validation.false_alarms import Alarms, FalseAlarm
from .contest import Outcome
from .kill_matrix import Cell, Kill
from .limits import Power

#: Version of the document. A reader takes version 1 too, where the column "property_id" is "claim".
SCHEMA = 2


class TeethError(ReportError):
    """The measurement cannot be made or read; the text says why and what to do next."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """A mutant as the page describes it before anything is measured."""

    id: str
    family: str
    story: str
    source: str
    dtype: str
    named_by: str


@dataclass(kw_only=True)
class Teeth:
    """Everything that was measured."""

    environment: dict[str, str]
    properties: list[str]
    mutants: list[Told] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    alarms: list[Alarms] = field(default_factory=list)
    powers: list[Power] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the document: for each kind of row the names of its columns, then a line for each row."""
        head = {"schema": SCHEMA, "environment": self.environment, "properties": self.properties}
        parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        for name, made in _ROWS.items():
            columns = json.dumps([column.name for column in fields(made)])
            lines = ",\n".join(json.dumps(list(asdict(row).values())) for row in getattr(self, name))
            parts.append(f'"{name}": {{"columns": {columns}, "rows": [\n{lines}\n]}}')
        return "{" + ",\n".join(parts) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Invert :meth:`to_json`. Raises :class:`TeethError`."""
        try:
            document = json.loads(text)
            if document.pop("schema") not in (1, SCHEMA):
                raise TeethError(f"the document is not of schema 1 or {SCHEMA}; measure again")
            rows = {name: _rows(document.pop(name)) for name in _ROWS}
            for cell in (*rows["cells"], *rows["kills"]):
                cell["verdict"] = Verdict(cell["verdict"])
            for run in rows["alarms"]:
                run["refuted"] = [FalseAlarm(**alarm) for alarm in run["refuted"]]
            tables: dict[str, Any] = {name: [made(**row) for row in rows[name]] for name, made in _ROWS.items()}
            return cls(**document, **tables)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TeethError(f"not a document that `attn-spec teeth` wrote ({error}); measure again") from error


_ROWS: dict[str, Any] = {
    "mutants": Told,
    "cells": Cell,
    "kills": Kill,
    "outcomes": Outcome,
    "alarms": Alarms,
    "powers": Power,
}


def _rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    columns = ["property_id" if column == "claim" else column for column in table["columns"]]
    return [dict(zip(columns, row, strict=True)) for row in table["rows"]]
