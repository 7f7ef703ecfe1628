"""Write formulas of pages as MathML, which browsers show by themselves: nothing is loaded from outside."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOG = logging.getLogger(__name__)


def _mathml(node: nodes.Element, display: str) -> str:
    """Return the MathML of a formula, with a warning where a command is unknown."""
    formula = convert(node.astext(), display=display)
    if "\\" in formula:
        _LOG.warning("formula has a command that MathML is not made of: %s", node.astext(), location=node)
    return formula


def _inline(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.Element) -> None:
    translator.body.append(f'<div class="math">{_mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make MathML the form of formulas in HTML."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
