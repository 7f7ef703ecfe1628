"""Rotation inside a call that appends: it rotates its queries and new keys by cosines and sines that it is given.

Such a call has the option ``rotary`` in three arguments, as flash-attention's ``with_kvcache`` does. Row p of
``rotary_cos`` and ``rotary_sin`` [rows, R/2] has the cosines and sines of position p, one for each pair of columns.
``rotary_interleaved`` says whether a pair is the columns 2m and 2m + 1, or m and m + R/2. Both tables have the dtype
of the queries. Their numbers are the true ones, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.attention.arithmetic import rounded_tables
from attn_spec.attention.rotations import Rotation, rotations
from attn_spec.attention.scores import SCORES
from attn_spec.bounds.running_error import Approximation, RunningErrors, given, stored
from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.options.rotary import LAYOUTS
from attn_spec.problem.problem import Problem

#: Arguments of a call in which the option ``rotary`` and its parameters travel.
ARGUMENTS = ("rotary_cos", "rotary_sin", "rotary_interleaved")


def arguments_of(problem: Problem, rows: int) -> dict[str, Any]:
    """Return the arguments of a call for a problem, with tables of so many rows; none without rotary positions."""
    if problem.rotary is None:
        return {}
    turn = rotations(
        query_length=0,
        key_length=rows,
        columns=problem.head_dim,
        rotary=problem.rotary,
        rotary_base=problem.rotary_base,
        rotary_dim=problem.rotary_dim,
        rotary_from_tables=problem.dtype_of("q"),
    )["keys"]
    cos, sin = rounded_tables(turn)
    return dict(zip(ARGUMENTS, (cos, sin, problem.rotary == LAYOUTS[1]), strict=True))


def are_given(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call is given tables, and so rotates."""
    return ARGUMENTS[0] in arguments


def turned(x: np.ndarray, positions: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return numbers [.., D] rotated by positions [..], which broadcast to them; float64 that is not rounded further.

    A call without tables leaves the numbers as they are.
    """
    if not are_given(arguments):
        return x
    turn, cos, sin = _tables(x, positions, arguments)
    with np.errstate(invalid="ignore"):
        return x * cos + turn.swapped(x) * sin


@np.errstate(invalid="ignore", over="ignore")
def allowed(
    x: np.ndarray, positions: np.ndarray, arguments: Mapping[str, Any], contract: ResolvedContract, dtype: str
) -> np.ndarray:
    """Return how far from :func:`turned` the numbers may be that a call under a contract stores in a cache.

    A new number is x cos - y sin, or y cos + x sin, of inputs x, y, cos and sin, all of the format ``dtype``. Both
    products and their sum are operations of the contract, with its "roundings of an operation" and their underflow. A
    product may be stored in the format of operands before it is added, and the sum is stored in it: "the cast of an
    operand" and its underflow. So the error is that of a rotated operand (``bounds.running_error``) without an error of
    its cosine and sine. No other error enters, as a key is rotated once and stored once.

    A reading of the contract is one of its alternatives. The largest error of all is allowed, since one of them
    explains the call. The number that it is compared with is found in float64, by three roundings relative to both
    products, which are allowed too. Nothing is known where the operations may overflow, and of numbers that are not
    finite: infinity.
    """
    turn, cos, sin = _tables(x, positions, arguments)
    form, errors = FORMATS[dtype], []
    for reading in (contract, *contract.alternatives):
        tables = tuple(given(reading, np.broadcast_to(table, x.shape), form) for table in (cos, sin))
        made = SCORES["rotary"].keys.value(_GivenTables(reading, *tables), given(reading, x, form), {"keys": turn})
        errors.append(stored(made).error)
    size = np.abs(x * cos) + np.abs(turn.swapped(x) * sin)
    found = np.max(errors, axis=0) + _IN_FLOAT64 * size
    return np.where(np.isfinite(size), found, np.inf)


#: Three roundings of float64: gamma of Higham, section 3.1.
_IN_FLOAT64 = 3 * 2.0**-53 / (1 - 3 * 2.0**-53)


class _GivenTables(RunningErrors):
    """Running errors of a rotation by cosines and sines that are inputs, and so exact."""

    def __init__(self, contract: ResolvedContract, cos: Approximation, sin: Approximation) -> None:
        super().__init__(contract)
        self.cos, self.sin = cos, sin

    def tables(self, turn: Rotation) -> tuple[Approximation, Approximation]:
        del turn
        return self.cos, self.sin


def _tables(
    x: np.ndarray, positions: np.ndarray, arguments: Mapping[str, Any]
) -> tuple[Rotation, np.ndarray, np.ndarray]:
    """Return the rotation of numbers [.., D] by positions [..], and its cosines and sines [.., D] from the tables."""
    *tables, interleaved = (arguments[name] for name in ARGUMENTS)
    cos, sin = (values_of(table)[positions] for table in tables)
    layout = LAYOUTS[bool(interleaved)]
    turn = Rotation(positions, math.nan, turned=2 * cos.shape[-1], columns=x.shape[-1], layout=layout)
    return turn, turn.spread(cos, 1.0), turn.spread(sin, 0.0)
