"""Rows as figures: error against key length and score magnitude, error / bound by regime.

``order`` of the kernels decides their colour and marker, so that a kernel looks alike on every figure of a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from . import svg
from .tables import SUPERSCRIPT, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .rows import Row

#: Marker of kernel 0, 1, ... for matplotlib, and the same as text.
MARKERS = (
    ("o", "●"),
    ("s", "■"),
    ("^", "▲"),
    ("D", "◆"),
    ("v", "▼"),
    ("P", "✚"),
    ("X", "✖"),
    ("p", "⬟"),
    ("h", "⬢"),
    ("d", "♦"),
)
#: Smaller values are drawn here: an error of 1/32 ulp means that the result is the rounded exact one.
ULP_FLOOR, RATIO_FLOOR = 2.0**-5, 1e-4
#: Line of the bound.
_DASHED: dict[str, Any] = {"color": svg.BOUND, "linestyle": (0, (4, 2)), "linewidth": 1.1}
_X_LABELS = {"length": "keys", "magnitude": "standard deviation of the scores"}


def error_against(rows: Sequence[Row], order: Sequence[str], sweep: str, quantity: str) -> str:
    """Draw the largest error in ulp along the sweep ``length`` or ``magnitude``, as SVG.

    A line per kernel; dashed, for each contract, the largest error that the bound allows.
    """
    chosen = [row for row in rows if row.sweep == sweep and row.quantity == quantity and row.elements]

    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for kernel, own in groupby(chosen, key=lambda row: row.kernel):
            _draw_errors(axes, titles, list(own), order.index(kernel))
        _draw_bounds(axes, titles, chosen)
        axes.set_xlabel(_X_LABELS[sweep])
        axes.set_ylabel("largest error, ulp")
        axes.xaxis.set_major_formatter(_tick)
        axes.yaxis.set_major_formatter(_tick)
        _plain(axes, grid="y")

    return svg.render(draw, (5.4, 3.3), f"{quantity}: largest error along the {sweep} sweep")


def ratio_by_regime(rows: Sequence[Row], order: Sequence[str], quantity: str) -> str:
    """Draw the largest error / bound in each regime, a mark per kernel, the bound at 1, as SVG."""
    chosen = [row for row in rows if row.sweep == "regime" and row.quantity == quantity and row.elements]
    regimes = list(dict.fromkeys(row.regime for row in chosen))

    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log")
        (line,) = axes.plot([1, 1], [-1, len(regimes)], **_DASHED)
        titles.attach(line, ["the bound"])
        for kernel, group in groupby(chosen, key=lambda row: row.kernel):
            own = list(group)
            where = [regimes.index(row.regime) for row in own]
            (line,) = axes.plot(
                _shown([row.ratio.max for row in own], RATIO_FLOOR), where, **_style(order.index(kernel), 0.0)
            )
            titles.attach(line, [_ratio_title(row) for row in own])
        axes.set_yticks(range(len(regimes)), regimes, fontsize=8)
        axes.set_ylim(len(regimes) - 0.4, -0.6)
        axes.set_xlabel("largest error / bound")
        axes.xaxis.set_major_formatter(_tick)
        _plain(axes, grid="both")

    return svg.render(draw, (5.4, 0.6 + 0.165 * len(regimes)), f"{quantity}: largest error / bound by regime")


def _draw_errors(axes: Axes, titles: svg.Titles, rows: Sequence[Row], index: int) -> None:
    rows = sorted(rows, key=_x)
    (line,) = axes.plot(
        [_x(row) for row in rows], _shown([row.row_ulps.max for row in rows], ULP_FLOOR), **_style(index, 1.3)
    )
    titles.attach(line, [_error_title(row) for row in rows])


def _draw_bounds(axes: Axes, titles: svg.Titles, rows: Sequence[Row]) -> None:
    ends: dict[str, tuple[float, float]] = {}
    for contract in sorted({row.contract for row in rows}):
        largest = _largest_allowance([row for row in rows if row.contract == contract])
        (line,) = axes.plot(list(largest), list(largest.values()), **_DASHED)
        titles.attach(line, [f"bound of the contract {contract}"])
        ends[contract.partition("(")[0]] = list(largest.items())[-1]
    for name, end in _apart(ends, axes).items():
        place: dict[str, Any] = {"textcoords": "offset points", "xytext": (4, 0), "va": "center"}
        axes.annotate(name, end, annotation_clip=False, fontsize=8, color=svg.BOUND, **place)


def _largest_allowance(rows: Sequence[Row]) -> dict[float, float]:
    """Return the bound's largest value in ulp at each x, in the order of x."""
    largest: dict[float, float] = {}
    for row in sorted(rows, key=_x):
        largest[_x(row)] = max(largest.get(_x(row), 0.0), row.row_allowed.max)
    return {x: y for x, y in largest.items() if 0 < y < math.inf}


def _apart(ends: dict[str, tuple[float, float]], axes: Axes) -> dict[str, tuple[float, float]]:
    """Return names at the ends of lines; names that would overlap become one, at the place of the lowest."""
    low, high = axes.get_ylim()
    line_height = (high / low) ** 0.055
    merged: list[tuple[str, tuple[float, float]]] = []
    for name, end in sorted(ends.items(), key=lambda item: item[1][1]):
        if merged and end[1] < merged[-1][1][1] * line_height:
            merged[-1] = (f"{merged[-1][0]}, {name}", merged[-1][1])
        else:
            merged.append((name, end))
    return dict(merged)


def _x(row: Row) -> float:
    return row.key_length if row.sweep == "length" else row.magnitude


def _shown(values: Sequence[float], floor: float) -> list[float]:
    """Return the places of values on a logarithmic axis: at least the floor, infinity a decade above the rest."""
    top = max((value for value in values if value < math.inf), default=1.0)
    return [min(max(value, floor), max(10 * top, floor)) for value in values]


def _style(index: int, linewidth: float) -> dict[str, Any]:
    return {
        "color": svg.PALETTE[index % len(svg.PALETTE)][0],
        "marker": MARKERS[index % len(MARKERS)][0],
        "markersize": 5.0 if MARKERS[index % len(MARKERS)][0] in "PX" else 4.2,
        "markeredgewidth": 0,
        "linestyle": "-" if linewidth else "none",
        "linewidth": linewidth,
    }


def _error_title(row: Row) -> str:
    keys = "1 key" if row.key_length == 1 else f"{row.key_length} keys"
    at = keys if row.sweep == "length" else f"scores of deviation {number(row.magnitude)}"
    return f"{row.kernel}, {at}: {number(row.row_ulps.max)} ulp of {number(row.row_allowed.max)}"


def _ratio_title(row: Row) -> str:
    return f"{row.kernel}, {row.regime}: {number(row.ratio.max)} of the bound, {number(row.row_ulps.max)} ulp"


def _plain(axes: Axes, grid: Literal["y", "both"]) -> None:
    axes.minorticks_off()
    axes.grid(visible=True, axis=grid)
    axes.tick_params(length=0)


def _tick(x: float, _: float = 0) -> str:
    """Write a power of two or of ten as a reader does: 1/16, 256, 10⁵."""
    if not 1e-3 < x < 9_999:
        return f"10{str(round(math.log10(x))).translate(SUPERSCRIPT)}"
    return f"1/{1 / x:g}" if x < 1 and math.log2(x).is_integer() else f"{x:g}"
