"""A drawing as inline SVG: text stays text, colours are CSS variables, marks have a ``<title>`` shown on hover."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from attn_spec.evidence.report import NO_MATPLOTLIB, ReportError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


class FigureError(ReportError):
    """Figures cannot be drawn; the text says what to install."""


#: Light and dark colour of kernel 0, 1, ..., distinguishable with any colour vision (after Okabe and Ito).
PALETTE = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9a5c"),
    ("#00835f", "#2ecfa0"),
    ("#a8457e", "#e79ac6"),
    ("#b58100", "#f2c14e"),
    ("#5d4fb3", "#b3a6ff"),
    ("#2b97c9", "#a5dcf7"),
    ("#7b5a34", "#cfa878"),
    ("#6f7378", "#b9bec4"),
    ("#8a8d00", "#d5d85a"),
)
#: Light colours of everything that is not a kernel, by CSS variable; the page defines the dark ones.
INK, QUIET, LINE, BOUND = "#1b1d21", "#63686f", "#dfe1e4", "#8f1d1d"
VARIABLES = {INK: "ink", QUIET: "quiet", LINE: "line", BOUND: "bound"} | {
    light: f"k{index}" for index, (light, _) in enumerate(PALETTE)
}

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.edgecolor": LINE,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "path.simplify": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
}
#: Patterns of matplotlib's output that the page does not need, and what replaces them.
_SHORTER = {
    r"<defs>\s*<style.*?</style>\s*</defs>": "",
    r" font-family: [^;]*;": "",
    r' transform="rotate\(-0 [^"]*"': "",
    r"<g />": "",
    r"\s*\n\s*": "\n",
    r"  (?=[A-Za-z])": "",
}


class Titles:
    """Texts that are shown on hovering over a mark, collected while drawing."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}

    def attach(self, line: Line2D, texts: Sequence[str]) -> None:
        """Attach one text to each marker of a line, or a single one to a line without markers."""
        name = f"title-{len(self.texts)}"
        line.set_gid(name)
        self.texts[name] = list(texts)


def matplotlib() -> ModuleType:
    """Import and return matplotlib, for the figures. Raises :class:`FigureError` when it is not installed."""
    try:
        return importlib.import_module("matplotlib.figure") and importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise FigureError(NO_MATPLOTLIB) from error


def render(draw: Callable[[Axes, Titles], None], size: tuple[float, float], label: str) -> str:
    """Return the SVG element of one drawing, ``size`` in inches. Equal drawings give equal text.

    Raises :class:`FigureError` without matplotlib.
    """
    mpl, titles, buffer = matplotlib(), Titles(), io.BytesIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": label}):
        figure = mpl.figure.Figure(figsize=size, layout="constrained")
        draw(figure.subplots(), titles)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return _finished(buffer.getvalue(), titles, label)


def _finished(document: bytes, titles: Titles, label: str) -> str:
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    root = ET.fromstring(document)  # noqa: S314 -- our own output
    for name, texts in titles.texts.items():
        _entitle(root, name, texts)
    for metadata in root.findall(_tag("metadata")):
        root.remove(metadata)
    for group in root.iter(_tag("g")):
        group.attrib.pop("id", None)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute)
    for element in root.iter():
        element.attrib |= {name: _rounded(element.attrib[name]) for name in ("d", "x", "y") if name in element.attrib}
    root.attrib |= {"role": "img", "aria-label": label}
    return _compact(ET.tostring(root, encoding="unicode"))


def _entitle(root: ET.Element, name: str, texts: Sequence[str]) -> None:
    group = next(g for g in root.iter(_tag("g")) if g.get("id") == name)
    marks: list[Any] = list(group.iter(_tag("use"))) or [group]
    for mark, text in zip(marks, texts, strict=True):
        if "style" in mark.attrib:  # all marks of a line look alike, so the line says it once
            group.set("style", mark.attrib.pop("style"))
        title = ET.Element(_tag("title"))
        title.text = text
        mark.insert(0, title)


def _compact(svg: str) -> str:
    """Return an equal picture in fewer bytes, in the colours of the page."""
    for verbose, short in _SHORTER.items():
        svg = re.sub(verbose, short, svg)
    for light, name in VARIABLES.items():
        svg = svg.replace(light, f"var(--{name})")
    return svg


def _rounded(coordinates: str) -> str:
    """Round coordinates to a tenth of a point."""
    return re.sub(r"-?\d+\.\d{2,}", lambda match: f"{float(match[0]):.1f}", coordinates)


def _tag(name: str) -> str:
    return f"{{{_SVG}}}{name}"
