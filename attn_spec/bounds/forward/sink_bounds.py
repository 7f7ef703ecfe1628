"""Distances of a kernel's reference from the maximum of a row whose last key is a sink.

A sink is one more key of value 0 whose score z is given. So all that theorems say of n keys holds for n + 1, in one
tile more, since a sink may be visited first, last, or alone. What differs is the reference. Under
``sink_reference="maximum"`` it is the running maximum of scores and sink. Under "keys" it is m = max s of the keys
alone, as where exp(z - m) is added to a finished row sum. Then z - m may be positive: the row sum is up to e^(z - m)
times as large, and the exponent of the sink is rounded as any number of its size. In a row that sees no key such a
reference is 0, or z itself.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.forward.score_bounds import score_error
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import term


def tiles_of(forward: Intermediates, contract: ResolvedContract) -> int:
    """Return the largest number of tiles of a row; a sink may be one of its own."""
    own = forward.has_sink and contract.kv_tile is not None
    return contract.tiles(forward.problem.key_length) + term("a tile of the sink alone", int(own), 0)


@of_forward_pass
@np.errstate(all="ignore")
def below_maximum(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound how far a reference to the keys alone lies below the maximum with the sink, [.., Sq, 1].

    It is infinite in rows whose keys are all far below the sink.
    """
    if not _refers_to_keys(forward, contract):
        return np.zeros((*forward.s.shape[:-1], 1))
    keys, delta = forward.of_keys, score_error(forward, contract)
    lowest = keys.s - term("errors of keys that a sink is above", delta[..., :-1])
    highest = np.where(keys.visible, lowest, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    z = forward.s[..., -1:] + term("the error of a sink above the keys", delta[..., -1:])
    # A row without a key in which the reference is 0.
    highest = np.where(_sees_keys(forward), highest, 0.0)
    above = term("a sink above the keys that are its reference", np.maximum(z - highest, 0.0))
    return np.where(forward.visible[..., -1:], above, 0.0)


@np.errstate(all="ignore")
def above_maximum(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound how far a reference of 0 lies above the sink of a row that sees no key, [.., Sq, 1]; 0 in other rows."""
    if not _refers_to_keys(forward, contract):
        return np.zeros((*forward.s.shape[:-1], 1))
    alone = forward.visible[..., -1:] & ~_sees_keys(forward)
    z = forward.s[..., -1:] - score_error(forward, contract)[..., -1:]
    return term("a reference of 0 above a sink alone", np.where(alone, np.maximum(-z, 0.0), 0.0))


def _sees_keys(forward: Intermediates) -> np.ndarray:
    return np.any(forward.problem.visible, axis=-1, keepdims=True)


def _refers_to_keys(forward: Intermediates, contract: ResolvedContract) -> bool:
    """Return whether the reference is the maximum of the keys; the distance of any other is in the contract."""
    return forward.has_sink and contract.sink_reference == "keys" and contract.reference == "maximum"
