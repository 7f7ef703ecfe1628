"""Options that an arithmetic has to have heard of, and the refusal of one that it has not.

Each arithmetic finds what a query sees by ``Problem.visible``, and runs the formulas of a score function's row. But a
term of the score, a factor of weights, or a number added to the sum of weights takes code of its own in each. There
``HANDLES`` names the options that the code evaluates. A problem that uses another one is refused: an answer to it would
be judged by a formula without that option, right ones refuted and wrong ones passed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from attn_spec.problem.option import CHOICE, MASK, PARAMETER, SCORE, Option
from attn_spec.problem.options import OPTIONS

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem


class NotHandledError(NotImplementedError):
    """A problem uses an option that an arithmetic does not evaluate; the text names both."""


def needs_code(row: Option) -> bool:
    """True if an arithmetic needs code of its own for this option."""
    if row.kind == PARAMETER:
        return row.adds_to_row_sum or needs_code(OPTIONS[row.of])
    return row.adds_to_row_sum or not (row.kind in (CHOICE, SCORE) or (row.kind == MASK and row.sees is not None))


#: The options that need code of their own, in the order of the table.
CODED = tuple(name for name, row in OPTIONS.items() if needs_code(row))


def not_handled(problem: Problem, handles: Collection[str]) -> list[str]:
    """The options in use that need code, and that are not among those handled."""
    return [n for n in CODED if n not in handles and OPTIONS[n].is_used(getattr(problem, n))]


def check_handled(problem: Problem, handles: Collection[str], arithmetic: str) -> None:
    """Raise :class:`NotHandledError` if the problem uses an option that the named arithmetic does not evaluate."""
    refuse(not_handled(problem, handles), arithmetic)


def refuse(missing: Collection[str], arithmetic: str) -> None:
    """Raise :class:`NotHandledError` if there are options that the named arithmetic does not evaluate."""
    if missing:
        raise NotHandledError(
            f"{arithmetic} does not evaluate {', '.join(missing)}: write its formula there, then name it in HANDLES"
        )
