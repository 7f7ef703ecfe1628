"""The directive ``{terms}``: a table of named terms of a theorem, each with its witness.

A line is ``name | meaning``. The witness, or the reason why there is none, comes from the tables that a test executes.
"""

from typing import ClassVar

from attn_spec.reports.proof.witnesses.guards import GUARDS
from attn_spec.reports.proof.witnesses.report import WITNESSES
from attn_spec.reports.proof.witnesses.strikes import names_of
from attn_spec.reports.proof.witnesses.unwitnessed import UNWITNESSED
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def shown() -> dict[str, str]:
    """Return, for each name of a term, the witness that shows that it is needed, or the reason for none."""
    found = {
        name: f"none: {reason}" + (f" (struck as: {strike})" if str(strike) != name else "")
        for strike, reason in UNWITNESSED
        for name in names_of(strike)
    }
    found |= {guard.name: "an answer that is judged wrongly without it" for guard in GUARDS}
    for witness in reversed(WITNESSES):  # the first of several
        struck = f" (struck as: {witness.strike})" if len(names_of(witness.strike)) > 1 else ""
        found |= dict.fromkeys(names_of(witness.strike), f"{witness.stage}, {witness.way}: {witness.quantity}{struck}")
    return found


class Terms(SphinxDirective):
    """A table of the terms of a theorem: name, meaning, witness."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        """Return the table; a name without witness and reason is an error."""
        witnesses, rows = shown(), []
        for line in self.content:
            name, _, meaning = (part.strip() for part in line.partition(" | "))
            if name not in witnesses:
                raise self.error(f"no bound has a term of the name {name!r}")
            rows.append(
                [
                    [nodes.literal(name, name)],
                    self.parse_inline(meaning)[0] if meaning else [],
                    [nodes.Text(witnesses[name])],
                ]
            )
        return [_table((30, 35, 35), [[[nodes.Text(it)] for it in ("term", "meaning", "witness")]], rows)]


def _table(widths: tuple[int, ...], head: list, rows: list) -> nodes.table:
    """Return a table of cells, each a list of inline nodes."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for width in widths), cols=len(widths))
    for kind, of in ((nodes.thead, head), (nodes.tbody, rows)):
        group += kind("", *(nodes.row("", *(_entry(cell) for cell in row)) for row in of))
    return nodes.table("", group)


def _entry(cell: list[nodes.Node]) -> nodes.entry:
    return nodes.entry("", nodes.paragraph("", "", *cell))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("terms", Terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
