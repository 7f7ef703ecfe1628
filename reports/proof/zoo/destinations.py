"""Mutants of kernels that write into tensors they are given: elements that are not written, or added to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel

from .mutants import introduce

OUTPUT = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
WRITTEN = "independence.every_element_of_the_output_is_written"
#: Number of rows in a tile of the output.
TILE = 4

#: Function that is given the tensors of the output and the LSE as they were before a call, and as a right call leaves
#: them, and that changes the latter.
Spoil = Callable[[Any, Any, Any, Any], None]


def destination_mutant(*, source: str, named_by: str) -> Callable[[Spoil], Spoil]:
    """Register what becomes of the results that a sound kernel writes into the tensors it is given."""

    def register(spoil: Spoil) -> Spoil:
        def build(name: str, dtype: str) -> Kernel:
            declared = {"dtypes": (dtype,), "contract": "fused", "destinations": {"output": "out", "lse": "lse"}}
            right = emulate(name, PRECISE, **declared)

            def attention(*inputs: Any, out: Any, lse: Any, **options: Any) -> None:
                before = out.clone(), lse.clone()
                right.function(*inputs, out=out, lse=lse, **options)
                spoil(*before, out, lse)

            return replace(right, function=attention)

        return introduce(spoil, build, source=source, named_by=named_by, dtype="float32")

    return register


@destination_mutant(source="made up: a grid that rounds the number of tiles down", named_by=WRITTEN)
def last_tile_of_out_unwritten(before: Any, lse_before: Any, out: Any, lse: Any) -> None:
    """Leave rows of the output behind the last whole tile unwritten."""
    del lse_before, lse
    whole = out.shape[2] // TILE * TILE
    out[:, :, whole:] = before[:, :, whole:]


@destination_mutant(source="made up: an early return where a query sees no key", named_by=OUTPUT)
def rows_without_keys_unwritten(before: Any, lse_before: Any, out: Any, lse: Any) -> None:
    """Leave the output of a query that sees no key unwritten, and write its log-sum-exp."""
    del lse_before
    empty = lse.isinf()
    out[empty] = before[empty]


@destination_mutant(source="made up: atomic additions without a cleared output", named_by=OUTPUT)
def added_to_out(before: Any, lse_before: Any, out: Any, lse: Any) -> None:
    """Add the results of tiles to what the output holds before the call."""
    del lse_before, lse
    out += before


@destination_mutant(source="made up: a log-sum-exp that one of two paths stores", named_by=LSE)
def lse_of_one_head_written(before: Any, lse_before: Any, out: Any, lse: Any) -> None:
    """Write the log-sum-exp of the first head alone."""
    del before, out
    lse[:, 1:] = lse_before[:, 1:]
