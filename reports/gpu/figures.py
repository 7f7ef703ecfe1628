"""Figures of times as ratios to flash attention, against the number of keys, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import svg
from ..errors.figures import MARKERS
from ..errors.tables import number
from . import ratios
from .measurement import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (5.4, 3.0)


def panels(costs: Sequence[Cost]) -> Iterator[tuple[str, str]]:
    """Yield a heading and a drawing for each pass and head dimension."""
    groups = dict.fromkeys((one.made, one.case.head_dim) for one in costs)
    for made, head_dim in groups:
        own = [one for one in costs if (one.made, one.case.head_dim) == (made, head_dim)]
        heading = f"{made}, D = {head_dim}: time / flash"
        yield heading, svg.render(lambda axes, titles, own=own: _draw(axes, titles, own), _SIZE, heading)


def _draw(axes: Axes, titles: svg.Titles, costs: Sequence[Cost]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.axhline(1.0, color=svg.BOUND, linestyle=(0, (4, 2)), linewidth=1.1)
    for index, kernel in enumerate(dict.fromkeys(one.kernel for one in costs)):
        for causal in (False, True):
            own = [one for one in costs if (one.kernel, one.case.causal) == (kernel, causal)]
            _line(axes, titles, index, [(one, ratios.to(costs, one, "flash", "seconds")) for one in own])
    axes.set_xlabel("queries and keys n, causal where hollow")
    axes.minorticks_off()
    axes.grid(visible=True, axis="y")
    axes.tick_params(length=0)


def _line(axes: Axes, titles: svg.Titles, index: int, found: Sequence[tuple[Cost, float | None]]) -> None:
    """Draw a line through the ratios of one kernel, with its name above the first."""
    known = [(one, ratio) for one, ratio in found if ratio is not None]
    if not known:
        return
    colour, causal = svg.PALETTE[index % len(svg.PALETTE)][0], known[0][0].case.causal
    (line,) = axes.plot(
        [one.case.length for one, _ in known],
        [ratio for _, ratio in known],
        color=colour,
        marker=MARKERS[index % len(MARKERS)][0],
        fillstyle="none" if causal else "full",
        linewidth=1.3,
        markersize=4.2,
    )
    titles.attach(line, [f"{one.kernel}, {one.case.length:,} keys: {number(ratio)}" for one, ratio in known])
    if not causal:
        first, ratio = known[0]
        axes.annotate(
            first.kernel,
            (first.case.length, ratio),
            textcoords="offset points",
            xytext=(0, 5),
            fontsize=8,
            color=colour,
        )
