"""Rows as tables: the numbers every page shows, and the Markdown for a pull request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_spec.verdict import Row as VerdictRow
from attn_spec.verdict import Verdict, count

from .sweep import QUANTITIES, Row

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TITLES = {"output": "Output O", "lse": "Log-sum-exp"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All rows of one kernel at one dtype, for one quantity."""

    #: Largest error in ulp.
    ulps: float
    #: Largest error / bound.
    ratio: float
    elements: int
    outside_bound: int
    failures: int

    @property
    def is_sound(self) -> bool:
        """Whether every element lay inside the bound and the kernel always answered."""
        return not self.outside_bound and not self.failures


    @property
    def shade(self) -> float:
        """Percent of the darkest shade: the ratio, from white at 0 to full at 1."""
        return 100.0 if math.isnan(self.ratio) else round(100 * min(self.ratio, 1.0), 1)


def number(x: float) -> str:
    """Two significant digits, at least up to the units: 0.043, 1.2, 137, 3.4 × 10⁶, ∞, – for none."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0 or 1e-3 <= abs(x) < 99_999.5:
        digits = 0 if x == 0 else max(1 - math.floor(math.log10(abs(x))), 0)
        return f"{x:,.{digits}f}"
    mantissa, exponent = f"{x:.1e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"


def kernels_of(rows: Iterable[Row]) -> list[str]:
    """Kernel names in the order they were measured."""
    return list(dict.fromkeys(row.kernel for row in rows))


def dtypes_of(rows: Iterable[Row]) -> list[str]:
    """Dtypes from wide to narrow."""
    order = ("float64", "float32", "float16", "bfloat16")
    return sorted(dict.fromkeys(row.dtype for row in rows), key=order.index)


def worst(values: Iterable[float]) -> float:
    """The largest value; NaN when there is none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def matrix(rows: Sequence[Row], quantity: str) -> dict[tuple[str, str], Cell]:
    """A cell for every (kernel, dtype) that was measured."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.quantity == quantity:
            groups.setdefault((row.kernel, row.dtype), []).append(row)
    return {key: _cell(group) for key, group in groups.items()}


def worst_cases(rows: Sequence[Row], limit: int = 16) -> list[Row]:
    """The worst row of each kernel, dtype and quantity, by error / bound; rows without an answer come first."""
    ranked = sorted(rows, key=_severity, reverse=True)
    first: dict[tuple[str, str, str], Row] = {}
    for row in ranked:
        if row.worst or row.failure:
            first.setdefault((row.kernel, row.dtype, row.quantity), row)
    return list(first.values())[:limit]


@dataclass(frozen=True, kw_only=True)
class Tightness:
    """How much of the bound the kernels of one contract use, over all sweeps."""

    contract: str
    dtype: str
    quantity: str
    #: Median over the rows of the median over the elements.
    median: float
    #: Largest 99th percentile of a row.
    p99: float
    max: float


def tightness(rows: Sequence[Row]) -> list[Tightness]:
    """One line per contract, dtype and quantity; a bound that no kernel comes near would hide defects."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.elements:
            groups.setdefault((row.contract, row.dtype, row.quantity), []).append(row)
    return [_tightness(*key, group) for key, group in groups.items()]


def markdown(rows: Sequence[Row], environment: dict[str, str], verdicts: Sequence[VerdictRow] = ()) -> str:
    """The report for a pull request or a job summary."""
    parts = ["# Numeric error of attention kernels", _opening(rows, verdicts)]
    parts += [_matrix_table(rows, quantity) for quantity in QUANTITIES]
    parts += [_worst_table(rows), _environment_table(environment)]
    return "\n\n".join(part for part in parts if part) + "\n"


def opening(rows: Sequence[Row], verdicts: Sequence[VerdictRow] = ()) -> list[tuple[str, str]]:
    """The three numbers that a report begins with, each with what it is."""
    ratio = (number(worst(row.ratio.max for row in rows)), "largest error / bound; a sound kernel stays at or below 1")
    if verdicts:
        counted, total = count(verdicts), len(verdicts)
        return [
            ratio,
            (f"{counted[Verdict.REFUTED]} of {total}", "verdicts refuted"),
            (f"{counted[Verdict.NOT_EXERCISED]} of {total}", "verdicts not exercised enough to count"),
        ]
    elements = sum(row.elements for row in rows)
    return [
        ratio,
        (number(worst(row.ulps.max for row in rows if row.quantity == "output")), "largest error of the output, in ulp"),
        (f"{elements:,}", f"elements measured in {len(rows):,} rows"),
    ]


def _opening(rows: Sequence[Row], verdicts: Sequence[VerdictRow]) -> str:
    return "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(rows, verdicts))


def _cell(rows: Sequence[Row]) -> Cell:
    return Cell(
        ulps=worst(row.ulps.max for row in rows),
        ratio=worst(row.ratio.max for row in rows),
        elements=sum(row.elements for row in rows),
        outside_bound=sum(row.outside_bound for row in rows),
        failures=sum(1 for row in rows if row.failure),
    )


def _severity(row: Row) -> tuple[bool, float]:
    return bool(row.failure), row.worst.ratio if row.worst else -math.inf


def _tightness(contract: str, dtype: str, quantity: str, rows: Sequence[Row]) -> Tightness:
    medians = sorted(row.ratio.median for row in rows)
    return Tightness(
        contract=contract,
        dtype=dtype,
        quantity=quantity,
        median=medians[(len(medians) - 1) // 2],
        p99=worst(row.ratio.p99 for row in rows),
        max=worst(row.ratio.max for row in rows),
    )


def _matrix_table(rows: Sequence[Row], quantity: str) -> str:
    cells, dtypes = matrix(rows, quantity), dtypes_of(rows)
    if not cells:
        return ""
    lines = [[f"`{kernel}`", *(_cell_text(cells.get((kernel, d))) for d in dtypes)] for kernel in kernels_of(rows)]
    heading = f"## {TITLES[quantity]}: largest error in ulp (error / bound)"
    return f"{heading}\n\n{_table(['kernel', *dtypes], lines)}"


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.failures:
        return f"**no answer** in {cell.failures} rows"
    text = f"{number(cell.ulps)} ({number(cell.ratio)})"
    return text if cell.is_sound else f"**{text}, {cell.outside_bound:,} outside**"


def _worst_table(rows: Sequence[Row]) -> str:
    lines = [
        [number(row.ratio.max), number(row.ulps.max), f"`{row.kernel}`", row.dtype, row.quantity, row.regime, _how(row)]
        for row in worst_cases(rows)
    ]
    header = ["error / bound", "ulp", "kernel", "dtype", "quantity", "regime", "worst element, and the problem again"]
    return f"## Worst cases\n\n{_table(header, lines)}"


def _how(row: Row) -> str:
    if row.failure or row.worst is None:
        return row.failure.replace("|", "\\|")
    return f"`{list(row.worst.index)}` of `{row.worst.recipe}`"


def _environment_table(environment: dict[str, str]) -> str:
    return f"## Environment\n\n{_table(['', ''], [[key, value] for key, value in environment.items()])}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines))
