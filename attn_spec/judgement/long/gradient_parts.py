"""Gradients by kv head, as a long problem is judged, or of a whole problem, if they are sums over heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS


@dataclass(frozen=True)
class GradientPart:
    """One kv head with its query heads, [1, group, ..]; or a whole problem, if gradients are sums over heads."""

    problem: Problem
    #: Cotangent dO [1, group, Sq, Dv].
    cotangent: np.ndarray
    #: Cotangent dL [1, group, Sq], or None.
    lse_cotangent: np.ndarray | None
    #: Gradients by name, "dq", "dk", "dv", "dbias", ..
    found: dict[str, np.ndarray]
    #: Batch entry and kv head.
    at: tuple[int, int] = (0, 0)


def gradient_parts_of(
    problem: Problem,
    cotangent: np.ndarray,
    found: dict[str, np.ndarray],
    lse_cotangent: np.ndarray | None = None,
) -> list[GradientPart]:
    """Return the parts of a problem: by batch entry and kv head, unless a gradient is a sum over these."""
    whole = GradientPart(problem, cotangent, lse_cotangent, found)
    if problem.projects or found.keys() - {"dq", *OF_KEYS}:
        return [whole]
    return [one_group(whole, b, g) for b, g in np.ndindex(problem.k.shape[:2])]


def one_group(part: GradientPart, b: int, g: int) -> GradientPart:
    """Return one kv head of a part, with its query heads."""
    problem, dL = part.problem, part.lse_cotangent
    entry, group = slice(b, b + 1), slice(g * part.problem.group, (g + 1) * part.problem.group)
    heads = {"dq": group, **dict.fromkeys(OF_KEYS, slice(g, g + 1))}
    return GradientPart(
        problem.take("B", [b]).take("H", [g]),
        part.cotangent[entry, group],
        None if dL is None else dL[entry, group],
        {name: x[entry, heads[name]] for name, x in part.found.items()},
        (part.at[0] + b, part.at[1] + g),
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


def is_additive(problem: Problem) -> bool:
    """Return whether the gradients of a problem can be made of sums over blocks of rows."""
    return score_of(problem).plain and problem.feature_map is None and not problem.projects


def first_head(part: GradientPart) -> int:
    """Return the number of the part's first query head in the full problem."""
    return part.at[1] * part.problem.query_group
