"""What is known of one option of a problem: a row of :mod:`options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_spec.faults import with_article
from attn_spec.numbers import bits
from attn_spec.problem import patterns

#: [B, Hq, Sq, Sk].
Shape = tuple[int, int, int, int]

#: Kinds: it hides keys; it changes scores, or is added to them; it chooses another score function; it multiplies
#: weights; it is one more parameter of such an option; or it says how other options are meant.
MASK, TERM, ADDEND, SCORE, WEIGHT = "mask", "term", "addend", "score", "weight"
PARAMETER, CHOICE = "parameter", "choice"


@dataclass(frozen=True, kw_only=True)
class Option:
    """All that is known of one option."""

    #: The field's name.
    name: str = ""
    #: What a kernel that declares it does.
    says: str
    #: MASK, TERM, ADDEND, SCORE, WEIGHT, PARAMETER or CHOICE.
    kind: str
    #: Names that callables give the parameter it is passed by.
    spellings: tuple[str, ...]
    #: What a value must be, and whether one is that.
    wanted: str
    accepts: Callable[[Any], bool]
    #: Of a plain value: whether it goes with the lengths of the axes.
    fits: Callable[[Any, Mapping[str, int]], bool] = lambda value, lengths: True
    #: Which keys it leaves visible in a problem that uses it: bool, broadcastable to [B, Hq, Sq, Sk]. None: all.
    sees: Callable[[Any], np.ndarray] | None = None
    #: Its value in a problem that does not use it.
    off: Any = None
    #: Other values by which callables say that.
    spelled_off: tuple[Any, ...] = ()
    #: The NumPy type of a tensor; None is a plain value. Numbers are exact values of a dtype.
    tensor: type | None = None
    #: The axes of that tensor: B, H query heads, Q, K, D, A the width of a score, V the width of v, U that of a head's
    #: values, O that of the output, or 1. B, H, Q and K may be 1 instead.
    axes: str = "BHQK"
    #: Of a SCORE: whether it is divided by sqrt(D) where no scale is given.
    divides: bool = True
    #: Of a SCORE: whether it is a product of operands that q and k are factors of, so that it is even in both together.
    is_product: bool = True
    #: Of a SCORE: whether weights are exponentials of it; else they are the scores themselves, which have no terms.
    exponential: bool = True
    #: Of a PARAMETER: the option that it belongs to, and whether that can do without it.
    of: str = ""
    optional: bool = False
    #: Whether it is part of a layer, which projects values before they are weighted, and the output; and whether it is
    #: added to one of these.
    projects_values: bool = False
    adds_to_values: bool = False
    #: Whether it is added to what weights are divided by.
    adds_to_row_sum: bool = False
    #: Whether it depends on where in its sequence a query or a key stands; and then whether all that counts is how far
    #: a key stands from the one that the query is aligned with.
    positional: bool = False
    relative: bool = False
    #: A value for one call that only shows whether the kernel takes the option, given the lengths of the axes;
    #: None: no such call is made.
    plain: Callable[[Mapping[str, int]], Any] | None = None
    #: A value in usual use, as a recipe holds it, whose tensor is small at any length: shapes that a user asks for are
    #: examined with it; None: not with this option, if the kernel can do without.
    usual: Any = None
    #: Values that the search draws, plain to wild; of a tensor the names of patterns, which a recipe holds instead.
    draws: tuple[Any, ...]
    patterns: Mapping[str, patterns.Pattern] = field(default_factory=dict)
    #: How often it is drawn, beside other options and abilities; a PARAMETER comes with its option.
    weight: int = 2

    def is_used(self, value: Any) -> bool:
        """Return whether a problem with this value asks for the option."""
        return self.kind != CHOICE and (value is not None if self.off is None else value != self.off)

    def shape(self, lengths: Mapping[str, int]) -> Shape:
        """The shape of its tensor when no axis is broadcast, given the lengths of the axes."""
        batch, heads, rows, columns = (1 if axis == "1" else lengths[axis] for axis in self.axes)
        return batch, heads, rows, columns

    def excludes(self, other: Option) -> bool:
        """Return whether no problem uses both: each names the score function, or one is a term that the score lacks."""
        if self.kind != SCORE or self.name == other.name:
            return False
        return other.kind == SCORE or (not self.exponential and other.kind in (TERM, ADDEND, WEIGHT))

    @property
    def shape_text(self) -> str:
        """Axes of the option's tensor, as messages name them."""
        return ", ".join(_AXES.get(axis, axis) for axis in self.axes)

    def refusal(self, value: Any, lengths: Mapping[str, int], dtype: str) -> str | None:
        """Why a problem with these lengths of the axes cannot have this value, as the end of a sentence."""
        if self.tensor is None:
            right = self.accepts(value) and self.fits(value, lengths)
            return None if right else f"must be {self.wanted}, not {value!r}"
        if value is None:
            return None
        shape = self.shape(lengths)
        if not isinstance(value, np.ndarray) or value.dtype != self.tensor or not self._fits(value.shape, shape):
            kind = np.dtype(self.tensor).name
            wanted = f"[{self.shape_text}] = {shape}"
            return f"must be {with_article(kind)} array broadcastable to {wanted}, not {bits.described(value)}"
        if not self.accepts(value):
            return f"must not hold {self.wanted}"
        if self.tensor is np.float64 and not bits.is_representable(value, dtype):
            return f"holds values that {dtype} cannot; round them with bits.nearest first"
        return None

    def _fits(self, shape: tuple[int, ...], whole: Shape) -> bool:
        """Return whether a tensor of ``shape`` broadcasts to the ``whole``, without a width of another length."""
        if len(shape) != len(whole):
            return False
        pairs = zip(self.axes, shape, whole, strict=True)
        return all(length == full or (length == 1 and axis in "BHQK") for axis, length, full in pairs)


#: Axes whose lengths have longer names.
_AXES = {"H": "Hq", "Q": "Sq", "K": "Sk"}
