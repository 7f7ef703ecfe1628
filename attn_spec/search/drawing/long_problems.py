"""Test for problems so long that their answers are judged in blocks of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_spec.judgement.long.blocks import THEOREMS

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem

#: Approximate number of bytes that a judgement may take.
MEMORY = 2**30


def is_long(problem: Problem) -> bool:
    """Return whether the theorems would take more than MEMORY for all rows at once."""
    return 8 * THEOREMS * int(np.prod(problem.score_shape, dtype=np.float64)) > MEMORY
