"""The worst element of an answer, as cases store it and failure blocks show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from attn_spec.judgement.bound_terms import BoundTerm
from attn_spec.judgement.measure import Measurement
from attn_spec.problem.quantities import QUANTITIES

#: Axes of quantities, in words.
_AXES = {"B": "batch entry", "H": "head", "G": "kv head", "Q": "row", "K": "key", "D": "column", "V": "column"}


@dataclass(frozen=True, kw_only=True)
class WorstElement:
    """The element of an answer that is farthest outside its bound. Reals are written as hexadecimal floats."""

    #: A name of ``problem.quantities``.
    quantity: str
    index: tuple[int, ...]
    #: Number that the kernel returned.
    got: str
    #: The truth lies within ``radius`` of this.
    truth: str
    radius: str
    #: Largest error the contract allows.
    allowed: str
    #: Error in units of the spacing of numbers at the truth.
    ulps: str
    #: Elements outside their bounds, of how many, in how many vectors: rows of the output, of dQ, dK and dV.
    outside: int
    elements: int
    rows: int
    #: The terms that weigh most in what is allowed, the largest first.
    bound_terms: tuple[BoundTerm, ...] = ()

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Make the element of its fields as JSON has them, also of a version that kept no terms."""
        terms = tuple(BoundTerm(*term) for term in document.get("bound_terms", ()))
        return cls(**{**document, "index": tuple(document["index"]), "bound_terms": terms})

    @property
    def place(self) -> str:
        """The index in words; empty for the gradient of a parameter, whose axes are its own."""
        axes = QUANTITIES[self.quantity].axes
        if set(axes) - set(_AXES):
            return ""
        return ", ".join(f"{_AXES[axis]} {i}" for axis, i in zip(axes, self.index, strict=False))

    def lines(self, shown: tuple[int, ...] | None = None) -> list[str]:
        """Return lines that say where, the answer, the truth, and how far the error is beyond what is allowed.

        The index is ``shown`` as the tensor has it whose axes are in another order.
        """
        index, quantity = ", ".join(map(str, shown or self.index)), QUANTITIES[self.quantity]
        rows = f", in {self.rows} row{'s' * (self.rows != 1)}" if quantity.has_rows else ""
        bound = f"{quantity.made_by} bound"
        return [
            f"  element   {self.quantity}[{index}]; {self.outside} of {self.elements} are outside{rows}",
            *([f"  place     {place}"] if (place := self.place) else []),
            f"  got       {_both(self.got)}",
            f"  truth     {_both(self.truth)} +- {_short(self.radius)}",
            f"  error     {_short(self.ulps)} ulp; allowed {_short(self.allowed)} by the {bound} of the contract",
            *([f"  of that   {', '.join(map(str, self.bound_terms))}"] if self.bound_terms else []),
        ]


def worst_element(measurement: Measurement) -> WorstElement:
    """Return the worst element of a measurement that is not all inside its bound."""
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
    """Decimal and hexadecimal."""
    return f"{float.fromhex(value):.9g} ({value})"


def _short(value: str) -> str:
    return f"{float.fromhex(value):.3g}"
