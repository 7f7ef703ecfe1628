"""Gradients by kv head, as a long problem is judged, or of a whole problem, if they are sums over heads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.judgement.long.blocks import heads_together
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS


@dataclass(frozen=True)
class GradientPart:
    """One kv head with its query heads, [1, group, ..]; or several; or a whole problem, of sums over heads."""

    problem: Problem
    #: Cotangent dO [1, group, Sq, Dv].
    cotangent: np.ndarray
    #: Cotangent dL [1, group, Sq], or None.
    lse_cotangent: np.ndarray | None
    #: Gradients by name, "dq", "dk", "dv", "dbias", ..
    found: dict[str, np.ndarray]
    #: Batch entry and kv head, the first ones of several.
    at: tuple[int, int] = (0, 0)
    #: True for several kv heads of few scores, which are judged in one piece.
    in_one_piece: bool = False


def gradient_parts_of(
    problem: Problem,
    cotangent: np.ndarray,
    found: dict[str, np.ndarray],
    lse_cotangent: np.ndarray | None = None,
    *,
    together: bool = False,
) -> list[GradientPart]:
    """Return the parts of a problem: by batch entry and kv head, unless a gradient is a sum over these.

    With ``together``, for a judgement of all rows and keys, kv heads of few scores are one part.
    """
    whole = GradientPart(problem, cotangent, lse_cotangent, found)
    if problem.projects or found.keys() - {"dq", *OF_KEYS}:
        return [whole]
    if together and (of_part := heads_together(problem)):
        return [replace(_groups(whole, *each), in_one_piece=True) for each in of_part]
    return [one_group(whole, b, g) for b, g in np.ndindex(problem.k.shape[:2])]


def one_group(part: GradientPart, b: int, g: int) -> GradientPart:
    """Return one kv head of a part, with its query heads."""
    return _groups(part, range(b, b + 1), range(g, g + 1))


def _groups(part: GradientPart, entries: range, groups: range) -> GradientPart:
    """Return some batch entries and kv heads of a part, with the query heads of these."""
    problem, dL = part.problem, part.lse_cotangent
    entry, of_keys = slice(entries.start, entries.stop), slice(groups.start, groups.stop)
    of_queries = slice(groups.start * problem.group, groups.stop * problem.group)
    heads = {"dq": of_queries, **dict.fromkeys(OF_KEYS, of_keys)}
    return GradientPart(
        problem.take("B", entries).take("H", groups),
        part.cotangent[entry, of_queries],
        None if dL is None else dL[entry, of_queries],
        {name: x[entry, heads[name]] for name, x in part.found.items()},
        (part.at[0] + entries.start, part.at[1] + groups.start),
    )


def of_first_queries(part: GradientPart, count: int) -> GradientPart:
    """Return a part of one batch entry with its first queries only; all keys stay."""
    dL, rows = part.lse_cotangent, slice(count)
    return GradientPart(
        part.problem.take("Q", range(count)),
        part.cotangent[:, :, rows],
        None if dL is None else dL[:, :, rows],
        {name: x[:, :, rows] if name == "dq" else x for name, x in part.found.items()},
        part.at,
    )


def is_additive(part: GradientPart) -> bool:
    """Return whether the gradients of a part can be made of sums over blocks of rows.

    Operands that are formulas of q and k, without a matrix, have such sums; parameters of these formulas do not.
    """
    problem, score = part.problem, score_of(part.problem)
    if problem.feature_map is not None or problem.projects or part.found.keys() - {"dq", *OF_KEYS, "dbias", "dsinks"}:
        return False
    of_operands = score.pairs is None and score.queries.pulls_by is None and score.keys.pulls_by is None
    return score.plain or (of_operands and not problem.latent)


def first_head(part: GradientPart) -> int:
    """Return the number of the part's first query head in the full problem."""
    return part.at[1] * part.problem.query_group
