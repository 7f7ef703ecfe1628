"""Power against the size of a defect: curves for the suite and for the peers' rules, with their limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from ...errors import svg
from ...errors.page import Panel
from ...errors.tables import number
from ..peers.trial import PEERS
from .limits import Power, limit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panels(powers: Sequence[Power]) -> list[Panel]:
    """Return one figure for each defect and dtype."""
    return [
        Panel(heading=f"{defect}, {dtype}", svg=_figure(list(own), f"power against {defect} at {dtype}"))
        for (defect, dtype), own in groupby(powers, key=lambda power: (power.defect, power.dtype))
    ]


def own_lines(powers: Sequence[Power]) -> list[str]:
    """Return the contestants of this suite, in the order of their colours; the peers' lines are grey."""
    return [name for name in dict.fromkeys(power.contestant for power in powers) if name not in PEERS]


def limit_table(powers: Sequence[Power]) -> tuple[list[str], list[list[str]]]:
    """Return the contestants, and by defect and dtype the smallest size that each catches in half of the trials."""
    names = dict.fromkeys(power.contestant for power in powers)
    columns = [*own_lines(powers), *(name for name in names if name in PEERS)]
    rows = []
    for (defect, dtype), group in groupby(powers, key=lambda power: (power.defect, power.dtype)):
        own = list(group)
        found = [limit([power for power in own if power.contestant == name]) for name in columns]
        rows.append([defect, dtype, *map(size, found)])
    return columns, rows


def size(x: float | None) -> str:
    """Write a size as a power of two where it is one; a dash for none."""
    if x is None:
        return "\N{EN DASH}"
    exponent = math.log2(x)
    return f"2^{exponent:.0f}" if exponent.is_integer() else number(x)


def _figure(powers: Sequence[Power], label: str) -> str:
    def draw(axes: Axes, titles: svg.Titles) -> None:
        axes.set_xscale("log", base=2)
        for name in reversed(list(dict.fromkeys(power.contestant for power in powers))):
            own = sorted((power for power in powers if power.contestant == name), key=lambda power: power.size)
            _line(axes, titles, name, own, index=_rank(powers, name))
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlabel("size of the defect")
        axes.set_ylabel("share of seeds in which it is caught")
        axes.grid(visible=True, axis="y")
        axes.minorticks_off()
        axes.tick_params(length=0)

    return svg.render(draw, (5.4, 2.6), label)


def _rank(powers: Sequence[Power], name: str) -> int:
    """Return the index of a line among the suite's own; 0 for peers, which have no colour of their own."""
    return own_lines(powers).index(name) if name not in PEERS else 0


def _line(axes: Axes, titles: svg.Titles, name: str, powers: Sequence[Power], index: int) -> None:
    ours = name not in PEERS
    colour = svg.PALETTE[index][0] if ours else svg.QUIET
    (line,) = axes.plot(
        [power.size for power in powers],
        [power.caught / power.trials for power in powers],
        color=colour,
        linewidth=1.8 if ours else 0.7,
        marker="o" if ours else "",
        markersize=4.0,
        markeredgewidth=0,
    )
    told = [f"{name}: {one.caught} of {one.trials} at {size(one.size)}" for one in powers]
    titles.attach(line, told if ours else [name])
