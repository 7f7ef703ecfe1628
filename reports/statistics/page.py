"""Training statistics as one self-contained HTML page, as Markdown and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, Context

import jinja2

from .. import errors
from ..errors import svg, tables
from ..errors.figures import MARKERS
from ..errors.page import Panel
from . import figures, memory
from .intervals import MISS
from .memory import Peak
from .rows import STATISTICS, Point

#: Version of the JSON document.
SCHEMA = 1
HEADER = ("statistic", "kernel", "d", "n", "scores", "draws", "measured", "interval", "exact", "")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was measured."""

    environment: dict[str, str]
    points: list[Point]
    peaks: list[Peak] = field(default_factory=list)


def html(made: Measured) -> str:
    """Return the page. Equal arguments give equal bytes. Raises :class:`svg.FigureError` without matplotlib."""
    packages = (str(__package__), errors.__name__)  # the errors package holds the style of all pages
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package, ".") for package in packages])
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    kernels = dict.fromkeys(point.kernel for point in made.points)
    return jinja.get_template("statistics.html.jinja").render(
        headline=headline(made.points),
        opening=opening(made),
        miss=MISS,
        together=at_most(len(made.points) * MISS),
        legend={kernel: MARKERS[index % len(MARKERS)][1] for index, kernel in enumerate(kernels)},
        sections=_sections(made.points),
        header=HEADER,
        lines=list(lines(made.points)),
        memory=_memory_panels(made.peaks),
        memory_header=("kernel", *memory.LENGTHS),
        memory_lines=memory_lines(made.peaks),
        tile=memory.TILE,
        longest=memory.LONGEST_EAGER,
        dim=memory.DIM,
        environment=made.environment,
        palette=list(enumerate(svg.PALETTE)),
    )


def markdown(made: Measured) -> str:
    """Return the page's numbers for a pull request or a job summary."""
    parts = [
        f"# {headline(made.points)}",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(made)),
        f"## Measured and exact, each interval at level 1 - {MISS:g}",
        tables.table(HEADER, lines(made.points)),
    ]
    if made.peaks:
        header = ["kernel", *map(str, memory.LENGTHS)]
        parts += ["## Memory of a call, MiB, by keys", tables.table(header, memory_lines(made.peaks))]
    parts += ["## Environment", tables.table(["", ""], made.environment.items())]
    return "\n\n".join(parts) + "\n"


def document(made: Measured) -> str:
    """Return the measurements as JSON, a line for each point."""
    points = ",\n".join(json.dumps(point.columns(), allow_nan=False) for point in made.points)
    peaks = ",\n".join(json.dumps(asdict(peak)) for peak in made.peaks)
    head = json.dumps(
        {"schema": SCHEMA, "headline": headline(made.points), "environment": made.environment, "miss": MISS}, indent=1
    )[:-2]
    return f'{head},\n "points": [\n{points}\n],\n "peaks": [\n{peaks}\n]}}\n'


def headline(points: Sequence[Point]) -> str:
    """Return the finding in one sentence."""
    wrong = [point for point in points if not point.agrees]
    silent = sum(not point.tells for point in points)
    if not wrong and silent:
        return f"Of {silent} of {len(points)} measured statistics draws are too few to say; the others agree"
    if not wrong:
        return "Every measured statistic agrees with its exact value"
    named = ", ".join(dict.fromkeys(point.kernel for point in wrong))
    return f"{len(wrong)} of {len(points)} measured statistics contradict attention: {named}"


def opening(made: Measured) -> list[tuple[str, str]]:
    """Return the numbers that the report begins with, each with its meaning."""
    agree = sum(point.agrees and point.tells for point in made.points)
    found = [(f"{agree} of {len(made.points)}", "intervals hold the exact value of attention")]
    if silent := sum(not point.tells for point in made.points):
        found.append((f"{silent} of {len(made.points)}", "intervals hold every value: draws are too few to say"))
    entropies = [point for point in figures.along(made.points, "entropy", "d") if not point.scaled]
    if entropies:
        widest = max(entropies, key=lambda point: point.d)
        text = f"nats of entropy are left of the weights of {widest.n} keys without 1/sqrt(d), d = {widest.d}"
        found.append((tables.number(widest.measured), text))
    if tiled := [peak for peak in made.peaks if peak.kernel in memory.TILED]:
        longest = max(tiled, key=lambda peak: (peak.n, peak.bytes))
        share = longest.bytes / memory.least_eager(longest.n)
        text = f"of what eager attention holds at least is held by {longest.kernel} at {longest.n:,} keys"
        found.append((f"{tables.number(100 * share)} %", text))
    return found


def lines(points: Iterable[Point]) -> Iterable[list[str]]:
    """Yield the points as lines of a table, under ``HEADER``."""
    for point in points:
        exact = (point.exact_low + point.exact_high) / 2
        numbers = (_digits(x) for x in (point.measured, point.low, point.high, exact))
        measured, low, high, truth = numbers
        verdict = ("" if point.tells else "too few draws") if point.agrees else "**outside**"
        where = [str(point.d), str(point.n), figures.words(point), str(point.draws)]
        yield [point.statistic, f"`{point.kernel}`", *where, measured, f"{low} to {high}", truth, verdict]


def memory_lines(peaks: Sequence[Peak]) -> list[list[str]]:
    """Return MiB by kernel and length, a dash where it was not run; the last row is eager attention's least."""
    found = {(peak.kernel, peak.n): tables.number(peak.bytes / 2**20) for peak in peaks}
    kernels = dict.fromkeys(peak.kernel for peak in peaks)
    rows = [[f"`{name}`", *(found.get((name, n), "\N{EN DASH}") for n in memory.LENGTHS)] for name in kernels]
    least = [tables.number(memory.least_eager(n) / 2**20) for n in memory.LENGTHS]
    return [*rows, ["scores and weights", *least]] if rows else []


def _sections(points: Sequence[Point]) -> list[tuple[str, str, list[Panel]]]:
    """Return title, meaning and figures of each statistic that was measured."""
    shown = dict.fromkeys(point.statistic for point in points)
    return [
        (
            row.title,
            row.says,
            [
                Panel(heading=f"against {figures.AXES[axis]}", svg=figures.against(points, name, axis))
                for axis in row.against
            ],
        )
        for name, row in STATISTICS.items()
        if name in shown
    ]


def _memory_panels(peaks: Sequence[Peak]) -> list[Panel]:
    if not peaks:
        return []
    return [
        Panel(heading="Bytes held by a call, measured", svg=figures.held(peaks)),
        Panel(heading="Operations and bytes moved, counted: eager / tiled", svg=figures.counted()),
    ]


def at_most(x: float) -> str:
    """Write one significant digit, rounded up."""
    return f"{float(Context(prec=1, rounding=ROUND_CEILING).create_decimal(repr(x))):g}"


def _digits(x: float) -> str:
    """Write four significant digits, which distinguish an interval from its ends."""
    return "not a number" if math.isnan(x) else f"{x:.4g}"
