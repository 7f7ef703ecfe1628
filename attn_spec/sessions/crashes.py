"""Crashes in a row: a kernel that ends its process at every property is not asked for all of them."""

from __future__ import annotations

from collections import Counter

from attn_spec.kernels.misbehaviour import has_died
from attn_spec.search.verdict import NOT_RUN, Row, Verdict

#: Number of properties in a row after whose crashes the rest are not run: each costs a minute, and tells the same.
MOST = 3


class Crashes:
    """Numbers of properties in a row whose examination ended in a crash, by kernel and dtype."""

    def __init__(self) -> None:
        self._in_a_row: Counter[tuple[str, str]] = Counter()

    def note(self, row: Row) -> None:
        """Count a verdict: a crash that is no known defect adds to the row, any other that was examined ends it."""
        if row.verdict is Verdict.REFUTED and has_died(row.message):
            self._in_a_row[row.kernel, row.dtype] += 1
        elif row.verdict is not Verdict.NOT_DECLARED:
            self._in_a_row[row.kernel, row.dtype] = 0

    def row(self, property_id: str, kernel: str, dtype: str) -> Row | None:
        """Return the verdict on a property that is not run, for the crashes before it; None if it is to be run."""
        if self._in_a_row[kernel, dtype] < MOST:
            return None
        why = f"{NOT_RUN}since the kernel crashes: {MOST} properties in a row ended its process"
        return Row(property=property_id, kernel=kernel, dtype=dtype, verdict=Verdict.NOT_EXERCISED, message=why)
