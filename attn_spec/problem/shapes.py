"""The tensors of a problem, the lengths of their axes, and what follows from these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.problem.option import SCORE
from attn_spec.problem.options import OPTIONS, Options


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Shapes(Options):
    """q, k and v. Query head h reads kv head ``h // (Hq // Hkv)``; in a layer all heads read one of each."""

    #: [B, Hq, Sq, D]
    q: np.ndarray
    #: [B, Hkv, Sk, D]
    k: np.ndarray
    #: [B, Hkv, Sk, Dv]
    v: np.ndarray

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def query_heads(self) -> int:
        return np.shape(self.query_projection)[1] if self.projects else self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.query_heads // max(self.kv_heads, 1)

    @property
    def query_group(self) -> int:
        """Heads of q to one of k."""
        return self.q.shape[1] // max(self.kv_heads, 1)

    @property
    def query_length(self) -> int:
        return self.q.shape[2]

    @property
    def key_length(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        return self.v.shape[3]

    @property
    def scored_width(self) -> int:
        """The width of what heads make scores of: D, or that of the queries of a layer."""
        return self.score_width if self.projects else self.head_dim

    @property
    def projects(self) -> bool:
        """Return whether the problem is that of a layer."""
        return self.query_projection is not None

    def query_head(self, head: int) -> int:
        """The head of q that a head reads: its own, or the one of a layer."""
        return 0 if self.projects else head

    @property
    def head_value_dim(self) -> int:
        """The width of the values that a head weighs."""
        return self.v.shape[3] if self.value_projection is None else np.shape(self.value_projection)[2]

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Dv], or [B, 1, Sq, O] of a layer."""
        if self.output_projection is None:
            return (*self.score_shape[:3], self.value_dim)
        return (self.batch, 1, self.query_length, self.output_width)

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Sk]."""
        return (self.batch, self.query_heads, self.query_length, self.key_length)

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the axes by letter, see :attr:`Option.axes`."""
        widths = (self.head_dim, self.score_width, self.value_dim, self.head_value_dim, self.output_width)
        return dict(zip("BHQKDAVUO", (*self.score_shape, *widths), strict=True))

    @property
    def output_width(self) -> int:
        """The length of a row of the output."""
        return self.value_dim if self.output_projection is None else np.shape(self.output_projection)[2]

    @property
    def score_width(self) -> int:
        """The length of ``score_vector``, or of the queries of a layer, D without one."""
        if self.projects:
            return np.shape(self.query_projection)[2]
        vector = np.asarray(self.score_vector)
        return vector.shape[-1] if vector.ndim else self.head_dim

    @property
    def score_option(self) -> str | None:
        """The option that replaces the product of q and k by another score; None is the product."""
        return next((n for n, row in OPTIONS.items() if row.kind == SCORE and getattr(self, n) is not None), None)

    @property
    def scale_divisor(self) -> int:
        """n of the scale 1/sqrt(n) that holds where none is given: D, unless the score has its own.

        In a layer it is the width of its heads.
        """
        option = self.score_option
        if option == "query_projection":
            return self.score_width
        return self.head_dim if option is None or OPTIONS[option].divides else 1

    @property
    def scale_value(self) -> float:
        """The scale rounded to float64."""
        return self.scale_divisor**-0.5 if self.scale is None else self.scale
