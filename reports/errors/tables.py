"""Rows as Markdown for a pull request, and how every page writes a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attn_spec.judgement.planted_errors import Power, line
from attn_spec.problem.quantities import QUANTITIES as KNOWN
from attn_spec.search.verdict import Row as VerdictRow
from attn_spec.search.verdict import Verdict, count, denominator
from attn_spec.watching.tally import Tally

from .rows import QUANTITIES, Cell, Row, Spread, cells, dtypes_of, kernels_of, quantised, worst_cases

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(x: float) -> str:
    """Write two significant digits, at least up to the units: 0.043, 1.2, 1,370, 3.4 × 10⁶, ∞; – for none."""
    if math.isnan(x):
        return "\N{EN DASH}"
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    mantissa, exponent = f"{x:.1e}".split("e")
    if x == 0 or 1e-3 <= abs(x) < 99_999.5:
        return f"{x:,.{max(1 - int(exponent), 0) if x else 0}f}"
    return f"{mantissa} \N{MULTIPLICATION SIGN} 10{str(int(exponent)).translate(SUPERSCRIPT)}"


def opening(rows: Sequence[Row], verdicts: Sequence[VerdictRow] = ()) -> list[tuple[str, str]]:
    """Return the three numbers that a report begins with, each with its meaning."""
    found = cells(rows).values()
    tight = max(found, key=lambda cell: (not cell.is_sound, _known(cell.ratio.max)))
    ratio = (number(tight.ratio.max), f"largest error / bound, 1 being the limit: {_named(tight)}")
    if verdicts:
        counted, total = count(verdicts), len(verdicts)
        return [
            ratio,
            (f"{counted[Verdict.REFUTED]} of {total}", "verdicts are refuted"),
            (f"{counted[Verdict.NOT_EXERCISED]} of {total}", "verdicts were not exercised enough to count"),
        ]
    coarse = max(
        (cell for cell in found if cell.quantity == "output"), key=lambda cell: _known(cell.row_ulps.max), default=tight
    )
    return [
        ratio,
        (number(coarse.row_ulps.max), f"largest error in ulp on ordinary data: {_named(coarse)}"),
        (f"{sum(row.elements for row in rows):,}", f"elements measured, in {len(rows):,} rows"),
    ]


def markdown(
    rows: Sequence[Row],
    environment: dict[str, str],
    verdicts: Sequence[VerdictRow] = (),
    powers: Sequence[Power] = (),
    watched: Sequence[Tally] = (),
) -> str:
    """Return the report for a pull request or a job summary."""
    parts = [
        "# Numeric error report",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(rows, verdicts)),
    ]
    if verdicts:
        parts.append(denominator(verdicts))
        parts += [_examined(verdicts)] if any(row.looked_at for row in verdicts) else []
    parts += [_power(powers)] if powers else []
    parts += [_watched(watched)] if watched else []
    parts += [_matrix(rows, quantity) for quantity in QUANTITIES if any(row.quantity == quantity for row in rows)]
    parts += [_quantisation(found)] if (found := quantised(rows)) else []
    parts += [
        _distribution(cells(rows).values()),
        _worst(rows),
        "## Environment",
        table(["", ""], environment.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _examined(verdicts: Sequence[VerdictRow]) -> str:
    """Return a section on the elements that were judged of each problem of a shape that was asked for."""
    lines = [[f"`{row.property}`", f"`{row.kernel}`", row.dtype, words] for row in verdicts for words in row.looked_at]
    return f"## Shapes asked for\n\n{table(['property', 'kernel', 'dtype', 'problem, and what was looked at'], lines)}"


def _power(powers: Sequence[Power]) -> str:
    """Return a section on the planted errors that the verdicts would have refuted."""
    lines = [
        [one.dtype, one.where, f"{one.seen} of {len(one.planted)}", "; ".join(map(str, one.unseen))] for one in powers
    ]
    return f"## Power\n\n{line(powers)}\n\n{table(['dtype', 'where', 'seen', 'not seen'], lines)}"


def _watched(tallies: Sequence[Tally]) -> str:
    """Return a section on the functions that were watched while a program ran."""
    lines = []
    for one in tallies:
        counts = [f"{count:,}" for count in (one.calls, one.judged, one.judged_backward)]
        lines.append([f"`{one.function}`", *counts, number(one.ratio), f"{len(one.refuted)}", "; ".join(one.unjudged)])
    header = ["function", "calls", "judged", "backward passes judged", "error / bound", "refuted", "not judged"]
    return f"## Watched calls\n\n{table(header, lines)}"


def _quantisation(rows: Sequence[Row]) -> str:
    """Return a section on the error of quantised numbers, apart from that of the arithmetic."""
    lines = [
        [f"`{row.kernel}`", row.dtype, row.regime, f"{number(100 * row.quantisation)} %", *in_percent(row)]
        for row in rows
    ]
    header = ["kernel", "dtype", "regime", "quantisation error", "arithmetic error, median", "error / bound"]
    return f"## Quantisation error, apart from arithmetic error\n\n{table(header, lines)}"


def in_percent(row: Row) -> list[str]:
    """Return the median error of the arithmetic relative to its truth, in percent, and the largest error / bound."""
    return [f"{number(100 * row.relative.median)} %", number(row.ratio.max)]


def _named(cell: Cell) -> str:
    return ", ".join([cell.kernel, cell.dtype, *([] if cell.quantity == "output" else [KNOWN[cell.quantity].symbol])])


def _known(x: float) -> float:
    return -math.inf if math.isnan(x) else x


def _matrix(rows: Sequence[Row], quantity: str) -> str:
    found, dtypes = cells(rows), dtypes_of(rows)
    lines = [[f"`{k}`", *(_cell(found.get((k, dtype, quantity))) for dtype in dtypes)] for k in kernels_of(rows)]
    heading = f"## {KNOWN[quantity].title}: largest error in ulp on ordinary data (largest error / bound on any data)"
    return f"{heading}\n\n{table(['kernel', *dtypes], lines)}"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.failures:
        return f"**no answer** to {cell.failures} problem{'s' if cell.failures > 1 else ''}"
    text = f"{number(cell.row_ulps.max)} ({number(cell.ratio.max)})"
    return text if cell.is_sound else f"**{text}, {cell.outside_bound:,} outside**"


def _distribution(found: Iterable[Cell]) -> str:
    header = ["kernel", "dtype", "quantity", "contract", "ulp", "relative", "error / bound"]
    lines = [
        [
            f"`{cell.kernel}`",
            cell.dtype,
            cell.quantity,
            f"`{cell.contract}`",
            _spread(cell.row_ulps),
            _spread(cell.relative),
            _spread(cell.ratio),
        ]
        for cell in found
    ]
    return f"## Median / 99 % / largest\n\n{table(header, lines)}"


def _spread(spread: Spread) -> str:
    return " / ".join(number(x) for x in (spread.median, spread.p99, spread.max))


def _worst(rows: Sequence[Row]) -> str:
    header = ["error / bound", "ulp", "kernel", "dtype", "quantity", "regime", "worst element, and its problem again"]
    lines = [
        [
            number(row.ratio.max),
            number(row.row_ulps.max),
            f"`{row.kernel}`",
            row.dtype,
            row.quantity,
            row.regime,
            _how(row),
        ]
        for row in worst_cases(rows)
    ]
    return f"## Worst cases\n\n{table(header, lines)}"


def _how(row: Row) -> str:
    if row.failure or row.worst is None:
        return row.failure.replace("|", "\\|")
    return f"`{list(row.worst.index)}` of `{row.worst.recipe}`"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
