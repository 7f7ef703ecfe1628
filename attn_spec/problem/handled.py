"""Refusal of a problem with an option that an arithmetic does not evaluate.

Every arithmetic takes the mask from ``Problem.visible``, and the formulas of a score and of its terms from their rows.
Other options need code in each arithmetic: a factor of the weights, a number added to the row sum. ``HANDLES`` of an
arithmetic names the options that its code evaluates, and the terms whose rows it has the operations for. A problem
with another option is refused: a formula without that option would refute right answers and pass wrong ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import CHOICE, MASK, PARAMETER, SCORE, TIE, Option

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem


class NotHandledError(NotImplementedError):
    """A problem uses an option that an arithmetic does not evaluate; the message names both."""


def needs_code(row: Option) -> bool:
    """Return whether an arithmetic needs code of its own for an option."""
    if row.kind == PARAMETER:
        return row.adds_to_row_sum or needs_code(OPTIONS[row.of])
    if row.kind in (CHOICE, SCORE, TIE):
        return row.adds_to_row_sum
    return row.adds_to_row_sum or row.kind != MASK or row.sees is None


#: Names of the options that need code in each arithmetic, in the order of the table.
CODED = tuple(name for name, row in OPTIONS.items() if needs_code(row))


def not_handled(problem: Problem, handles: Collection[str]) -> list[str]:
    """Return the names of options that the problem uses, that need code, and that ``handles`` does not name."""
    return [n for n in CODED if n not in handles and OPTIONS[n].is_used(getattr(problem, n))]


def check_handled(problem: Problem, handles: Collection[str], arithmetic: str) -> None:
    """Raise :class:`NotHandledError` if the problem uses an option that the named arithmetic does not evaluate."""
    refuse(not_handled(problem, handles), arithmetic)


def refuse(missing: Collection[str], arithmetic: str) -> None:
    """Raise :class:`NotHandledError` if ``missing`` names options that the named arithmetic does not evaluate."""
    if missing:
        raise NotHandledError(
            f"{arithmetic} does not evaluate {', '.join(missing)}: write its formula there, then name it in HANDLES"
        )
