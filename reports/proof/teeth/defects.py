"""Defects of every size: one sound kernel, with one step wrong by a given amount.

The kernel is :class:`~attn_spec.emulation.forward.TiledAttention` with its sums left to BLAS, which is as legal an
order as any and many times as fast. It declares what it would do without the defect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import CONVENTIONS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel


class FastAttention(TiledAttention):
    """The tiled kernel with float32 sums in the order of the matrix products at hand."""

    #: Size of the defect.
    size: float = 0.0

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return _product(q, k.swapaxes(-1, -2))

    def accumulate_row_sum(self, l: np.ndarray, p: np.ndarray) -> np.ndarray:
        return self.round(l + p.astype(np.float32).sum(axis=-1, keepdims=True), "row_sum")

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.round(acc + _product(w, v), "output_accumulation")


class WrongScale(FastAttention):
    """The scale is too large by a factor of 1 + size."""

    def factor(self) -> np.ndarray:
        return super().factor() * (1 + self.size)


class InexactExponential(FastAttention):
    """Exponentials are off by a factor of 1 + size or 1 - size, of a sign that looks random; exp(0) is 1."""

    def exponential(self, x: np.ndarray) -> np.ndarray:
        sign = np.where(np.sin(1e4 * x + 1) > 0, 1.0, -1.0)
        return self.round(super().exponential(x) * np.where(x == 0, 1.0, 1 + sign * self.size), "softmax")


class DroppedKeys(FastAttention):
    """Keys of a weight below size times the largest weight so far are left out."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        p = super().weights(s, m)
        return np.where(p < self.size, 0.0, p)


class NarrowAccumulator(FastAttention):
    """Products with V are accumulated key by key with a unit roundoff of size, in float32's range."""

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        for j in range(w.shape[-1]):
            acc = self.narrowed(acc + w[..., j, None] * v[:, :, None, j])
        return acc

    def rescale_output(self, acc: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return self.narrowed(super().rescale_output(acc, alpha))

    def narrowed(self, x: np.ndarray) -> np.ndarray:
        """Round to the nearest number of a significand of p bits, where size = 2^-p."""
        significand, exponent = np.frexp(self.round(x, "output_accumulation"))
        return np.ldexp(np.rint(significand / self.size) * self.size, exponent)


class MissingRescale(FastAttention):
    """The accumulated sum is not rescaled when the maximum rises by less than size."""

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
        return np.where(m_new - m < self.size, 1.0, super().rescale_factor(m, m_new))


class RelativeLse(FastAttention):
    """The log-sum-exp is too large by a factor of 1 + size."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.round(super().log_sum_exp(m, l) * (1 + self.size), "lse")


class AbsoluteLse(FastAttention):
    """The log-sum-exp is too large by size."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.round(super().log_sum_exp(m, l) + self.size, "lse")


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A step that may be wrong, and how wrong."""

    name: str
    steps: type[FastAttention]
    #: From small to large; what is wrong by one of them is worse than what is wrong by those before it.
    sizes: tuple[float, ...]

    @property
    def story(self) -> str:
        """Return the defect in one line."""
        return (self.steps.__doc__ or "").splitlines()[0]

    def kernel(self, size: float, dtype: str) -> Kernel:
        """Return the kernel with a defect of that size."""
        steps = type(self.steps.__name__, (self.steps,), {"size": size})
        name = f"{self.name} {size:g}"
        # BLAS multiplies weights of 0 by NaN of masked keys.
        conventions = {**CONVENTIONS, "masked_nonfinite": "may_leak", "batch_invariant": False}
        return emulate(name, PRECISE, dtypes=(dtype,), steps=steps, conventions=conventions)


def _powers_of_two(smallest: int, largest: int) -> tuple[float, ...]:
    return tuple(2.0**exponent for exponent in range(smallest, largest + 1))


_ROWS = (
    Defect(name="scale", steps=WrongScale, sizes=_powers_of_two(-24, -2)),
    Defect(name="exponential", steps=InexactExponential, sizes=_powers_of_two(-24, -2)),
    Defect(name="dropped keys", steps=DroppedKeys, sizes=_powers_of_two(-24, -2)),
    Defect(name="accumulator", steps=NarrowAccumulator, sizes=_powers_of_two(-23, -3)),
    Defect(name="missing rescale", steps=MissingRescale, sizes=_powers_of_two(-24, 3)),
    Defect(name="LSE, relative", steps=RelativeLse, sizes=_powers_of_two(-24, -2)),
    Defect(name="LSE, absolute", steps=AbsoluteLse, sizes=_powers_of_two(-24, -2)),
)

#: Defects by name.
DEFECTS: dict[str, Defect] = {row.name: row for row in _ROWS}


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
