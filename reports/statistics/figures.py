"""Measured statistics with their intervals over exact curves, and what tiles save, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import svg
from ..errors.figures import MARKERS
from ..errors.tables import number
from . import memory
from .memory import Peak
from .rows import STATISTICS, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours of what is divided by sqrt(d) and what is not.
SCALED, UNSCALED = svg.PALETTE[0][0], svg.PALETTE[1][0]
AXES = {"d": "head dimension d", "n": "keys n"}
_SIZE = (5.4, 3.0)
_DASHED: dict[str, Any] = {"color": svg.BOUND, "linestyle": (0, (4, 2)), "linewidth": 1.1}


def against(points: Sequence[Point], statistic: str, axis: str) -> str:
    """Draw one statistic against d or n: marks for kernels, bars for intervals, lines for exact values."""
    chosen = along(points, statistic, axis)
    order = list(dict.fromkeys(point.kernel for point in points))

    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log", base=2)
        if statistic == "score_variance":
            axes.set_yscale("log", base=2)
        for scaled in (True, False):
            own = [point for point in chosen if point.scaled == scaled]
            if own:
                _curve(axes, titles, own, axis)
            for kernel in dict.fromkeys(point.kernel for point in own):
                _marks(axes, titles, [point for point in own if point.kernel == kernel], axis, order.index(kernel))
        _finish(axes, AXES[axis], "")

    return svg.render(draw, _SIZE, f"{STATISTICS[statistic].title} against {AXES[axis]}")


def along(points: Sequence[Point], statistic: str, axis: str) -> list[Point]:
    """Return the points of a statistic that differ in d or in n alone: those at the most common value of the other."""
    own = [point for point in points if point.statistic == statistic]
    others = [point.n if axis == "d" else point.d for point in own]
    fixed = max(dict.fromkeys(others), key=others.count, default=0)
    return [point for point, other in zip(own, others, strict=True) if other == fixed]


def _curve(axes: Axes, titles: svg.Titles, own: Sequence[Point], axis: str) -> None:
    """Draw the exact values between the measured places."""
    ends = [getattr(point, axis) for point in own]
    places = np.unique(np.geomspace(min(ends), max(ends), 25).round().astype(int)).tolist()
    row, first = STATISTICS[own[0].statistic], own[0]
    sigmas = [math.sqrt(place) if axis == "d" and not first.scaled else first.sigma for place in places]
    keys = [place if axis == "n" else first.n for place in places]
    values = [float(row.exact(n, sigma).mid()) for n, sigma in zip(keys, sigmas, strict=True)]
    (line,) = axes.plot(places, values, color=_colour(own[0]), linewidth=1.3)
    titles.attach(line, [f"exact, {words(own[0])}"])


def _marks(axes: Axes, titles: svg.Titles, own: Sequence[Point], axis: str, index: int) -> None:
    """Draw the points that an axis has a place for: finite, and above 0 if it is logarithmic; a table has the rest."""
    least = 0.0 if axes.get_yscale() == "log" else -math.inf
    own = [point for point in own if least < point.measured < math.inf]
    if not own:
        return
    for point in own:
        x = getattr(point, axis)
        axes.plot([x, x], [point.low, point.high], color=_colour(point), linewidth=1.0, alpha=0.6)
    (line,) = axes.plot(
        [getattr(point, axis) for point in own],
        [point.measured for point in own],
        color=_colour(own[0]),
        marker=MARKERS[index % len(MARKERS)][0],
        markersize=4.2,
        markeredgewidth=0,
        linestyle="none",
    )
    titles.attach(line, [f"{each.kernel}, d = {each.d}, n = {each.n}, {words(each)}: {_told(each)}" for each in own])


def words(point: Point) -> str:
    """Return the name of a point's line: "with 1/sqrt(d)" or "without"."""
    return "with 1/sqrt(d)" if point.scaled else "without"


def _told(point: Point) -> str:
    exact = (point.exact_low + point.exact_high) / 2
    return f"{number(point.measured)} in [{number(point.low)}, {number(point.high)}], exact {number(exact)}"


def _colour(point: Point) -> str:
    return SCALED if point.scaled else UNSCALED


def held(peaks: Sequence[Peak]) -> str:
    """Draw the measured bytes that a call holds against n; dashed, the least for eager attention."""

    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for index, (kernel, group) in enumerate(groupby(peaks, key=lambda peak: peak.kernel)):
            sizes = {peak.n: peak.bytes for peak in group}
            _line(axes, titles, kernel, index=index, values=sizes, told=megabytes)
        places = sorted({peak.n for peak in peaks})
        (line,) = axes.plot(places, [memory.least_eager(n) for n in places], **_DASHED)
        titles.attach(line, ["scores and weights, 2 n² numbers"])
        _finish(axes, "queries and keys n", "bytes")

    return svg.render(draw, _SIZE, "memory of a call against the number of keys")


def counted() -> str:
    """Draw the ratio of eager attention to tiles in operations and in bytes moved, against n."""

    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log", base=2)
        for index, what in enumerate(("flops", "bytes")):
            costs = {n: (memory.eager_cost(n, memory.DIM), memory.tiled_cost(n, memory.DIM)) for n in memory.LENGTHS}
            ratios = {n: getattr(eager, what) / getattr(tiled, what) for n, (eager, tiled) in costs.items()}
            _line(axes, titles, what, index=index, values=ratios, told=number)
        axes.set_ylim(bottom=0)
        _finish(axes, "queries and keys n", "eager / tiled")

    return svg.render(draw, _SIZE, "operations and bytes of eager attention over those of tiles")


def _line(
    axes: Axes, titles: svg.Titles, name: str, *, index: int, values: Mapping[int, float], told: Callable[[Any], str]
) -> None:
    """Draw a line of values by n, with its name above its first mark."""
    colour, marker = svg.PALETTE[index][0], MARKERS[index][0]
    (line,) = axes.plot(list(values), list(values.values()), color=colour, marker=marker, linewidth=1.3, markersize=4.2)
    titles.attach(line, [f"{name}, {n:,} keys: {told(value)}" for n, value in values.items()])
    first: tuple[float, float] = next(iter(values.items()))
    axes.annotate(name, first, textcoords="offset points", xytext=(0, 5), fontsize=8, color=colour)


def megabytes(size: int) -> str:
    """Write a number of bytes as pages do."""
    return f"{number(size / 2**20)} MiB"


def _finish(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.minorticks_off()
    axes.grid(visible=True, axis="y")
    axes.tick_params(length=0)
