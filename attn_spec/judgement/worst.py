"""The worst element of an answer, as cases store it and failure blocks show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from attn_spec.judgement.bound_terms import BoundTerm
from attn_spec.judgement.measure import Measurement
from attn_spec.problem.quantities import QUANTITIES

#: Axes of quantities, in words.
_AXES = {"B": "batch entry", "H": "head", "G": "kv head", "Q": "row", "K": "key", "D": "column", "V": "column"}
#: Words for the axes of a merge of attention states, which has one query for each token and head.
_AXES_OF_STATES = {"B": "token", "H": "head", "D": "column", "V": "column"}


@dataclass(frozen=True, kw_only=True)
class WorstElement:
    """The element of an answer with the largest error / bound. Reals are written as hexadecimal floats."""

    #: Name of the quantity in ``problem.quantities``.
    quantity: str
    index: tuple[int, ...]
    #: Number that the kernel returned.
    got: str
    #: Centre of the enclosure of the truth.
    truth: str
    #: Largest distance of the truth from ``truth``.
    radius: str
    #: Largest error the contract allows.
    allowed: str
    #: Error in units of the spacing of numbers at the truth.
    ulps: str
    #: Number of elements outside their bounds.
    outside: int
    #: Number of elements in all.
    elements: int
    #: Number of vectors (rows of the output, of dQ, dK and dV) with an element outside its bound.
    rows: int
    #: Terms with the largest shares of the allowed error, the largest first.
    bound_terms: tuple[BoundTerm, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the element of a JSON document; documents of older versions lack the bound terms."""
        terms = tuple(BoundTerm(*term) for term in document.get("bound_terms", ()))
        return cls(**{**document, "index": tuple(document["index"]), "bound_terms": terms})

    @property
    def place(self) -> str:
        """Index in words; empty for the gradient of a parameter, whose axes have no such names."""
        return "" if set(QUANTITIES[self.quantity].axes) - set(_AXES) else self._in_words(_AXES)

    def _in_words(self, words: Mapping[str, str]) -> str:
        """Return the index along the axes that have a word."""
        at = zip(QUANTITIES[self.quantity].axes, self.index, strict=False)
        return ", ".join(f"{words[axis]} {i}" for axis, i in at if axis in words)

    def lines(self, shown: tuple[int, ...] | None = None, *, of_states: bool = False) -> list[str]:
        """Return lines that give the place, the answer, the truth, and the error beside the allowed error.

        ``shown`` is the index in a tensor whose axes have another order. ``of_states`` says that the problem is a merge
        of attention states, whose batch entries are tokens.
        """
        index, quantity = ", ".join(map(str, shown or self.index)), QUANTITIES[self.quantity]
        rows = f", in {self.rows} row{'s' * (self.rows != 1)}" if quantity.has_rows else ""
        bound = f"{quantity.made_by} bound"
        place = self._in_words(_AXES_OF_STATES) if of_states else self.place
        return [
            f"  element   {self.quantity}[{index}]; {self.outside} of {self.elements} are outside{rows}",
            *([f"  place     {place}"] if place else []),
            f"  got       {_both(self.got)}",
            f"  truth     {_both(self.truth)} +- {_short(self.radius)}",
            f"  error     {_short(self.ulps)} ulp; allowed {_short(self.allowed)} by the {bound} of the contract",
            *([f"  of that   {', '.join(map(str, self.bound_terms))}"] if self.bound_terms else []),
        ]


def worst_element(measurement: Measurement) -> WorstElement:
    """Return the worst element of a measurement."""
    at = measurement.worst
    has_rows = QUANTITIES[measurement.name].has_rows
    return WorstElement(
        quantity=measurement.name,
        index=at,
        got=float(measurement.got[at]).hex(),
        truth=float(measurement.truth.value[at]).hex(),
        radius=float(measurement.truth.radius[at] + abs(measurement.truth.low[at])).hex(),
        allowed=float(measurement.allowed[at]).hex(),
        ulps=float(measurement.ulps[at]).hex(),
        outside=int(measurement.outside.sum()),
        elements=measurement.outside.size,
        rows=int((measurement.outside.any(axis=-1) if has_rows else measurement.outside).sum()),
    )


def _both(value: str) -> str:
    """Return a number in decimal and hexadecimal."""
    return f"{float.fromhex(value):.9g} ({value})"


def _short(value: str) -> str:
    return f"{float.fromhex(value):.3g}"
