"""Fills of regimes: each function changes a draft of q, k, v in place, before rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.numbers import bits

if TYPE_CHECKING:
    from collections.abc import Callable

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
    #: Dtype to which the values will be rounded.
    form: Format
    #: Scale of the problem; never zero, so that scores can be set through k.
    scale: float

    @property
    def key_index(self) -> np.ndarray:
        """Index of each key, 0 .. Sk - 1, with shape [B, Hkv, Sk]."""
        return np.broadcast_to(np.arange(self.k.shape[2], dtype=float), self.k.shape[:3])

    def aim(self, scores: np.ndarray) -> None:
        """Give every query the scores [B, Hkv, Sk] through direction 0; the other directions add N(0, 1)."""
        self.q[..., 0] = 8.0
        self.k[..., 0] = scores / (8.0 * self.scale)

    def shift(self, constant: float) -> None:
        """Add a constant to every score through the last direction, the same bits for every key if D > 1."""
        self.q[..., -1] = 64.0
        kept = self.k[..., -1] if self.k.shape[-1] == 1 else 0.0
        self.k[..., -1] = kept + constant / (64.0 * self.scale)


def nothing(_: Draft) -> None:
    """Leave N(0, 1) entries."""


def constant(tensor: str, value: float) -> Callable[[Draft], None]:
    """Return a fill that sets every entry of one tensor to ``value``."""

    def fill(t: Draft) -> None:
        getattr(t, tensor)[:] = value

    return fill


def spread(deviation: float) -> Callable[[Draft], None]:
    """Return a fill that multiplies the scores' standard deviation, half of it in q and half in k."""

    def fill(t: Draft) -> None:
        t.q *= deviation**0.5
        t.k *= deviation**0.5

    return fill


def staircase(step: float) -> Callable[[Draft], None]:
    """Return a fill of scores that change by ``step`` at every key, or at every 16th, 32nd or 64th (a tile)."""

    def fill(t: Draft) -> None:
        t.aim(step * (t.key_index // t.rng.choice([1, 16, 32, 64])))

    return fill


def peak(place: Callable[[Draft], np.ndarray], height: float) -> Callable[[Draft], None]:
    """Return a fill that raises the score of one key, at an index [B, Hkv, 1] or scalar, by ``height``."""

    def fill(t: Draft) -> None:
        t.aim(height * (t.key_index == place(t)))

    return fill


def any_key(t: Draft) -> np.ndarray:
    """Draw a key index for each kv head, [B, Hkv, 1]."""
    return t.rng.integers(max(t.k.shape[2], 1), size=(*t.k.shape[:2], 1))


def constant_keys(t: Draft) -> None:
    """Repeat the first key."""
    t.k[:] = t.k[:, :, :1]


def duplicate_keys(t: Draft) -> None:
    """Repeat the first one, two or three keys in turn."""
    distinct = t.rng.integers(1, 4)
    t.k = t.k[:, :, np.arange(t.k.shape[2]) % distinct]


def near_ties(t: Draft) -> None:
    """Move each entry of the first key by one unit in the last place up, down or not at all."""
    first = bits.nearest(t.k[:, :, :1], t.form.name)
    t.k = first + bits.spacing(first, t.form.name) * t.rng.integers(-1, 2, size=t.k.shape)


def cancellation(t: Draft) -> None:
    """Pair the directions: q = (a, -a), k = (b + e, b) with b 2**8 times as large as e."""
    even, odd = slice(0, 2 * (t.q.shape[-1] // 2), 2), slice(1, None, 2)
    t.q[..., odd] = -t.q[..., even]
    t.k[..., odd] *= 2.0**8
    t.k[..., even] += t.k[..., odd]


def overflow_float16(t: Draft) -> None:
    """Put 76800 or -76800 into every q.k through direction 0."""
    t.q[..., 0] = 256.0
    t.k[..., 0] = t.rng.choice([-1.0, 1.0]) * 300.0


def tiny(t: Draft) -> None:
    """Make products of q and k as small as the smallest normal number."""
    t.q *= t.form.smallest_normal**0.5
    t.k *= t.form.smallest_normal**0.5


def subnormal(t: Draft) -> None:
    """Make q and k themselves subnormal."""
    t.q *= t.form.smallest_normal / 4
    t.k *= t.form.smallest_normal / 4


def integers(t: Draft) -> None:
    """Round to integers in -4 .. 4."""
    for x in (t.q, t.k, t.v):
        np.clip(np.rint(1.5 * x), -4, 4, out=x)


def activations(t: Draft) -> None:
    """Mix a few directions, add some noise, and add an offset of 20 in a few channels."""
    D = t.q.shape[-1]
    basis = t.rng.standard_normal((max(D // 16, 1), D))
    outlier = 20.0 * (t.rng.random(D) < max(1 / D, 0.05))
    for x in (t.q, t.k):
        x[:] = 0.2 * x + 0.5 * t.rng.standard_normal((*x.shape[:-1], len(basis))) @ basis + outlier


def offset_queries(t: Draft) -> None:
    """Move the mean of q to 3."""
    t.q += 3.0


def one_hot_values(t: Draft) -> None:
    """Let column c of V be 1 at the keys c, c + Dv, c + 2 Dv, ..."""
    t.v[:] = np.arange(t.v.shape[2])[:, None] % t.v.shape[3] == np.arange(t.v.shape[3])


def offset_values(t: Draft) -> None:
    """Spread V by a few units in the last place around 96."""
    t.v = 96.0 * (1.0 + 16 * t.form.unit_roundoff * t.v)


def alternating_values(t: Draft) -> None:
    """Make each value at an odd index the negative of the one before."""
    t.v[:, :, 1::2] = -t.v[:, :, : t.v.shape[2] // 2 * 2 : 2]


def wave_values(t: Draft) -> None:
    """Let column c of V oscillate c + 1 half periods along the keys, between 0 and 2, with a random phase in each
    column.
    """
    turns = np.arange(1, t.v.shape[3] + 1) * np.pi / max(t.v.shape[2], 1)
    phases = t.rng.uniform(0, 2 * np.pi, (*t.v.shape[:2], 1, t.v.shape[3]))
    t.v[:] = 1 + np.cos(turns * np.arange(t.v.shape[2])[:, None] + phases)


def huge_values(t: Draft) -> None:
    """Use magnitudes whose sum over the keys stays below an eighth of the largest number."""
    size = t.rng.uniform(0.5, 1.0, t.v.shape) * t.form.largest / (8 * max(t.v.shape[2], 1))
    t.v = np.copysign(size, t.v)


def tiny_values(t: Draft) -> None:
    """Put V around the smallest normal number."""
    t.v *= t.form.smallest_normal / 2


def wide_values(t: Draft) -> None:
    """Spread the exponents of V over half the range."""
    reach = np.log2(t.form.largest) / 2
    t.v *= np.exp2(t.rng.uniform(-reach, reach, t.v.shape))


def counterweight_values(t: Draft) -> None:
    """Divide V by the weights of the first query, as far as the range allows: every key matters equally."""
    group = t.q.shape[1] // t.k.shape[1]
    s = t.scale * np.einsum("bhd,bhjd->bhj", t.q[:, ::group, :1].sum(axis=2), t.k)
    reach = np.log(t.form.largest / (64 * max(t.v.shape[2], 1)))
    reach -= min(20.0, reach / 4)  # margin for a kernel whose reference may lag behind the maximum
    t.v *= np.exp(np.minimum(s.max(axis=-1, keepdims=True, initial=-np.inf) - s, reach))[..., None]
