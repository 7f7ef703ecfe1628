"""The page on the mutants of the zoo: each with its bug, its source and the property that names the bug."""

from __future__ import annotations

from itertools import groupby

from ..proof.zoo.mutants import Mutant, load_all
from . import markdown
from .markdown import code, escaped, table


def page() -> str:
    """Return the page."""
    mutants = sorted(load_all()[0].values(), key=lambda mutant: (mutant.family, mutant.id))
    families = groupby(mutants, key=lambda mutant: mutant.family)
    return markdown.page(
        "Mutants",
        "A mutant is a correct kernel with one documented bug. The zoo holds all mutants. "
        "`attn-spec certify attn_spec.reports.proof.zoo.mutants:NAME` examines a mutant.",
        f"The zoo has {len(mutants)} mutants.",
        *(f"## {escaped(name)}\n\n{_listed(list(family))}" for name, family in families),
    )


def _listed(mutants: list[Mutant]) -> str:
    """Return a table of the mutants of a family."""
    lines = [[code(one.id), escaped(one.story), escaped(one.source), code(one.named_by or "")] for one in mutants]
    return table(["mutant", "bug", "source", "property that names the bug"], lines)
