"""The power of the suite as one self-contained HTML page and as Markdown."""

from __future__ import annotations

from typing import Any

import jinja2

from ... import errors
from ...errors import svg, tables
from ..zoo.mutants import load_all
from .contest import SUITE
from .defects import DEFECTS
from .document import Teeth
from .kill_matrix import measured_of
from .kill_picture import columns_of, picture
from .left_out import LEFT_OUT
from .limit_figures import limit_table, own_lines, panels
from .measurement import FIRST, SECOND
from .numbers import alarms, contestants, headline, opening, stays, survivors

#: Characters of a problem that a page shows.
LONGEST = 320


def html(made: Teeth) -> str:
    """Return the page. Equal arguments give equal bytes. Raises :class:`svg.FigureError` without matplotlib."""
    packages = (str(__package__), errors.__name__)  # the errors package holds the style of all pages
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package, ".") for package in packages])
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"number": tables.number, "short": _short}
    columns, rows = limit_table(made.powers)
    refuted, examples = alarms(made)
    return jinja.get_template("teeth.html.jinja").render(
        made=made,
        zoo=len(load_all()[0]),
        headline=headline(made),
        opening=opening(made),
        budget=f"{int(made.environment['budget']):,} multiply-adds",
        profiles=(FIRST, SECOND),
        contestants=contestants(made),
        picture=picture(_families(made), made.properties, made.cells, made.kills, made.outcomes),
        columns=columns_of(made.properties, made.outcomes),
        survivors=survivors(made),
        kills={kill.mutant: kill for kill in made.kills},
        seen_by=_seen_by(made),
        stays=stays(made),
        panels=panels(made.powers),
        sizes={name: row.story for name, row in DEFECTS.items() if any(power.defect == name for power in made.powers)},
        limit_lines=own_lines(made.powers),
        limit_columns=columns,
        limit_rows=rows,
        refuted=refuted,
        alarm_examples=examples,
        alarm_kernels=sum(run.kernels for run in made.alarms),
        alarm_families=_families_of_alarms(made),
        measured=_measured(made),
        left_out=LEFT_OUT,
        palette=list(enumerate(svg.PALETTE)),
    )


def markdown(made: Teeth) -> str:
    """Return the page's numbers for a pull request or a job summary."""
    lines = [[row.name, f"{row.caught} of {row.shown}", row.rule, row.recipe] for row in contestants(made)]
    columns, rows = limit_table(made.powers)
    parts = [
        f"# {headline(made)}",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(made)),
        "## Mutants caught, with equal work",
        tables.table(["rule", "caught", "accepts when", "inputs"], lines),
        "## How each mutant was caught first",
        _first_kills(made),
    ]
    if rows:
        parts += [
            "## Smallest defect caught at least every other time",
            tables.table(["defect", "dtype", *columns], rows),
        ]
    parts += ["## Environment", tables.table(["", ""], made.environment.items())]
    return "\n\n".join(parts) + "\n"


def _first_kills(made: Teeth) -> str:
    kills, shares = {kill.mutant: kill for kill in made.kills}, _measured(made)
    columns, rows = ["mutant", "dtype", "property", "problems", "smallest problem"], []
    for mutant in made.mutants:
        kill = kills.get(mutant.id)
        found = (
            ["**none**", "", ""]
            if kill is None
            else [kill.property_id, str(kill.examples), f"`{_short(kill.problem)}`"]
        )
        row = [f"`{mutant.id}`", mutant.dtype, *(cell.replace("|", "\\|") for cell in found)]
        rows.append([*row, shares.get(mutant.id, "")] if shares else row)
    return tables.table([*columns, "measured"] if shares else columns, rows)


def _measured(made: Teeth) -> dict[str, str]:
    """Return the share of each mutant's answers that was measured, in words."""
    return {mutant: f"{100 * share:.3g} %" for mutant, share in measured_of(made.cells).items()}


def _short(problem: str) -> str:
    """Truncate an expression that lists more entries than a reader takes in; the JSON has all of it."""
    return problem if len(problem) <= LONGEST else problem[:LONGEST] + " ..."


def _families(made: Teeth) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for mutant in made.mutants:
        families.setdefault(mutant.family, []).append(mutant.id)
    return families


def _seen_by(made: Teeth) -> dict[str, str]:
    """Return the peers' rules that reject each mutant, in words."""
    seen: dict[str, Any] = {mutant.id: ([], 0) for mutant in made.mutants}
    for outcome in made.outcomes:
        if outcome.contestant != SUITE and outcome.applies:
            names, shown = seen[outcome.mutant]
            seen[outcome.mutant] = (names + [outcome.contestant] * outcome.caught, shown + 1)
    return {
        name: f"Rejected by {', '.join(names)}." if names else f"Accepted by all {shown} rules it was shown to."
        for name, (names, shown) in seen.items()
    }


def _families_of_alarms(made: Teeth) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in made.alarms:
        for family, count in run.by_family.items():
            total[family] = total.get(family, 0) + count
    return dict(sorted(total.items()))
