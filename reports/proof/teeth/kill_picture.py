"""The kill matrix as one picture: mutants down, properties and then the peers' rules across, a mark for each catch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import escape

from attn_spec.search.verdict import Verdict

from .contest import SUITE, Outcome
from .kill_matrix import Cell, Kill

#: Size of one field, of the mark in it, and of the margins for labels; in the units of the drawing.
FIELD, MARK, LEFT, TOP = 9, 8, 178, 96
#: Space between the families of rows and columns.
GAP = 4
#: Styles of marks, and what they say.
STYLES = {"refuted": "refuted", "first": "refuted first", "suspect": "suspect", "peer": "rejected by a peer's rule"}


@dataclass(frozen=True)
class Column:
    """A property or a peer's rule."""

    group: str
    name: str


def picture(
    families: dict[str, list[str]],
    properties: Sequence[str],
    cells: Sequence[Cell],
    kills: Sequence[Kill],
    outcomes: Sequence[Outcome],
) -> str:
    """Return the SVG element; ``families`` are the mutants' ids by family. Hovering shows the names of columns too."""
    columns = columns_of(properties, outcomes)
    x, width = _places(
        [[column.name for column in own] for _, own in groupby(columns, key=lambda column: column.group)], LEFT
    )
    y, height = _places(families.values(), TOP)
    marks: dict[tuple[str, str], list[int]] = {}
    for mutant, style, name in _caught(cells, kills, outcomes):
        marks.setdefault((mutant, style), []).append(x[name])
    parts = [*_rows(y, width), *_heads(columns, x, height)]
    parts += [_marks(mutant, style, y[mutant], places) for (mutant, style), places in marks.items()]
    label = f"{len(y)} mutants against {len(x)} properties and rules; the lists below it say the same"
    head = f'<svg class="kills" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    return f'{head} aria-label="{label}">\n' + "\n".join(parts) + "\n</svg>"


def _caught(
    cells: Sequence[Cell], kills: Sequence[Kill], outcomes: Sequence[Outcome]
) -> Iterator[tuple[str, str, str]]:
    """Yield mutant, style and column of each mark."""
    first = {(kill.mutant, kill.property_id) for kill in kills if kill.verdict is Verdict.REFUTED}
    for cell in cells:
        if cell.caught:
            yield (
                cell.mutant,
                "first" if (cell.mutant, cell.property_id) in first else str(cell.verdict),
                cell.property_id,
            )
    for outcome in outcomes:
        if outcome.caught and outcome.contestant != SUITE:
            yield outcome.mutant, "peer", outcome.contestant


def columns_of(properties: Sequence[str], outcomes: Sequence[Outcome]) -> list[Column]:
    """Return the columns, from the left."""
    peers = dict.fromkeys(outcome.contestant for outcome in outcomes if outcome.contestant != SUITE)
    return [Column(name.partition(".")[0], name) for name in properties] + [Column("peers' rules", n) for n in peers]


def _places(groups: Iterable[Sequence[str]], start: int) -> tuple[dict[str, int], int]:
    """Return the place of each name, with a gap between groups, and the place after the last one."""
    places, at = {}, start
    for names in groups:
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
        names = [column.name for column in own]
        at, title = x[names[0]], escape(group.replace("_", " "))
        parts.append(f'<text class="group" transform="translate({at + 7} {TOP - 16}) rotate(-40)">{title}</text>')
        parts.append(f'<path class="edge" d="M{at - GAP / 2:g} {TOP - 10}V{height}"/>')
        parts += [_head(name, x[name]) for name in names]
    return parts


def _head(name: str, x: int) -> str:
    return f'<path class="head" d="M{x} {TOP - 10}h{MARK}v{MARK}h-{MARK}z"><title>{escape(name)}</title></path>'


def _marks(mutant: str, style: str, y: int, places: Sequence[int]) -> str:
    """Draw all marks of one style in one row."""
    path = "".join(f"M{x} {y}h{MARK}v{MARK}h-{MARK}z" for x in places)
    return f'<path class="{style}" d="{path}"><title>{escape(mutant)}: {STYLES[style]}</title></path>'
