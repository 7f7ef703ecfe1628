"""Descales in packed calls: [B, Hkv] by sequence, or where the keys lie, with a number for each slot and kv head.

Engines pass both. FlashAttention-3's ``k_descale`` is [B, Hkv], and vLLM's ``k_scale_cache`` is [pages, page size, Hkv]
beside a cache of keys [pages, page size, Hkv, D].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.presentations import placement
from attn_spec.kernels.presentations.packing.places import Places
from attn_spec.kernels.presentations.placement import Placement
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.problem import Problem

#: Descales that may have a number for each key.
OF_KEYS = ABILITIES["descale_by_key"].of_any


def axes_by_key(places: Places) -> tuple[str, ...]:
    """Return the axes of a descale with a number for each key: those of the keys, but for the dimension."""
    return tuple(axis for axis in places.axes if axis != "D")


def is_by_key(name: str, x: Any, chosen: Placement) -> bool:
    """Return whether a call has a number for each key of a descale ``x`` [B, Hkv, Sk or 1, 1] of a problem.

    It has where the descale varies by key. For one number of a sequence, the placement says.
    """
    return name in OF_KEYS and (chosen.descales_by_key or x.shape[2] != 1)


def of_slots(problem: Problem, chosen: Placement) -> list[np.ndarray]:
    """Return the descales [B, Hkv, Sk, 1] of which a call has a number for each key."""
    given = {name: x for name in OF_KEYS if (x := getattr(problem, name)) is not None}
    shape = (*problem.k.shape[:3], 1)
    return [np.broadcast_to(x, shape) for name, x in given.items() if is_by_key(name, x, chosen)]


def by_head(problem: Problem, name: str) -> np.ndarray:
    """Return the numbers [B, Hkv] of a descale that does not differ by key."""
    return np.broadcast_to(getattr(problem, name)[:, :, 0, 0], (problem.batch, problem.kv_heads))


def by_key(
    problem: Problem, name: str, places: Places, arguments: Mapping[str, Any], chosen: Placement, *, unread: bool
) -> np.ndarray:
    """Return the numbers of a descale in the slots of the keys, and poison in free slots."""
    whole = np.broadcast_to(getattr(problem, name), (*problem.k.shape[:3], 1))
    buffer, poison = places.buffer(problem, chosen), placement.poison(problem, name, unread)
    filled = places.slots(buffer, arguments, problem.key_length).fill(whole, poison)
    return places.laid_out(places.axes, filled, buffer)[..., 0]


def read(name: str, x: Any, places: Places, arguments: Mapping[str, Any], chosen: Placement) -> Any:
    """Return a descale of a call as [B, Hkv, Sk or 1, 1], Sk being the length of the longest sequence.

    More than two axes are those of keys. Two are, if the placement says that descales have a number for each key.
    """
    if name in OF_KEYS and (len(x.shape) > 2 or chosen.descales_by_key):
        keys = x[..., None]
        return places.slots(places.lies(places.axes, keys.shape), arguments).back(places.flat(places.axes, keys))
    return x[:, :, None, None]
