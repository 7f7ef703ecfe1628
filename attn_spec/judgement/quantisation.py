"""The quantisation error: how far attention of quantised numbers lies from attention of the numbers themselves.

It is no error of a kernel, which computes what its contract says, but the price of that contract. The arithmetic error
of the kernel is measured apart from it, against attention of the quantised numbers.
"""

from __future__ import annotations

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.judgement.analysis import Analysis, analysis_of
from attn_spec.problem.problem import Problem


@np.errstate(all="ignore")
def quantisation_error(problem: Problem | Analysis, contract: ResolvedContract) -> float:
    """Return |o^ - o| / |o| of the outputs o^ of quantised q, k and v, and o of q, k and v, in the 2-norm.

    The norm is over all rows that see a key and whose outputs are both finite. NaN if there are none, or all are 0.
    Both are evaluated in float64. Raises nothing for a contract without quantisers, whose error is 0.
    """
    known = problem if isinstance(problem, Analysis) else analysis_of(problem)
    own, other = known.oracle.first["output"].value, known.replay(contract).oracle.first["output"].value
    rows = ~known.problem.empty_output_rows & np.isfinite(own).all(axis=-1) & np.isfinite(other).all(axis=-1)
    size = np.linalg.norm(own[rows])
    return float(np.linalg.norm((other - own)[rows]) / size) if size else float("nan")
