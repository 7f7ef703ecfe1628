"""Traits of options: what properties and the search ask of a row in place of names.

A property says ``without=(positional,)`` and needs no change when another option is positional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attn_spec.problem.option import ADDEND, SCORE, TERM, WEIGHT, Option
from attn_spec.problem.options import OPTIONS

#: What is asked of a row: whether the option has some trait.
Trait = Callable[[Option], bool]


def positional(row: Option) -> bool:
    """The option depends on where in its sequence a query or a key stands."""
    return row.positional


def positional_absolutely(row: Option) -> bool:
    """The option depends on more than the distance of a key from the one that a query is aligned with."""
    return row.positional and not row.relative


def hides_keys(row: Option) -> bool:
    """The option may hide a key from a query."""
    return row.sees is not None


def changes_scores(row: Option) -> bool:
    """The option is a term of the score."""
    return row.kind in (TERM, ADDEND)


def adds_to_scores(row: Option) -> bool:
    """The option adds to each score a number of its own, so that scores of equal products are not equal."""
    return row.kind == ADDEND


def replaces_score(row: Option) -> bool:
    """The score is no scaled product of q and k."""
    return OPTIONS.get(row.of, row).kind == SCORE


def weighs_linearly(row: Option) -> bool:
    """The weights are no softmax, but the scores over their sum."""
    return not OPTIONS.get(row.of, row).exponential


def changes_weights(row: Option) -> bool:
    """The option multiplies weights, or adds to what they are divided by, so that they need not add up to 1."""
    return OPTIONS.get(row.of, row).kind == WEIGHT or adds_to_row_sum(row)


def projects(row: Option) -> bool:
    """The option makes heads of q, k and v that have one, and the output of all heads together."""
    return row.projects_values


def adds_to_values(row: Option) -> bool:
    """The option is added to values, or to the output, so that this is not linear in v."""
    return row.adds_to_values


def adds_to_row_sum(row: Option) -> bool:
    """The option is added to what weights are divided by, so that the parts of a row each have it."""
    return row.adds_to_row_sum


def bends_scores(row: Option) -> bool:
    """The score is no product of something linear in q and in k."""
    return not (row.is_product and OPTIONS.get(row.of, row).is_product)


def all_but(*names: str) -> Trait:
    """The option is none of these."""
    return lambda row: row.name not in names


def other_tensor(row: Option) -> bool:
    """The option is a tensor, but not the mask."""
    return row.tensor is not None and row.name != "mask"


def named_by(wanted: Iterable[str | Trait]) -> set[str]:
    """The names among those wanted, and the options that have a trait that is wanted."""
    found: set[str] = set()
    for one in wanted:
        found |= {one} if isinstance(one, str) else {name for name, row in OPTIONS.items() if one(row)}
    return found
