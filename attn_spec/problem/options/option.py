"""The record of one option of a problem: a row of :mod:`options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_spec.faults import with_article
from attn_spec.numbers import bits

#: The shape [B, Hq, Sq, Sk] of an option's tensor.
Shape = tuple[int, int, int, int]

#: Kinds of options. MASK masks keys. TERM changes a score. ADDEND is added to the score of each pair of query and key.
#: SCORE selects another score function. WEIGHT multiplies weights.
MASK, TERM, ADDEND, SCORE, WEIGHT = "mask", "term", "addend", "score", "weight"
#: Kinds of options that depend on others. PARAMETER is a further parameter of another option. CHOICE says how other
#: options are read.
PARAMETER, CHOICE = "parameter", "choice"
#: Kind of options that say how tensors of the input depend on one another. No formula has such an option in it.
TIE = "tie"
#: Kind of options that say what real numbers the stored output stands for. Formulas of that real output have no such
#: option in them; its last rounding does.
OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of the table of options: an option and all that the suite knows about it."""

    #: Name of the field of ``Options``.
    name: str = ""
    #: Meaning of the option in a kernel's declaration, as ``attn-spec explain`` prints it.
    says: str
    #: One of MASK, TERM, ADDEND, SCORE, WEIGHT, PARAMETER, CHOICE, TIE and OUTPUT.
    kind: str
    #: Names of the parameter by which callables take the option.
    spellings: tuple[str, ...]
    #: Text of the values that are allowed; for a tensor, text of the elements that are forbidden.
    wanted: str
    #: True if a value, or every element of a tensor, is allowed.
    accepts: Callable[[Any], bool]
    #: True if a plain value agrees with the lengths of the axes, by letter.
    fits: Callable[[Any, Mapping[str, int]], bool] = lambda value, lengths: True
    #: Keys that the option leaves visible in a problem that uses it: bool, broadcastable to [B, Hq, Sq, Sk]. None means
    #: that the option masks no key.
    sees: Callable[[Any], np.ndarray] | None = None
    #: Value of the field in a problem that does not use the option.
    off: Any = None
    #: Other values by which callables turn the option off.
    spelled_off: tuple[Any, ...] = ()
    #: NumPy type of a tensor; None for a plain value. Numbers are exact values of a dtype.
    tensor: type | None = None
    #: Axes of the tensor, one letter each: B, H query heads, G kv heads, Q, K, D, 1, and the widths A, V, U and O. A is
    #: the width of a score, V of v, U of the values of a head, O of the output. B, H, G, Q and K may have length 1.
    axes: str = "BHQK"
    #: SCORE only: True if the score is divided by sqrt(D) when no scale is given.
    divides: bool = True
    #: SCORE and its PARAMETERs: True if the score is one product of operands that have q and k as factors. A sign
    #: change of both q and k then leaves the score unchanged.
    is_product: bool = True
    #: SCORE only: True if a factor of q or k is one of the score.
    is_linear: bool = True
    #: Name of the tensor that the option is a real factor of: "q", "k" or "v". Empty for other options.
    factor_of: str = ""
    #: SCORE only: True if weights are exponentials of the score. False if weights are the scores themselves; such a
    #: score has no terms.
    exponential: bool = True
    #: PARAMETER only: name of the option that the parameter belongs to.
    of: str = ""
    #: PARAMETER only: True if the option can be used without the parameter.
    optional: bool = False
    #: True if the option is part of a layer, which projects the values before they are weighted, and the output.
    projects_values: bool = False
    #: True if the option is added to the values or to the output of a layer.
    adds_to_values: bool = False
    #: True if the option is added to the sum that weights are divided by.
    adds_to_row_sum: bool = False
    #: True if the option depends on the position of a query or key in its sequence.
    positional: bool = False
    #: True if a positional option depends only on the distance of a key from the key that the query is aligned with.
    relative: bool = False
    #: True if the option says where the queries or keys of a batch entry begin or end, so that the diagonal of other
    #: options starts elsewhere.
    moves_diagonal: bool = False
    #: True if the option says that the values are columns of the keys, so that neither changes alone.
    ties_values: bool = False
    #: True if the option says that q and k are 0, so that scores have no products.
    lacks_products: bool = False
    #: Axis, "Q" or "K", whose length the numbers of an integer tensor may reach; patterns of the tensor are told that
    #: length. Empty for other options.
    up_to: str = ""
    #: True if the option counts from the key that the query is aligned with, and so depends on ``causal_alignment``.
    aligned: bool = False
    #: Value for one call that only shows whether the kernel takes the option, given the lengths of the axes. None means
    #: that no such call is made.
    plain: Callable[[Mapping[str, int]], Any] | None = None
    #: Value in common use, as a recipe holds it; its tensor is small at any length. Shapes that a user asks for are
    #: examined with it. None means that these examinations use the option only if the kernel requires it.
    usual: Any = None
    #: Values that the search draws, plain to wild. For a tensor they are names of patterns, which a recipe holds
    #: instead.
    draws: tuple[Any, ...]
    #: Patterns of the option's tensor by name; those of an option with ``up_to`` are ``patterns.LengthPattern``.
    patterns: Mapping[str, Any] = field(default_factory=dict)
    #: Relative frequency with which the search draws the option, beside other options and abilities. A PARAMETER is
    #: drawn with its option.
    weight: int = 2

    def is_used(self, value: Any) -> bool:
        """Return whether a problem with this value uses the option."""
        return self.kind != CHOICE and (value is not None if self.off is None else value != self.off)

    @property
    def changes_answers(self) -> bool:
        """True if a problem with this option has another answer than the problem with the same tensors without it."""
        return self.kind not in (CHOICE, TIE, OUTPUT)

    def shape(self, lengths: Mapping[str, int]) -> Shape:
        """Return the shape of the option's tensor when no axis is broadcast; ``lengths`` are those of the axes by
        letter.
        """
        batch, heads, rows, columns = (1 if axis == "1" else lengths[axis] for axis in self.axes)
        return batch, heads, rows, columns

    def excludes(self, other: Option) -> bool:
        """Return whether no problem uses both options.

        This one is a SCORE. The other is another SCORE, a term that this one lacks, a factor of a tensor that is none
        of the score or of the values, or for a layer a number of queries. Outputs of layers and of linear attention
        have no scale.
        """
        if self.kind != SCORE or self.name == other.name:
            return False
        if self.projects_values and other.up_to == "Q":  # a layer adds b_O to every row of its output
            return True
        if (other.factor_of and self.projects_values) or (other.factor_of in ("q", "k") and not self.is_linear):
            return True
        if other.kind == OUTPUT and self.projects_values:
            return True
        return other.kind == SCORE or (not self.exponential and other.kind in (TERM, ADDEND, WEIGHT, OUTPUT))

    @property
    def shape_text(self) -> str:
        """Axes of the option's tensor, as messages name them."""
        return ", ".join(_AXES.get(axis, axis) for axis in self.axes)

    def refusal(self, value: Any, lengths: Mapping[str, int], dtype: str) -> str | None:
        """Return why a problem with these axis lengths cannot have this value, as the end of a sentence; None if it
        can.
        """
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
        if not self.accepts(value) or (self.up_to and bool((value > lengths[self.up_to]).any())):
            return f"must not contain {self.wanted}"
        if self.tensor is np.float64 and not bits.is_representable(value, dtype):
            return f"has values that {dtype} cannot represent; round them with bits.nearest first"
        return None

    def _fits(self, shape: tuple[int, ...], whole: Shape) -> bool:
        """Return whether a tensor of ``shape`` broadcasts to ``whole``; only B, H, G, Q and K may be broadcast."""
        if len(shape) != len(whole):
            return False
        pairs = zip(self.axes, shape, whole, strict=True)
        return all(length == full or (length == 1 and axis in "BHGQK") for axis, length, full in pairs)


#: Longer names of axes, by letter.
_AXES = {"H": "Hq", "G": "Hkv", "Q": "Sq", "K": "Sk"}
