"""Terms of a score: what becomes of the product of q' and k', one row each, in the order of application.

A row is what the suite knows of one term. The definition, balls, float64, error-free products, glances, bounds and
emulated kernels loop over the rows of a problem. Each evaluates the formulas in an arithmetic of its own
(``operations``), with numbers of the option as ``p["its name"]`` and |i' - j| as ``p["distances"]``. The error of a
term follows from its formula (``bounds.running_error``), unless ``bounds.forward.score_bounds`` has a sharper theorem.

A term rises with the score. Terms that add a number to each pair come last, and so the gradient of the finished score
is that of each sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.attention.operations import Elements, Scaling, Slopes
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import ADDEND

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem

#: Numbers of options by name.
Given = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Term:
    """All that is known of one term y of a score s."""

    formula: str
    #: (arithmetic, s, p) -> y.
    value: Callable[[Elements, Any, Given], Any]
    #: (arithmetic, s, y, p) -> dy/ds of a term that bends the score; None for the scale and for what is added.
    slope: Callable[[Slopes, Any, Any, Given], Any] | None = None
    #: Operations of ``operations`` that the formulas of value and slope use beside ``+``, ``-``, ``*`` and ``/``.
    needs: tuple[str, ...] = ()
    slope_needs: tuple[str, ...] = ()
    #: True if s is divided by the option first. Kernels may then multiply by a scale that has been divided by it.
    divides: bool = False
    #: True if the option is in units of a score, so that a kernel that counts scores in units of ln 2 converts it.
    is_score: bool = True
    #: (h, p in float64) -> the largest y for |s| <= h.
    at_most: Callable[[Any, Given], Any]


#: The terms by option, in the order of application.
TERMS: dict[str, Term] = {
    "scale": Term(
        formula="sigma s",
        value=lambda A, s, p: p["scale"] * s,
        is_score=False,
        at_most=lambda h, p: abs(p["scale"]) * h,
    ),
    # Real factors of q and of k, so that they multiply the product; each is above 0.
    "q_descale": Term(
        formula="d_q s",
        value=lambda A, s, p: s * p["q_descale"],
        slope=lambda A, s, y, p: p["q_descale"],
        is_score=False,
        at_most=lambda h, p: h * np.max(p["q_descale"], initial=0.0),
    ),
    "k_descale": Term(
        formula="d_k s",
        value=lambda A, s, p: s * p["k_descale"],
        slope=lambda A, s, y, p: p["k_descale"],
        is_score=False,
        at_most=lambda h, p: h * np.max(p["k_descale"], initial=0.0),
    ),
    "softcap": Term(
        formula="c tanh(s / c)",
        value=lambda A, s, p: p["softcap"] * A.tanh(s / p["softcap"]),
        slope=lambda A, s, y, p: A.slope_of_tanh(s, y, p["softcap"]),
        needs=("tanh",),
        slope_needs=("slope_of_tanh",),
        divides=True,
        at_most=lambda h, p: np.minimum(h, p["softcap"]),
    ),
    "bias": Term(
        formula="s + bias",
        value=lambda A, s, p: s + p["bias"],
        at_most=lambda h, p: h + np.where(np.isfinite(p["bias"]), p["bias"], 0.0).max(initial=0.0),
    ),
    # The slope m is that of Press et al., arXiv 2108.12409.
    "alibi_slopes": Term(
        formula="s - m |i' - j|",
        value=lambda A, s, p: s - p["alibi_slopes"] * p["distances"],
        at_most=lambda h, p: h,
    ),
}
#: Names of terms that bend the score: all between the scale and the terms that are added.
BENDS = tuple(name for name in TERMS if name != "scale" and OPTIONS[name].kind != ADDEND)
#: Names of terms that are factors of the operands of a product.
DESCALES = ("q_descale", "k_descale")
#: Names of terms that are added.
ADDENDS = tuple(name for name in TERMS if OPTIONS[name].kind == ADDEND)
assert tuple(TERMS) == ("scale", *BENDS, *ADDENDS), "the scale comes first, and terms that are added come last"


def known_to(A: object, *, slopes: bool = False) -> tuple[str, ...]:
    """Return the names of the terms whose values, and ``slopes`` too, an arithmetic has the operations for."""
    needed = {name: row.needs + (row.slope_needs if slopes else ()) for name, row in TERMS.items()}
    return tuple(name for name, operations in needed.items() if all(hasattr(A, each) for each in operations))


def used(problem: Problem, names: tuple[str, ...] = tuple(TERMS)) -> dict[str, Term]:
    """Return the rows of those ``names`` that a problem uses, in the order of application; it has a scale always."""
    return {name: TERMS[name] for name in names if name == "scale" or getattr(problem, name) is not None}


def numbers_of(problem: Problem, names: tuple[str, ...] = (*BENDS, *ADDENDS)) -> dict[str, np.ndarray]:
    """Return the numbers of terms, floats but for distances, each of four axes that broadcast to [B, Hq, Sq, Sk]."""
    found = {name: problem.by_pair(name) for name in used(problem, names)}
    if any(OPTIONS[name].positional for name in found):
        found["distances"] = abs(problem.distances)
    return found


def numbers_in_head(A: Scaling, problem: Problem, b: int, h: int) -> dict[str, Any]:
    """Return the scale, and the numbers of terms at the visible pairs of one head, [1, n]; of one number, [1, 1]."""
    visible = problem.visible[b, h]

    def in_head(x: np.ndarray) -> np.ndarray:
        return x.reshape(1, 1) if x.size == 1 else np.broadcast_to(x, problem.score_shape)[b, h][visible][None]

    given = {name: A.given(in_head(x)) for name, x in numbers_of(problem).items()}
    return {"scale": scale_of(A, problem), **given}


def applied(A: Elements, problem: Problem, s: Any, p: Given, names: tuple[str, ...] = tuple(TERMS)) -> dict[str, Any]:
    """Return what becomes of s after each of the named terms that a problem uses, by option."""
    found = {}
    for name, row in used(problem, names).items():
        found[name] = s = row.value(A, s, p)
    return found


def slope_of_bends(A: Slopes, problem: Problem, after: Mapping[str, Any], p: Given) -> Any:
    """Return the slope of the finished score in the scaled one, of scores ``after`` each term; None means 1."""
    found, s = None, after["scale"]
    for name, row in used(problem, BENDS).items():
        assert row.slope is not None
        slope, s = row.slope(A, s, after[name], p), after[name]
        found = slope if found is None else found * slope
    return found


def at_most(rows: Mapping[str, Term], h: Any, p: Mapping[str, np.ndarray]) -> Any:
    """Return the largest score after the ``rows`` for scores of at most h, [B, Hq, Sq] or another shape."""
    numbers = {name: x.item() if x.size == 1 else x for name, x in p.items()}
    for row in rows.values():
        h = row.at_most(h, numbers)
    return h


def with_scale(A: Scaling, problem: Problem) -> dict[str, Any]:
    """Return the scale, and the numbers of terms at all pairs."""
    return {"scale": scale_of(A, problem), **{name: A.given(x) for name, x in numbers_of(problem).items()}}


def scale_of(A: Scaling, problem: Problem) -> Any:
    """Return the factor on q'.k', [1, 1]: 1/sqrt(D) of a product, when none is given."""
    return A.inverse_root(problem.scale_divisor) if problem.scale is None else A.given(np.full((1, 1), problem.scale))


def divisor(problem: Problem) -> float | None:
    """Return the number whose inverse kernels may multiply the scale by; None if no term divides the score."""
    found = [getattr(problem, name) for name, row in used(problem, BENDS).items() if row.divides]
    return float(np.prod(found)) if found else None
