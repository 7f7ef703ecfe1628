"""Rows as one self-contained HTML page: no script, no network, readable in print and in the dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jinja2
from markupsafe import Markup

from attn_spec.judgement.planted_errors import Power, line
from attn_spec.problem.conventions import DEFAULTS
from attn_spec.problem.quantities import QUANTITIES as KNOWN
from attn_spec.search import verdict
from attn_spec.search.causes import causes
from attn_spec.search.drawing.regimes import REGIMES
from attn_spec.search.property import load_all
from attn_spec.watching.tally import Tally

from . import figures, svg, tables
from .rows import PASSES, QUANTITIES, Row, cells, dtypes_of, kernels_of, place_of, quantised, worst_cases

#: Mark of each verdict, readable without colour.
MARKS = {"held": "✓", "refuted": "✗", "suspect": "!", "not declared": "\N{EN DASH}", "not exercised": "?"}
#: Sweeps drawn as lines, and what they vary.
AGAINST = {"length": "key length", "magnitude": "score size"}
#: Runs one line of the worst cases again.
REPLAY = """\
from attn_spec import Recipe
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.reports.errors import sweep

subject = Subject(resolve("{spec}"), "{dtype}", "{device}")
for measurement in sweep.judge(subject, {recipe}):
    print(measurement.name, measurement.ratio, measurement.worst)
"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A figure with its heading."""

    heading: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of all elements, and the CSS class of its bar."""

    name: str
    style: str
    elements: int


def html(
    rows: Sequence[Row],
    environment: dict[str, str],
    verdicts: Sequence[verdict.Row] = (),
    powers: Sequence[Power] = (),
    watched: Sequence[Tally] = (),
) -> str:
    """Return the page. Equal arguments give equal bytes. Raises :class:`svg.FigureError` without matplotlib."""
    loader = jinja2.PackageLoader(__package__ or "reports", ".")
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"number": tables.number, "share": _share, "exact": repr, "shade": _shade}
    return jinja.get_template("page.html.jinja").render(
        **_numbers(rows, verdicts),
        **_verdicts(verdicts),
        powers=powers,
        power=line(powers),
        watched=watched,
        environment=environment,
    )


def headline(rows: Sequence[Row], verdicts: Sequence[verdict.Row] = ()) -> str:
    """Return the finding in one sentence."""
    if refuted := [row for row in verdicts if row.verdict == verdict.Verdict.REFUTED]:
        return f"{len(refuted)} of {len(verdicts)} verdicts are refuted"
    pairs = {(row.kernel, row.dtype) for row in rows}
    unsound = {(row.kernel, row.dtype) for row in rows if row.outside_bound or row.failure}
    if unsound:
        return f"{len(unsound)} of {len(pairs)} kernel and dtype pairs left their bound"
    return "Every measured error lies inside its bound"


def _numbers(rows: Sequence[Row], verdicts: Sequence[verdict.Row]) -> dict[str, Any]:
    kernels, dtypes = kernels_of(rows), dtypes_of(rows)
    measured = {row.quantity for row in rows}
    passes = [[quantity for quantity in quantities if quantity in measured] for quantities in PASSES]
    cases = worst_cases(rows)
    return {
        "headline": headline(rows, verdicts),
        "opening": tables.opening(rows, verdicts),
        "rows": rows,
        "kernels": kernels,
        "dtypes": dtypes,
        "palette": list(enumerate(svg.PALETTE)),
        "legend": {kernel: _glyph(index) for index, kernel in enumerate(kernels)},
        "passes": [quantities for quantities in passes if quantities],
        "cells": cells(rows),
        "contracts": sorted({(row.kernel, row.dtype, row.contract, row.conventions) for row in rows}),
        "usual": ", ".join(f"{name} {value}" for name, value in asdict(DEFAULTS).items()),
        "regimes": {row.regime: REGIMES[row.regime] for row in rows if row.regime in REGIMES},
        "titles": {name: row.title for name, row in KNOWN.items()},
        "sections": {dtype: _panels(rows, kernels, dtype) for dtype in dtypes},
        "measured": {dtype: {row.kernel for row in rows if row.dtype == dtype} for dtype in dtypes},
        "worst_cases": cases,
        "quantised": [(row, tables.in_percent(row)) for row in quantised(rows)],
        "replay": _replay(cases),
        "shares": _shares(rows),
        "failures": sum(1 for row in rows if row.failure),
    }


def _verdicts(verdicts: Sequence[verdict.Row]) -> dict[str, Any]:
    grid: dict[str, dict[tuple[str, str], verdict.Row]] = {}
    for row in verdicts:
        grid.setdefault(row.property, {})[row.kernel, row.dtype] = row
    return {
        "verdicts": grid,
        "subjects": sorted(
            {(one.kernel, one.dtype) for one in verdicts}, key=lambda pair: (pair[0], place_of(pair[1]))
        ),
        "denominator": verdict.denominator(verdicts),
        "examined": [row for row in verdicts if row.looked_at],
        "causes": causes(verdicts),
        "statements": {name: property_.statement for name, property_ in load_all().items()},
        "marks": MARKS,
    }


def _panels(rows: Sequence[Row], order: Sequence[str], dtype: str) -> dict[str, list[Panel]]:
    """Return the figures of one dtype, shown or folded away. Colours do not depend on the dtype."""
    own = [row for row in rows if row.dtype == dtype]
    measured = {row.quantity for row in own if row.elements}
    lines = {q: [_line(own, order, sweep, q) for sweep in AGAINST] for q in PASSES[0] if q in measured}
    strips = [_strip(own, order, quantity) for quantity in QUANTITIES if quantity in measured]
    return {"shown": lines.get("output", []) + strips, "folded": lines.get("lse", [])}


def _line(rows: Sequence[Row], order: Sequence[str], sweep: str, quantity: str) -> Panel:
    heading = f"{KNOWN[quantity].title} against {AGAINST[sweep]}"
    return Panel(heading=heading, svg=figures.error_against(rows, order, sweep, quantity))


def _strip(rows: Sequence[Row], order: Sequence[str], quantity: str) -> Panel:
    heading = f"{KNOWN[quantity].title} in every regime: error / bound"
    return Panel(heading=heading, svg=figures.ratio_by_regime(rows, order, quantity))


def _share(ratio: float) -> str:
    return tables.number(ratio) if not ratio < 1e-3 else "< 0.001"


def _shade(ratio: float) -> float:
    """Return the percent of the darkest shade: from 0 at ratio 0 to 100 at ratio 1 and beyond."""
    return round(100 * min(ratio, 1.0), 1)


def _glyph(index: int) -> Markup:
    """Return the mark of kernel ``index`` as text in its colour."""
    glyph = figures.MARKERS[index % len(figures.MARKERS)][1]
    colour = index % len(svg.PALETTE)
    return Markup('<span class="glyph" style="color: var(--k{})">{}</span>').format(colour, glyph)


def _replay(cases: Sequence[Row]) -> str:
    row = next((row for row in cases if row.worst), None)
    if row is None or row.worst is None:
        return ""
    return REPLAY.format(spec=row.spec, dtype=row.dtype, device=row.device, recipe=row.worst.recipe)


def _shares(rows: Sequence[Row]) -> list[Share]:
    """Count the elements inside the bound, outside it, and outside the domain in which a bound exists."""
    outside = sum(row.outside_bound for row in rows)
    beyond = sum(row.outside_domain for row in rows)
    return [
        Share(name="inside the bound", style="inside", elements=sum(row.elements for row in rows) - outside),
        Share(name="outside the bound", style="outside", elements=outside),
        Share(name="outside the contract's domain, nothing declared", style="outside-domain", elements=beyond),
    ]
