"""Tensors q, k and v of a problem, the lengths of their axes, and facts that follow from the lengths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_spec.problem.options import OPTIONS, Options
from attn_spec.problem.options.option import SCORE


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Shapes(Options):
    """q, k and v of a problem. Query head h reads kv head ``h // (Hq // Hkv)``; in a layer q, k and v have one head."""

    #: Queries, [B, Hq, Sq, D].
    q: np.ndarray
    #: Keys, [B, Hkv, Sk, D].
    k: np.ndarray
    #: Values, [B, Hkv, Sk, Dv].
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
        """Number of query heads that share one kv head; for a layer, of projected heads per kv head."""
        return self.query_heads // max(self.kv_heads, 1)

    @property
    def query_group(self) -> int:
        """Number of heads of the tensor q per head of k."""
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
        """Width of the vectors whose products are scores: D, or the width of a layer's projected queries."""
        return self.score_width if self.projects else self.head_dim

    @property
    def projects(self) -> bool:
        """True if the problem is a layer."""
        return self.query_projection is not None

    def query_head(self, head: int) -> int:
        """Return the head of the tensor q that a query head reads: itself, or head 0 in a layer."""
        return 0 if self.projects else head

    @property
    def head_value_dim(self) -> int:
        """Width of the values that one head weights."""
        return self.v.shape[3] if self.value_projection is None else np.shape(self.value_projection)[2]

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of the output: [B, Hq, Sq, Dv], or [B, 1, Sq, O] for a layer."""
        if self.output_projection is None:
            return (*self.score_shape[:3], self.value_dim)
        return (self.batch, 1, self.query_length, self.output_width)

    @property
    def score_shape(self) -> tuple[int, int, int, int]:
        """Shape of the scores, [B, Hq, Sq, Sk]."""
        return (self.batch, self.query_heads, self.query_length, self.key_length)

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the axes by letter, see :attr:`Option.axes`."""
        widths = (self.head_dim, self.score_width, self.value_dim, self.head_value_dim, self.output_width)
        return dict(zip("BHQKDAVUOG", (*self.score_shape, *widths, self.kv_heads), strict=True))

    @property
    def output_width(self) -> int:
        """Length of a row of the output."""
        return self.value_dim if self.output_projection is None else np.shape(self.output_projection)[2]

    @property
    def score_width(self) -> int:
        """Width A of ``score_vector`` or of a layer's projected queries; D if the problem has neither."""
        if self.projects:
            return np.shape(self.query_projection)[2]
        vector = np.asarray(self.score_vector)
        return vector.shape[-1] if vector.ndim else self.head_dim

    @cached_property
    def score_option(self) -> str | None:
        """Name of the option that replaces q.k by another score; None if no option does."""
        return next((n for n, row in OPTIONS.items() if row.kind == SCORE and getattr(self, n) is not None), None)

    @property
    def scale_divisor(self) -> int:
        """n of the default scale 1/sqrt(n): D, the width of a layer's heads, or 1 for a score that is not divided."""
        option = self.score_option
        if option == "query_projection":
            return self.score_width
        return self.head_dim if option is None or OPTIONS[option].divides else 1

    @property
    def scale_value(self) -> float:
        """Scale of the problem, rounded to float64."""
        return self.scale_divisor**-0.5 if self.scale is None else self.scale

    @property
    def output_unit(self) -> float:
        """Real number that a 1 in a stored output stands for: the scale of the output, else 1."""
        return 1.0 if self.o_scale is None else float(self.o_scale.item())
