"""Places of a quantity or input that belong to a query or key that is there; lengths of sequences leave others out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_spec.problem.quantities import QUANTITIES

if TYPE_CHECKING:
    from attn_spec.problem.sequences import Sequences

#: Axes of the inputs, see ``quantities.Quantity.axes``.
_INPUTS = {"q": "BHQD", "k": "BGKD", "v": "BGKV"}


def used_places(problem: Sequences, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return which places of q, k, v or a quantity of this ``shape`` are there, bool that broadcasts to the shape.

    A place along an axis of queries or keys is there if its batch entry has that query or key. An axis along which an
    option is broadcast leaves no place out.
    """
    found = np.ones((1,) * len(shape), dtype=bool)
    if not problem.has_lengths:
        return found
    axes = _INPUTS[name] if name in _INPUTS else QUANTITIES[name].axes
    for axis, letter in enumerate(axes):
        of = {"Q": problem.there, "K": problem.keys_there}.get(letter)
        if of is None or of.shape[2] != shape[axis]:
            continue
        if shape[0] < problem.batch:  # the gradient of an option that batch entries share
            of = np.any(of, axis=0, keepdims=True)
        found = found & of.reshape(of.shape[0], *(-1 if at == axis else 1 for at in range(1, len(shape))))
    return found
