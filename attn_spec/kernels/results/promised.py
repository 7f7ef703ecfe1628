"""Tensors that a call must change, as an appended cache, and the check that it has changed nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.presentation import Handed, Presentation
from attn_spec.numbers import bits
from attn_spec.problem.dtypes import Dtypes, dtype_of


def values(
    presentation: Presentation, handed: Handed, contract: ResolvedContract, dtypes: Dtypes
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the values after a call of the tensors that it must change, and how far from these they may be."""
    given = (handed.tensors, handed.further)
    return (
        presentation.promised(*given, contract, dtypes),
        presentation.allowed(*given, contract, dtype_of(dtypes, "k")),
    )


def check(
    presentation: Presentation,
    handed: Handed,
    now: Mapping[str, np.ndarray],
    contract: ResolvedContract,
    dtypes: Dtypes,
) -> None:
    """Raise :class:`Misbehaviour` unless tensors of a call are ``now`` what they must be, by their names."""
    promised, allowed = values(presentation, handed, contract, dtypes)
    for name, found in now.items():
        before = np.asarray(handed.tensors[name] if name in handed.tensors else handed.further[name])
        x = found[(None,) * (before.ndim - found.ndim)]  # a mask may have been passed with two axes
        must = promised.get(name, before).astype(np.float64)
        wrong = np.array(True) if x.shape != must.shape else ~within(x, must, allowed.get(name, 0.0))
        if wrong.any():
            raise Misbehaviour(presentation.told(name, wrong, x, must, handed, dtypes=dtypes))


def within(now: np.ndarray, must: np.ndarray, allowed: np.ndarray | float) -> np.ndarray:
    """Return where values are, bit for bit, what they must be, or no farther from it than is ``allowed``."""
    same = bits.identical(now, must)
    if same.all():
        return same
    with np.errstate(invalid="ignore"):
        near = (allowed == np.inf) | ((np.abs(now - must) <= allowed) & (np.asarray(allowed) > 0))
    return same | near
