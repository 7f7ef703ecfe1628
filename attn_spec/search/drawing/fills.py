"""Fills of regimes: each function changes a draft of q, k, v in place, before rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.numbers import bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from attn_spec.numbers.formats import Format


@dataclass
class Draft:
    """Unrounded tensors, whose entries are independent N(0, 1) at first."""

    #: Queries, [B, Hq, Sq, D].
    q: np.ndarray
    #: Keys, [B, Hkv, Sk, D].
    k: np.ndarray
    #: Values, [B, Hkv, Sk, Dv].
    v: np.ndarray
    rng: np.random.Generator
    #: Formats to which the values of q, k and v will be rounded.
    forms: Mapping[str, Format]
    #: Scale of the problem; never zero, so that scores can be set through k.
    scale: float
    #: True if v is the first columns of k in the end, see :meth:`tie`.
    tied: bool = False

    @property
    def key_index(self) -> np.ndarray:
        """Index of each key, 0 .. Sk - 1, with shape [B, Hkv, Sk]."""
        return np.broadcast_to(np.arange(self.k.shape[2], dtype=float), self.k.shape[:3])

    @property
    def direction(self) -> int:
        """Direction of q and k through which scores are set: the first, or the first in which no value lies."""
        return self.v.shape[-1] % self.k.shape[-1] if self.tied else 0

    def aim(self, scores: np.ndarray) -> None:
        """Give every query the scores [B, Hkv, Sk] through one direction; the other directions add N(0, 1)."""
        self.q[..., self.direction] = 8.0
        self.k[..., self.direction] = scores / (8.0 * self.scale)

    def shift(self, constant: float) -> None:
        """Add a constant to every score through the last direction, the same bits for every key if D > 1."""
        self.q[..., -1] = 64.0
        kept = self.k[..., -1] if self.k.shape[-1] == 1 else 0.0
        self.k[..., -1] = kept + constant / (64.0 * self.scale)

    def tie(self, *, values: bool) -> None:
        """Make v the first columns of k: these columns become v if ``values`` is True, else v becomes these columns."""
        columns = slice(self.v.shape[-1])
        if values:
            self.k[..., columns] = self.v
        else:
            self.v = self.k[..., columns].copy()


def nothing(_: Draft) -> None:
    """Leave N(0, 1) entries."""


def constant(tensor: str, value: float) -> Callable[[Draft], None]:
    """Return a fill that sets every entry of one tensor to ``value``."""

    def fill(draft: Draft) -> None:
        getattr(draft, tensor)[:] = value

    return fill


def spread(deviation: float) -> Callable[[Draft], None]:
    """Return a fill that multiplies the scores' standard deviation, half of it in q and half in k."""

    def fill(draft: Draft) -> None:
        draft.q *= deviation**0.5
        draft.k *= deviation**0.5

    return fill


def staircase(step: float) -> Callable[[Draft], None]:
    """Return a fill of scores that change by ``step`` at every key, or at every 16th, 32nd or 64th (a tile)."""

    def fill(draft: Draft) -> None:
        draft.aim(step * (draft.key_index // draft.rng.choice([1, 16, 32, 64])))

    return fill


def peak(place: Callable[[Draft], np.ndarray], height: float) -> Callable[[Draft], None]:
    """Return a fill that raises the score of one key, at an index [B, Hkv, 1] or scalar, by ``height``."""

    def fill(draft: Draft) -> None:
        draft.aim(height * (draft.key_index == place(draft)))

    return fill


def any_key(draft: Draft) -> np.ndarray:
    """Draw a key index for each kv head, [B, Hkv, 1]."""
    return draft.rng.integers(max(draft.k.shape[2], 1), size=(*draft.k.shape[:2], 1))


def constant_keys(draft: Draft) -> None:
    """Repeat the first key."""
    draft.k[:] = draft.k[:, :, :1]


def duplicate_keys(draft: Draft) -> None:
    """Repeat the first one, two or three keys in turn."""
    distinct = draft.rng.integers(1, 4)
    draft.k = draft.k[:, :, np.arange(draft.k.shape[2]) % distinct]


def near_ties(draft: Draft) -> None:
    """Move each entry of the first key by one unit in the last place up, down or not at all."""
    first = bits.nearest(draft.k[:, :, :1], draft.forms["k"].name)
    draft.k = first + bits.spacing(first, draft.forms["k"].name) * draft.rng.integers(-1, 2, size=draft.k.shape)


def cancellation(draft: Draft) -> None:
    """Pair the directions: q = (a, -a), k = (b + e, b) with b 2**8 times as large as e."""
    even, odd = slice(0, 2 * (draft.q.shape[-1] // 2), 2), slice(1, None, 2)
    draft.q[..., odd] = -draft.q[..., even]
    draft.k[..., odd] *= 2.0**8
    draft.k[..., even] += draft.k[..., odd]


def overflow_float16(draft: Draft) -> None:
    """Put 76800 or -76800 into every q.k through direction 0."""
    draft.q[..., 0] = 256.0
    draft.k[..., 0] = draft.rng.choice([-1.0, 1.0]) * 300.0


def tiny(draft: Draft) -> None:
    """Make products of q and k as small as the smallest normal number."""
    draft.q *= draft.forms["q"].smallest_normal ** 0.5
    draft.k *= draft.forms["k"].smallest_normal ** 0.5


def subnormal(draft: Draft) -> None:
    """Make q and k themselves subnormal."""
    draft.q *= draft.forms["q"].smallest_normal / 4
    draft.k *= draft.forms["k"].smallest_normal / 4


def integers(draft: Draft) -> None:
    """Round to integers in -4 .. 4."""
    for x in (draft.q, draft.k, draft.v):
        np.clip(np.rint(1.5 * x), -4, 4, out=x)


def activations(draft: Draft) -> None:
    """Mix a few directions, add some noise, and add an offset of 20 in a few channels."""
    D = draft.q.shape[-1]
    basis = draft.rng.standard_normal((max(D // 16, 1), D))
    outlier = 20.0 * (draft.rng.random(D) < max(1 / D, 0.05))
    for x in (draft.q, draft.k):
        x[:] = 0.2 * x + 0.5 * draft.rng.standard_normal((*x.shape[:-1], len(basis))) @ basis + outlier


def offset_queries(draft: Draft) -> None:
    """Move the mean of q to 3."""
    draft.q += 3.0


def one_hot_values(draft: Draft) -> None:
    """Let column c of V be 1 at the keys c, c + Dv, c + 2 Dv, ..."""
    draft.v[:] = np.arange(draft.v.shape[2])[:, None] % draft.v.shape[3] == np.arange(draft.v.shape[3])


def offset_values(draft: Draft) -> None:
    """Spread V by a few units in the last place around 96."""
    draft.v = 96.0 * (1.0 + 16 * draft.forms["v"].unit_roundoff * draft.v)


def alternating_values(draft: Draft) -> None:
    """Make each value at an odd index the negative of the one before."""
    draft.v[:, :, 1::2] = -draft.v[:, :, : draft.v.shape[2] // 2 * 2 : 2]


def wave_values(draft: Draft) -> None:
    """Let column c of V oscillate c + 1 half periods along the keys, between 0 and 2, with a random phase in each
    column.
    """
    turns = np.arange(1, draft.v.shape[3] + 1) * np.pi / max(draft.v.shape[2], 1)
    phases = draft.rng.uniform(0, 2 * np.pi, (*draft.v.shape[:2], 1, draft.v.shape[3]))
    draft.v[:] = 1 + np.cos(turns * np.arange(draft.v.shape[2])[:, None] + phases)


def huge_values(draft: Draft) -> None:
    """Use magnitudes whose sum over the keys stays below an eighth of the largest number."""
    size = draft.rng.uniform(0.5, 1.0, draft.v.shape) * draft.forms["v"].largest / (8 * max(draft.v.shape[2], 1))
    draft.v = np.copysign(size, draft.v)


def tiny_values(draft: Draft) -> None:
    """Put V around the smallest normal number."""
    draft.v *= draft.forms["v"].smallest_normal / 2


def wide_values(draft: Draft) -> None:
    """Spread the exponents of V over half the range."""
    reach = np.log2(draft.forms["v"].largest) / 2
    draft.v *= np.exp2(draft.rng.uniform(-reach, reach, draft.v.shape))


def counterweight_values(draft: Draft) -> None:
    """Divide V by the weights of the first query, as far as the range allows: every key matters equally."""
    group = draft.q.shape[1] // draft.k.shape[1]
    s = draft.scale * np.einsum("bhd,bhjd->bhj", draft.q[:, ::group, :1].sum(axis=2), draft.k)
    reach = np.log(draft.forms["v"].largest / (64 * max(draft.v.shape[2], 1)))
    reach -= min(20.0, reach / 4)  # margin for a kernel whose reference may lag behind the maximum
    draft.v *= np.exp(np.minimum(s.max(axis=-1, keepdims=True, initial=-np.inf) - s, reach))[..., None]
