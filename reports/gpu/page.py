"""Verdicts and costs on a GPU as one self-contained HTML page, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import jinja2

from .. import errors
from ..errors import svg, tables
from ..errors.page import Panel
from . import figures, ratios
from .examination import HELD, Examined
from .measurement import Case, Cost

#: Version of the JSON document; a reader refuses any other.
SCHEMA = 1
VERDICTS = ("kernel", "result", "contract", "properties by verdict")
COSTS = ("pass", "D", "causal", "keys", "kernel", "ms", "time / flash", "time / eager", "MiB", "memory / eager")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Everything that was found on one device."""

    device: str
    environment: dict[str, str]
    examined: list[Examined]
    costs: list[Cost] = field(default_factory=list)
    #: Tiles that the Triton kernels chose, by kernel, format and head dimensions.
    tiles: dict[str, str] = field(default_factory=dict)


def html(made: Measured) -> str:
    """Return the page. Equal arguments give equal bytes. Raises :class:`svg.FigureError` without matplotlib."""
    packages = (str(__package__), errors.__name__)  # the errors package holds the style of all pages
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package, ".") for package in packages])
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return jinja.get_template("gpu.html.jinja").render(
        headline=headline(made),
        opening=opening(made),
        verdicts=verdict_lines(made.examined),
        verdict_header=VERDICTS,
        refuted=[f"{one.kernel}: {what}" for one in made.examined for what in one.refuted],
        panels=[Panel(heading=heading, svg=drawn) for heading, drawn in figures.panels(made.costs)],
        cost_header=COSTS,
        costs=list(cost_lines(made.costs)),
        tiles=made.tiles,
        environment=made.environment,
        palette=list(enumerate(svg.PALETTE)),
    )


def markdown(made: Measured) -> str:
    """Return the page's numbers for a pull request or a job summary."""
    parts = [
        f"# {headline(made)}",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(made)),
        f"## Verdicts\n\n{tables.table(VERDICTS, verdict_lines(made.examined))}",
    ]
    if refuted := [f"- `{one.kernel}` {what}" for one in made.examined for what in one.refuted]:
        parts.append("## Refuted\n\n" + "\n".join(refuted))
    if made.costs:
        parts.append(f"## Costs beside flash and eager attention\n\n{tables.table(COSTS, cost_lines(made.costs))}")
    if made.tiles:
        parts.append(f"## Tiles chosen\n\n{tables.table(['kernel', 'tiles'], made.tiles.items())}")
    parts.append(f"## Environment\n\n{tables.table(['', ''], made.environment.items())}")
    return "\n\n".join(parts) + "\n"


def document(made: Measured) -> str:
    """Return the measurements as JSON, which :func:`from_json` reads."""
    head = {"schema": SCHEMA, "headline": headline(made)}
    return json.dumps(head | asdict(made), indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> Measured:
    """Read a document. Raises ValueError, KeyError or TypeError for text that is none of this version."""
    found = json.loads(text)
    if found.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    found.pop("headline", None)
    found["examined"] = [Examined(**one) for one in found["examined"]]
    found["costs"] = [Cost(**{**one, "case": Case(**one["case"])}) for one in found["costs"]]
    return Measured(**found)


def headline(made: Measured) -> str:
    """Return the finding in one sentence."""
    held = sum(one.result in HELD for one in made.examined)
    where = made.environment.get("device", made.device)
    return f"{held} of {len(made.examined)} kernels that are made for a GPU pass on {where}"


def opening(made: Measured) -> list[tuple[str, str]]:
    """Return the numbers that the report begins with, each with its meaning."""
    refuted = sum(one.result == "refuted" for one in made.examined)
    found = [(f"{refuted} of {len(made.examined)}", "kernels are refuted")]
    own = [one for one in made.costs if one.kernel not in ratios.references(made.costs).values() and one.seconds]
    for one in own[-1:]:
        if (ratio := ratios.to(made.costs, one, "flash", "seconds")) is not None:
            where = f"{one.made} of {one.case.length:,} keys, D = {one.case.head_dim}"
            found.append((tables.number(ratio), f"times flash attention is what {one.kernel} takes, {where}"))
        if (ratio := ratios.to(made.costs, one, "eager", "bytes")) is not None:
            found.append((f"{tables.number(100 * ratio)} %", "of the memory of eager attention is held there"))
    return found


def verdict_lines(examined: Iterable[Examined]) -> list[list[str]]:
    """Return the verdicts as lines of a table, under ``VERDICTS``."""
    return [
        [
            f"`{one.kernel}`",
            one.result if one.result in HELD else f"**{one.result}**",
            f"`{one.contract}`" if one.contract else "",
            one.reason or ", ".join(f"{number} {word}" for word, number in one.counts.items()),
        ]
        for one in examined
    ]


def cost_lines(costs: list[Cost]) -> Iterable[list[str]]:
    """Yield the costs as lines of a table, under ``COSTS``; a dash where a ratio is not known."""
    for one in costs:
        where = [one.made, str(one.case.head_dim), "yes" if one.case.causal else "no", f"{one.case.length:,}"]
        if one.failure:
            yield [*where, f"`{one.kernel}`", f"**no answer**: {one.failure}".replace("|", "\\|"), *([""] * 4)]
            continue
        told = [
            _number(one.seconds, 1e3),
            _number(ratios.to(costs, one, "flash", "seconds")),
            _number(ratios.to(costs, one, "eager", "seconds")),
            _number(one.bytes, 2.0**-20),
            _number(ratios.to(costs, one, "eager", "bytes")),
        ]
        yield [*where, f"`{one.kernel}`", *told]


def _number(x: float | None, unit: float = 1.0) -> str:
    return "\N{EN DASH}" if x is None else tables.number(x * unit)
