"""Bound on the error of dK + [dV, 0], the gradient of keys whose first columns are the values.

dK and dV of a key are sums over the n queries of its group that see it: sigma dS^T q and P^T dO. A kernel may add all
terms of both in one accumulator, as TileLang's sparse_mla_bwd does. Or it adds one sum to the other when these are
finished, or stored. In any order, a term passes the roundings of its own sum, and at most those of n terms more: the n
terms of the other sum, or the addition of the two sums. So to the errors of both come the roundings of sums of n terms
(``gradient_sums.added_up``), of the sizes of all terms (Higham, Accuracy and Stability of Numerical Algorithms, section
4.2, of sums in any order).

A kernel that casts dK and dV to a narrower format before it adds them declares that format by ``partial_gradients``.
"""

from __future__ import annotations

import numpy as np

from attn_spec.attention.latent import key_gradient
from attn_spec.bounds.backward.gradient_sums import added_up
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract


def key_gradient_error(contract: ResolvedContract, dk: Approximation, dv: Approximation, n: np.ndarray) -> np.ndarray:
    """Return the error of dK + [dV, 0] before its cast, [B, Hkv, Sk, D].

    ``dk`` and ``dv`` are sums over ``n`` [B, Hkv, Sk, 1] terms, with their errors. Columns without a value are dK's.
    """
    value, size, error = (key_gradient(*both) for both in zip(_parts(dk), _parts(dv), strict=True))
    both = added_up(Approximation(value, size, error, dk.form, contract), contract, n)
    return np.where(np.arange(dk.value.shape[-1]) < dv.value.shape[-1], both.error, dk.error)


def _parts(x: Approximation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return x.value, x.size, x.error
