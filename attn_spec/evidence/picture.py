"""A page that shows a refuted problem by head: the mask, the true weights, and the errors relative to their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from attn_spec.judgement.analysis import analysis_of
from attn_spec.judgement.measure import Measurement
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import QUANTITIES

#: Largest number of rows, and of columns, of a panel; a larger matrix is cropped around the worst element.
MOST = 48
#: Largest number of heads shown: those with the largest ratio.
HEADS = 4
#: Largest number of scores of a problem whose weights are computed for the page.
SCORES = 2**22
#: Side of a cell in pixels, in a large panel and at most; and side of a panel that cells fill between these limits.
LEAST, LARGEST, PANEL = 11, 32, 192
#: Classes of cells: the largest error / bound of each, and its words.
CLASSES = ((0.1, "up to a tenth of the bound"), (1.0, "up to the bound"), (10.0, "up to 10 times the bound"),
           (1e3, "up to 1,000 times"), (np.inf, "more, or NaN"))  # fmt: skip
#: Further classes of a cell.
NOT_JUDGED, SEEN = -1, len(CLASSES)
#: Names of axes.
_AXES = {"Q": "query", "K": "key", "D": "column", "V": "column"}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --none: #d8dee4;
  --c0: #cfe3f5; --c1: #6ea8dc; --c2: #f6c667; --c3: #e2711d; --c4: #a4161a; --seen: #3573b1; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --none: #30363d;
  --c0: #163a5c; --c1: #3f7fbf; --c2: #b98617; --c3: #e2711d; --c4: #ff5a5f; --seen: #79b8ff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 1.5rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: clamp(1.2rem, 4vw, 2rem); overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--none); }
.panels { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; max-width: 100%; overflow-x: auto; }
figcaption { max-width: 26rem; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } .none { fill: var(--none); }
.seen { fill: var(--seen); } .worst { fill: none; stroke: var(--ink); stroke-width: 2; }
.key span { display: inline-block; width: 1em; height: 1em; vertical-align: -.15em; margin-right: .3em; }
.key li { display: inline-block; margin-right: 1.2em; } .key { padding: 0; }
""" + "".join(f".c{n} {{ fill: var(--c{n}); background: var(--c{n}); }} " for n in range(len(CLASSES)))


@dataclass(frozen=True)
class _Panel:
    """A matrix of cells, each with a class of the style and an opacity, and the cell to mark."""

    title: str
    axes: tuple[str, str]
    classes: np.ndarray
    opacity: np.ndarray
    marked: tuple[int, int] | None
    #: Text for readers who do not see the picture.
    says: str


def page(title: str, block: str, problem: Problem, measurement: Measurement | None) -> str:
    """Return a self-contained HTML page: the failure ``block``, and panels for the worst heads.

    ``measurement`` is the measurement of the refuted quantity, of shape [B, H, rows, columns] or [B, H, rows]. Without
    one, as in a comparison of two answers bit by bit, the page shows masks and weights only.
    """
    parts = ["<h2>How to read this page</h2>", f"<p>{_how_to_read(measurement)}</p>"]
    parts += [f"<ul class=key>{_key()}</ul>"] if measurement is not None else []
    parts += [f"<h2>The failure</h2><pre>{escape(block)}</pre>"]
    for batch, head in _heads(measurement):
        panels = [*_of_problem(problem, measurement, batch, head), *_of_errors(measurement, batch, head)]
        parts.append(f"<h2>Batch entry {batch}, head {head}</h2><div class=panels>{''.join(map(_svg, panels))}</div>")
    meta = '<meta charset=utf-8><meta name=viewport content="width=device-width, initial-scale=1">'
    head_of_page = f"<head>{meta}<title>{escape(title)}</title><style>{STYLE}</style></head>"
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f"<!doctype html>\n<html lang=en>{head_of_page}<body>{body}</body></html>\n"


def _how_to_read(measurement: Measurement | None) -> str:
    """Return a sentence on what the panels show."""
    seen = "The first panel of a head shows which keys each query sees, the second the true weights, darker for larger."
    if measurement is None:
        return f"{seen} No bound was exceeded: answers that must be equal were not."
    what = f"the error of {measurement.name} over the error that the contract allows"
    return f"{seen} The third is {what}, whose worst element is framed; grey cells are not judged."


def _key() -> str:
    return "".join(f"<li><span class=c{n}></span>{words}</li>" for n, (_, words) in enumerate(CLASSES))


def _heads(measurement: Measurement | None) -> list[tuple[int, int]]:
    """Return the ``HEADS`` heads with the largest ratios above 1; if no ratio is above 1, the head with the largest."""
    if measurement is None or measurement.got.ndim < 3 or not measurement.got.size:
        return [(0, 0)]
    ratios = np.nan_to_num(measurement.ratios, nan=-1.0)
    worst = ratios.reshape(*ratios.shape[:2], -1).max(-1)
    order = np.argsort(-worst, axis=None, kind="stable")[:HEADS]
    chosen = [(int(b), int(h)) for b, h in (np.unravel_index(int(place), worst.shape) for place in order)]
    return [place for place in chosen if worst[place] > 1] or chosen[:1]


def _of_problem(problem: Problem, measurement: Measurement | None, batch: int, head: int) -> Iterator[_Panel]:
    """Yield mask and weights of a query head; for a kv head, those of the first query head that reads it."""
    shape = problem.score_shape
    if not 0 < math.prod(shape) <= SCORES:
        return
    axes = QUANTITIES[measurement.name].axes if measurement is not None else ""
    query_head = head * problem.group if "G" in axes else head
    at = min(batch, shape[0] - 1), min(query_head, shape[1] - 1)
    ratios = _matrix(measurement, batch, head)
    worst = 0 if ratios is None else _worst(ratios)[0]
    cut = _around((worst if axes[2:3] == "Q" else 0, worst if axes[2:3] == "K" else 0), shape[2:])
    seen, weights = problem.visible[at], np.nan_to_num(analysis_of(problem).intermediates.P[at])
    says = f"{int(seen.sum())} of {seen.size} pairs of a query and a key are visible{_part(cut, seen.shape)}"
    yield _Panel("who sees whom", ("query", "key"), *_shades(seen[cut].astype(float)), None, says)
    says = f"true weights, the largest {weights.max(initial=0.0):.3g}{_part(cut, seen.shape)}"
    yield _Panel("weights", ("query", "key"), *_shades(weights[cut]), None, says)


def _of_errors(measurement: Measurement | None, batch: int, head: int) -> Iterator[_Panel]:
    """Yield the panel of error / bound of a head, if it was measured."""
    ratios = _matrix(measurement, batch, head)
    if ratios is None or measurement is None:
        return
    worst, axes = _worst(ratios), QUANTITIES[measurement.name].axes
    cut = _around(worst, ratios.shape)
    found = ratios[cut]
    classes = np.where(np.isnan(found), NOT_JUDGED, np.searchsorted([limit for limit, _ in CLASSES[:-1]], found))
    says = f"the largest {ratios[worst]:.3g}, at row {worst[0]}, column {worst[1]}; "
    says += f"{int((ratios > 1).sum())} of {ratios.size} are above 1{_part(cut, ratios.shape)}"
    named = [_AXES.get(axis, "row") for axis in f"{axes[2:4]:<2}"]
    place = worst[0] - cut[0].start, worst[1] - cut[1].start
    title = f"{measurement.name}, error / bound"
    yield _Panel(title, (named[0], named[1]), classes, np.ones(found.shape), place, says)


def _matrix(measurement: Measurement | None, batch: int, head: int) -> np.ndarray | None:
    """Return the ratios of a head, [rows, columns]; a log-sum-exp has one column. None if there is no measurement."""
    if measurement is None or measurement.got.ndim < 3 or not measurement.got.size:
        return None
    return np.atleast_2d(measurement.ratios[batch, head].T).T


def _worst(ratios: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(int(np.argmax(np.nan_to_num(ratios, nan=-1.0))), ratios.shape)
    return int(row), int(column)


def _around(place: tuple[int, int], shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Return at most ``MOST`` rows and columns around an element."""
    firsts = [min(max(at - MOST // 2, 0), max(length - MOST, 0)) for at, length in zip(place, shape, strict=True)]
    rows, columns = (slice(first, min(first + MOST, n)) for first, n in zip(firsts, shape, strict=True))
    return rows, columns


def _part(cut: tuple[slice, slice], shape: tuple[int, ...]) -> str:
    """Return text that names the shown part of a matrix; empty if the whole is shown."""
    if all(part.stop - part.start == length for part, length in zip(cut, shape, strict=True)):
        return ""
    rows, columns = (f"{part.start} to {part.stop - 1}" for part in cut)
    return f"; shown are rows {rows} and columns {columns} of {shape[0]} x {shape[1]}"


def _shades(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return one class for all cells, and opacities that are larger for larger values."""
    return np.where(values > 0, SEEN, NOT_JUDGED), np.clip(values, 0.0, 1.0)


def _svg(panel: _Panel) -> str:
    """Return a figure with its title, axes and text alternative."""
    rows, columns = panel.classes.shape
    side = min(max(PANEL // max(rows, columns, 1), LEAST), LARGEST)
    names = {NOT_JUDGED: "none", SEEN: "seen"}
    shades = np.where(panel.classes == SEEN, 0.15 + 0.85 * panel.opacity, 1.0)
    cells = [
        _cell(side, i, j, names.get(int(kind), f"c{int(kind)}"), float(shades[i, j]))
        for (i, j), kind in np.ndenumerate(panel.classes)
    ]
    cells += [_cell(side, *panel.marked, "worst")] if panel.marked is not None else []
    said = escape(f"{panel.title}: {panel.says}", quote=True)
    size = f'width="{max(columns * side, 230) + 24}" height="{rows * side + 64}"'
    above = f'<text x="20" y="12">{escape(panel.title)}</text><text x="20" y="28">{panel.axes[1]}</text>'
    left = f'<text transform="translate(12 {34 + max(rows * side, 40)}) rotate(-90)">{panel.axes[0]}</text>'
    drawn = f'{above}{left}<g transform="translate(20 34)">{"".join(cells)}</g>'
    svg = f'<svg role="img" aria-label="{said}" {size}>{drawn}</svg>'
    return f"<figure>{svg}<figcaption>{escape(panel.says)}</figcaption></figure>"


def _cell(side: int, row: int, column: int, name: str, opacity: float = 1.0) -> str:
    shade = "" if opacity == 1 else f' fill-opacity="{opacity:.2f}"'
    place = f'x="{column * side}" y="{row * side}" width="{side - 1}" height="{side - 1}"'
    return f'<rect class="{name}" {place}{shade}/>'
