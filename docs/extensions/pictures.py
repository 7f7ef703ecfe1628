"""The directive ``{picture}``: a drawing that is made from the code when the site is built.

Its argument is the name of a drawing: ``bounds``, ``buffers`` or ``layers``.
"""

import tomllib
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import ClassVar

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import attn_spec
from attn_spec.contract.presets import PRESETS
from attn_spec.judgement.bound_terms import of_row
from attn_spec.kernels.presentations.packing.slots import Slots, packed, paged

#: Colours of parts in turn, which can be told apart on light and dark pages.
COLOURS = ("#4c8bc4", "#d08a1f", "#7a9f45")
#: Colour of what has no name of its own.
OTHERS = "#9a9a9a"
#: Calls whose bounds are drawn: preset, dtype, and number of keys.
CALLS = (("fp32", "float32", 64), ("fused", "bfloat16", 64), ("eager", "float16", 64), ("fused", "float32", 4096))
#: Lengths of the three sequences in the drawing of buffers.
LENGTHS = np.array([3, 5, 2])


def svg(width: int, height: int, parts: Sequence[str], says: str) -> str:
    """Return a drawing as an element of a page, with a text for readers who do not see it."""
    drawn = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(says)}" '
        f'style="width:100%;max-width:{width}px;font:13px sans-serif">{drawn}</svg>\n'
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words at a place, in the colour of the page's text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Return a filled rectangle; the colour "none" leaves its outline alone."""
    line = ' stroke="currentColor" stroke-opacity="0.4"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{line}/>'


def problem_of(dtype: str, keys: int) -> attn_spec.Problem:
    """Return a problem of one query and normal numbers."""
    return attn_spec.Recipe(query_length=1, key_length=keys, head_dim=64, dtypes=dtype).problem()


def bounds() -> str:
    """Return bars that show which named terms make up the allowed error of an output element."""
    parts, y = [], 0
    for preset, dtype, keys in CALLS:
        terms = of_row(problem_of(dtype, keys), PRESETS[preset].at(dtype), "output", (0, 0, 0, 0))
        shares = [*terms, ("all other terms", 1 - sum(term.share for term in terms))]
        parts.append(text(0, y + 14, f"{preset}, {dtype}, {keys:,} keys"))
        x = 0.0
        for place, ((name, share), colour) in enumerate(zip(shares, (*COLOURS[: len(terms)], OTHERS), strict=True)):
            parts.append(box(x, y + 22, 640 * share, 18, colour))
            parts.append(box(8, y + 48 + 18 * place, 11, 11, colour))
            parts.append(text(26, y + 58 + 18 * place, f"{100 * share:.0f} % {name}"))
            x += 640 * share
        y += 64 + 18 * len(shares)
    return svg(660, y, parts, "Shares of the named terms in the allowed error of four calls")


def buffers() -> str:
    """Return the buffers of one problem in several presentations, a colour for each sequence."""
    starts = np.cumsum(LENGTHS) - LENGTHS
    table = np.array([[4, 0, 0], [2, 5, 1], [3, 3, 3]])
    most = int(LENGTHS.max())
    rows: dict[str, Slots] = {
        "BSHD with lengths": packed(np.arange(3) * most, LENGTHS, most, 3 * most),
        "THD": packed(starts, LENGTHS, most, int(LENGTHS.sum())),
        "THD_gaps": packed(starts + np.arange(3) * 2, LENGTHS, most, int(LENGTHS.sum()) + 6),
        "paged, pages of 2": paged(table, LENGTHS, most, 6, 2),
    }
    parts = []
    for place, (name, slots) in enumerate(rows.items()):
        y = 62 * place
        parts.append(text(0, y + 14, name))
        for slot in range(slots.count):
            (entry, position) = next(map(tuple, np.argwhere(slots.of == slot)), (None, None))
            parts.append(box(38 * slot, y + 22, 36, 26, "none" if entry is None else COLOURS[entry]))
            if entry is not None:
                parts.append(text(38 * slot + 18, y + 40, f"{'abc'[entry]}{position}", "middle"))
    return svg(660, 62 * len(rows), parts, "Where three sequences lie in the buffers of four presentations")


def layers() -> str:
    """Return the folders of the package in layers; each may import those below it."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        each for each in settings["tool"]["importlinter"]["contracts"] if each["name"] == "imports only flow downward"
    )
    parts = []
    for place, layer in enumerate(contract["layers"]):
        y = 34 * place
        names = [name.strip().removeprefix("attn_spec.") for name in layer.split("|")]
        width = 656 / len(names)
        for column, name in enumerate(names):
            parts.append(box(2 + width * column, y + 2, width - 4, 28, "none"))
            parts.append(text(width * (column + 0.5), y + 21, name, "middle"))
    return svg(660, 34 * len(contract["layers"]), parts, "Layers of the package; imports go down")


DRAWINGS: dict[str, Callable[[], str]] = {"bounds": bounds, "buffers": buffers, "layers": layers}


class Picture(SphinxDirective):
    """A drawing, by its name."""

    required_arguments = 1
    option_spec: ClassVar[dict] = {}

    def run(self) -> list[nodes.Node]:
        """Return the drawing; an unknown name is an error."""
        (name,) = self.arguments
        if name not in DRAWINGS:
            raise self.error(f"no drawing has the name {name!r}; there are {', '.join(DRAWINGS)}")
        return [nodes.raw("", DRAWINGS[name](), format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
