"""Measurements of a sweep: one row for each kernel, dtype, quantity and point of the grid, and summaries of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from attn_spec.numbers.formats import INPUT_DTYPES
from attn_spec.problem.dtypes import input_dtypes
from attn_spec.problem.quantities import BACKWARD, FORWARD
from attn_spec.problem.quantities import QUANTITIES as KNOWN

#: Quantities that are measured, of the forward pass and of the backward pass.
PASSES = tuple(tuple(name for name in names if KNOWN[name].shown) for names in (FORWARD, BACKWARD))
QUANTITIES = PASSES[0] + PASSES[1]


@dataclass(frozen=True)
class Spread:
    """Distribution of a quantity over the elements; NaN throughout when there are none."""

    max: float
    p99: float
    median: float

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return order statistics that are themselves values of the sample, so that infinities stay exact."""
        if values.size == 0:
            return cls(math.nan, math.nan, math.nan)
        ranked = np.sort(np.where(np.isnan(values), np.inf, values), axis=None)
        at = [ranked[math.ceil(q * ranked.size) - 1] for q in (1.0, 0.99, 0.5)]
        return cls(*map(float, at))


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The element of largest error / bound."""

    #: Position in [B, Hq, Sq, Dv], or in [B, Hq, Sq] for the LSE.
    index: tuple[int, ...]
    got: float
    truth: float
    #: Error in ulp of the quantity's format.
    ulps: float
    #: Allowed error in the same ulp.
    allowed: float
    ratio: float
    #: The expression that makes the problem again.
    recipe: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel at one dtype on one point of the grid, for one quantity, all seeds together."""

    kernel: str
    #: The string that finds the kernel again.
    spec: str
    dtype: str
    device: str
    #: A name of ``problem.quantities``.
    quantity: str
    contract: str
    #: "length", "magnitude" or "regime".
    sweep: str
    regime: str
    key_length: int
    #: Standard deviation the scores were given; NaN where the regime decides.
    magnitude: float
    #: Elements measured: all but those outside the contract's domain, for which there is no bound.
    elements: int
    outside_domain: int
    #: Elements further from the truth than the bound.
    outside_bound: int
    #: Error in ulp of the exact value; large where the value itself cancels to almost nothing.
    ulps: Spread
    #: Error in ulp of the largest exact value of the row: [Dv] of an output, [Sq] of an LSE.
    row_ulps: Spread
    #: Bound in ulp of the largest exact value of the row.
    row_allowed: Spread
    #: Error / abs(exact value).
    relative: Spread
    #: Error / bound.
    ratio: Spread
    worst: Worst | None
    #: Failure of a kernel that gave no answer; empty otherwise.
    failure: str = ""
    #: The conventions of the kernel that are not the usual ones, in words.
    conventions: str = ""
    #: Largest quantisation error |o^ - o| / |o|, in the 2-norm, of the row's problems; NaN if nothing is quantised.
    quantisation: float = math.nan


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All rows of one kernel at one dtype, for one quantity."""

    kernel: str
    dtype: str
    quantity: str
    contract: str
    #: Over the ``length`` sweep, ordinary data: the largest maximum, largest 99th percentile and middle median.
    row_ulps: Spread
    relative: Spread
    #: Over all sweeps.
    ratio: Spread
    #: Largest error over all sweeps, in ulp of the row.
    wildest: float
    elements: int
    outside_bound: int
    failures: int

    @property
    def is_sound(self) -> bool:
        """Return whether every element lay inside the bound and the kernel always answered."""
        return not self.outside_bound and not self.failures


def kernels_of(rows: Iterable[Row]) -> list[str]:
    """Return the kernel names in the order they were measured."""
    return list(dict.fromkeys(row.kernel for row in rows))


def dtypes_of(rows: Iterable[Row]) -> list[str]:
    """Return the dtypes from wide to narrow."""
    return sorted(dict.fromkeys(row.dtype for row in rows), key=place_of)


def place_of(dtype: str) -> tuple[int, ...]:
    """Return the place of a dtype from wide to narrow, those of q, k and v one after the other."""
    return tuple(map(INPUT_DTYPES.index, input_dtypes(dtype)))


def cells(rows: Iterable[Row]) -> dict[tuple[str, str, str], Cell]:
    """Return a cell for every (kernel, dtype, quantity) that was measured."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.kernel, row.dtype, row.quantity), []).append(row)
    return {key: _cell(*key, group) for key, group in groups.items()}


def worst_cases(rows: Iterable[Row], limit: int = 16) -> list[Row]:
    """Return the worst row of each kernel, dtype and quantity, by error / bound; rows without an answer come first."""
    first: dict[tuple[str, str, str], Row] = {}
    for row in sorted(rows, key=_severity, reverse=True):
        if row.worst or row.failure:
            first.setdefault((row.kernel, row.dtype, row.quantity), row)
    return list(first.values())[:limit]


def quantised(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of outputs in every regime of kernels that quantise."""
    of_regimes = (row for row in rows if row.quantity == "output" and row.sweep == "regime")
    return [row for row in of_regimes if not math.isnan(row.quantisation)]


def largest(values: Iterable[float]) -> float:
    """Return the largest value; NaN when there is none."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _severity(row: Row) -> tuple[bool, bool, float]:
    return bool(row.failure), bool(row.outside_bound), row.worst.ratio if row.worst else -math.inf


def _cell(kernel: str, dtype: str, quantity: str, rows: Sequence[Row]) -> Cell:
    ordinary = [row for row in rows if row.sweep == "length"]
    return Cell(
        kernel=kernel,
        dtype=dtype,
        quantity=quantity,
        contract=rows[0].contract,
        row_ulps=_together(row.row_ulps for row in ordinary),
        relative=_together(row.relative for row in ordinary),
        ratio=_together(row.ratio for row in rows),
        wildest=largest(row.row_ulps.max for row in rows),
        elements=sum(row.elements for row in rows),
        outside_bound=sum(row.outside_bound for row in rows),
        failures=sum(1 for row in rows if row.failure),
    )


def _together(spreads: Iterable[Spread]) -> Spread:
    known = [spread for spread in spreads if not math.isnan(spread.max)]
    medians = sorted(spread.median for spread in known)
    middle = medians[(len(medians) - 1) // 2] if medians else math.nan
    return Spread(max=largest(one.max for one in known), p99=largest(one.p99 for one in known), median=middle)


def columns(row: Row) -> dict[str, Any]:
    """Return the row as one flat record for JSON: ``ulps.p99``, ``worst.recipe``; non-finite numbers as strings."""
    record = asdict(row) | {
        "worst": asdict(row.worst) if row.worst else dict.fromkeys(item.name for item in fields(Worst))
    }
    flat: dict[str, Any] = {}
    for name, value in record.items():
        nested = value if isinstance(value, dict) else None
        flat |= {name: value} if nested is None else {f"{name}.{key}": item for key, item in nested.items()}
    return {name: _finite(value) for name, value in flat.items()}


def _finite(value: Any) -> Any:
    """Return the value, as a string when JSON has no number for it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
