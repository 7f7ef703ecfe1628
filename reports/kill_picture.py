"""The kill matrix as one picture: mutants down, properties and then the peers' rules across, a mark for each catch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import escape

from .contest import SUITE, Outcome
from .kill_matrix import Cell, Kill

#: Size of one field, of the mark in it, and of the margins for labels; in the units of the drawing.
FIELD, MARK, LEFT, TOP = 9, 8, 178, 74
#: Space between the families of rows and columns.
GAP = 4


@dataclass(frozen=True)
class Column:
    """A property or a peer's rule."""

    group: str
    name: str


def picture(
    families: dict[str, list[str]], cells: Sequence[Cell], kills: Sequence[Kill], outcomes: Sequence[Outcome]
) -> str:
    """The SVG element; ``families`` are the mutants' ids by family. What a mark means is said on hovering over it."""
    columns = _columns(cells, outcomes)
    x, width = _places([[c.name for c in own] for _, own in groupby(columns, key=lambda c: c.group)], LEFT)
    y, height = _places(families.values(), TOP)
    first = {(kill.mutant, kill.claim) for kill in kills}
    marks = [
        _mark(x[c.claim], y[c.mutant], _style(c, (c.mutant, c.claim) in first), _said(c)) for c in cells if c.caught
    ]
    marks += [
        _mark(x[o.contestant], y[o.mutant], "peer", f"{o.mutant}, {o.contestant}: {o.why}")
        for o in outcomes
        if o.caught and o.contestant != SUITE
    ]
    parts = [*_rows(y, width), *_heads(columns, x, height), *marks]
    label = f"{len(y)} mutants against {len(x)} properties and rules"
    return (
        f'<svg class="kills" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{label}">\n' + "\n".join(parts) + "\n</svg>"
    )


def _columns(cells: Sequence[Cell], outcomes: Sequence[Outcome]) -> list[Column]:
    properties = dict.fromkeys(cell.claim for cell in cells)
    peers = dict.fromkeys(o.contestant for o in outcomes if o.contestant != SUITE)
    return [Column(name.partition(".")[0], name) for name in properties] + [Column("peers' rules", n) for n in peers]


def _places(groups: Sequence[Sequence[str]] | object, start: int) -> tuple[dict[str, int], int]:
    """Where each name stands, with a gap between groups, and where the last one ends."""
    places, at = {}, start
    for names in groups:  # type: ignore[attr-defined]
        for name in names:
            places[name] = at
            at += FIELD
        at += GAP
    return places, at


def _rows(y: dict[str, int], width: int) -> list[str]:
    return [
        f'<path class="row" d="M{LEFT} {at + FIELD / 2:g}H{width}"/>'
        f'<text x="{LEFT - 4}" y="{at + FIELD - 2}" text-anchor="end">{escape(name.replace("_", " "))}</text>'
        for name, at in y.items()
    ]


def _heads(columns: Sequence[Column], x: dict[str, int], height: int) -> list[str]:
    parts = []
    for group, own in groupby(columns, key=lambda column: column.group):
        at = x[next(iter(own)).name]
        parts.append(
            f'<text class="group" transform="translate({at + 7} {TOP - 6}) rotate(-40)">{escape(group)}</text>'
        )
        parts.append(f'<path class="edge" d="M{at - GAP / 2:g} {TOP}V{height}"/>')
    return parts


def _mark(x: int, y: int, style: str, title: str) -> str:
    return f'<path class="{style}" d="M{x} {y}h{MARK}v{MARK}h-{MARK}z"><title>{escape(title)}</title></path>'


def _style(cell: Cell, is_first: bool) -> str:
    return "first" if is_first else str(cell.verdict)


def _said(cell: Cell) -> str:
    count = "1 problem" if cell.examples == 1 else f"{cell.examples} problems"
    return f"{cell.mutant}, {cell.claim}: {cell.verdict} after {count}"
