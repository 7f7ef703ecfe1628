"""Traits of options: predicates on a row, which properties and the search use in place of names.

A property says ``without=(positional,)`` and needs no change when another option is positional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import ADDEND, SCORE, TERM, WEIGHT, Option

#: Predicate that says whether an option has a trait.
Trait = Callable[[Option], bool]


def positional(row: Option) -> bool:
    """Return whether the option depends on the position of a query or key in its sequence."""
    return row.positional


def positional_absolutely(row: Option) -> bool:
    """Return whether the option is positional and depends on more than the distance of a key from the diagonal."""
    return row.positional and not row.relative


def moves_diagonal(row: Option) -> bool:
    """Return whether the option says where sequences begin or end, so that diagonals start elsewhere."""
    return row.moves_diagonal


def hides_keys(row: Option) -> bool:
    """Return whether the option may mask a key."""
    return row.sees is not None


def changes_scores(row: Option) -> bool:
    """Return whether the option is a term of the score."""
    return row.kind in (TERM, ADDEND)


def adds_to_scores(row: Option) -> bool:
    """Return whether the option adds a number of its own to each score, so that equal products may differ in score."""
    return row.kind == ADDEND


def replaces_score(row: Option) -> bool:
    """Return whether the option, or the option that it belongs to, replaces the score scale * q.k."""
    return OPTIONS.get(row.of, row).kind == SCORE


def weighs_linearly(row: Option) -> bool:
    """Return whether the weights are scores divided by their sum, instead of a softmax."""
    return not OPTIONS.get(row.of, row).exponential


def changes_weights(row: Option) -> bool:
    """Return whether the option multiplies weights or adds to the row sum, so that weights need not add up to 1."""
    return OPTIONS.get(row.of, row).kind == WEIGHT or adds_to_row_sum(row)


def projects(row: Option) -> bool:
    """Return whether the option projects the one head of q, k and v to many heads, or all heads to the output."""
    return row.projects_values


def adds_to_values(row: Option) -> bool:
    """Return whether the option is added to values or to the output, so that the output is not linear in v."""
    return row.adds_to_values


def adds_to_row_sum(row: Option) -> bool:
    """Return whether the option is added to the row sum, so that partial sums of one row would each contain it."""
    return row.adds_to_row_sum


def ties_values(row: Option) -> bool:
    """Return whether the option says that values are columns of keys, so that neither changes alone."""
    return row.ties_values


def lacks_products(row: Option) -> bool:
    """Return whether the option says that q and k are 0, so that neither has any influence."""
    return row.lacks_products


def bends_scores(row: Option) -> bool:
    """Return whether the score is not one product of operands that have q and k as factors."""
    return not (row.is_product and OPTIONS.get(row.of, row).is_product)


def all_but(*names: str) -> Trait:
    """Return the trait of options that have none of these names."""
    return lambda row: row.name not in names


def other_tensor(row: Option) -> bool:
    """Return whether the option is a tensor other than the mask."""
    return row.tensor is not None and row.name != "mask"


def named_by(wanted: Iterable[str | Trait]) -> set[str]:
    """Return the wanted names, and the names of the options that have a wanted trait."""
    found: set[str] = set()
    for one in wanted:
        found |= {one} if isinstance(one, str) else {name for name, row in OPTIONS.items() if one(row)}
    return found
