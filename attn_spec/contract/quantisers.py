"""Quantisers: how a kernel makes numbers of few bits of q, k and v, in enough detail to do the same again.

A quantiser cuts a tensor into blocks of tokens. Of each block it takes the largest magnitude, and from that a scale. It
keeps each number over the scale as a *code*, a number of few bits. The kernel then multiplies codes, and its products
by the scales. Its answer is compared with attention of codes times scales (``bounds.replay``).

Sources: SageAttention, arXiv 2410.02367, sections 4.2 and 4.3; SageAttention2, arXiv 2411.10958, section 3.2 (lanes);
FlashAttention-3, arXiv 2407.08608, section 3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attn_spec.numbers.formats import CODES, EVERY, FLOATS_OF_8_BITS


class QuantiserError(ValueError):
    """A quantiser with a field that no kernel can have."""


@dataclass(frozen=True, kw_only=True)
class Quantiser:
    """Steps by which a kernel makes codes of q, k or v before their products. Each field is a promise."""

    #: Tensor that is quantised: "q", "k" or "v".
    of: str
    #: Format of the codes: "int8" or "int4", of which the least integer is never used, or a floating-point format of 4,
    #: 6 or 8 bits.
    format: str = "int8"
    #: Tokens of one head that share a scale: a number of tokens in a row, 1 for each its own; "head", all tokens of a
    #: head; or "tensor", all of all heads and batch entries.
    block: int | str = "head"
    #: Scales of one block of tokens: token t of a block has that number t // lane_width modulo lanes. SageAttention2
    #: has 8 lanes of width 1 in blocks of 32 queries, and 4 of width 2 in blocks of 64 keys.
    lanes: int = 1
    lane_width: int = 1
    #: Tokens that count for scales and means, and that blocks start from: those of the "sequence", or all of the
    #: "buffer", behind its length too. A token that another option masks counts.
    over: str = "sequence"
    #: Code of the largest magnitude of a block; None is the largest code.
    largest: float | None = None
    #: Scale of all blocks, which data do not change, so that codes saturate; None is that of the largest magnitude.
    scale: float | None = None
    #: Number that is added to each scale.
    epsilon: float = 0.0
    #: Format in which a scale is kept.
    scale_dtype: str = "float32"
    #: Format of the quantiser's own arithmetic: magnitudes, scales and quotients.
    arithmetic: str = "float32"
    #: Error of a scale and of a quotient beyond their rounding, in unit roundoffs of ``arithmetic``: 0 of a division
    #: that is correctly rounded, 2 of a product with the rounded reciprocal, 4 of CUDA's fast division (2 ulps).
    division_error: float = 4.0
    #: Rounding of a quotient to a code: "nearest_even"; "nearest", with ties on either side; "add_half", a sum with 1/2
    #: of its sign, which is rounded and then cut; or "toward_zero".
    rounding: str = "nearest_even"
    #: Vector that is subtracted from keys first: none, or the "mean_of_keys" of their head. It moves all scores of a
    #: row alike. The kernel adds the query's product with it to the log-sum-exp.
    subtracts: str | None = None
    #: Format of the mean, of keys without it, and of its product with a query: one of its name, or "input".
    mean_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Raise :class:`QuantiserError` for a field that has another type, or a word that is not known."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise QuantiserError(f"quantiser field {name} must be one of {allowed}, not {getattr(self, name)!r}")
        if not (self.block in ("head", "tensor") or _is_count(self.block)):
            raise QuantiserError(
                f'quantiser field block must be a number of tokens, 1 or more, "head" or "tensor", not {self.block!r}'
            )
        for name in ("lanes", "lane_width"):
            if not _is_count(getattr(self, name)):
                raise QuantiserError(
                    f"quantiser field {name} must be an integer, 1 or more, not {getattr(self, name)!r}"
                )
        for name, least in (("division_error", 0.0), ("epsilon", 0.0), ("scale", None), ("largest", None)):
            self._check_number(name, least)
        self._check_together()

    def _check_together(self) -> None:
        """Raise :class:`QuantiserError` for fields that contradict one another."""
        if self.largest is not None and self.largest > self.largest_code:
            raise QuantiserError(
                f"quantiser field largest must be at most {self.largest_code:g}, the largest code of {self.format}, "
                f"not {self.largest!r}; a kernel that goes beyond saturates, and no quantiser says so"
            )
        if self.rounding == "add_half" and not self.has_integers:
            raise QuantiserError(f'quantiser field rounding="add_half" makes integers, and none of {self.format}')
        if self.subtracts and self.of != "k":
            raise QuantiserError(f'quantiser field subtracts="mean_of_keys" is one of k, not of {self.of}')
        if self.lanes > 1 and not isinstance(self.block, int):
            raise QuantiserError("quantiser field lanes divides blocks of a number of tokens; declare block=")

    def _check_number(self, name: str, least: float | None) -> None:
        value = getattr(self, name)
        if value is None and least is None:
            return
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not (math.isfinite(number) and (number > 0 if least is None else number >= least)):
            wanted = "above 0, or None" if least is None else f"{least:g} or more"
            raise QuantiserError(f"quantiser field {name} must be finite, {wanted}, not {value!r}")

    @property
    def largest_code(self) -> float:
        """Return the largest code of the format."""
        return EVERY[self.format].largest

    @property
    def has_integers(self) -> bool:
        """Return whether codes are integers."""
        return EVERY[self.format].is_integer

    @property
    def most(self) -> float:
        """Return the code of the largest magnitude of a block."""
        return self.largest_code if self.largest is None else float(self.largest)

    def __str__(self) -> str:
        tokens = f"{self.block} tokens" if isinstance(self.block, int) else f"a {self.block}"
        lanes = f" in {self.lanes} lanes" if self.lanes > 1 else ""
        smoothed = " without the mean of keys" if self.subtracts else ""
        return f"{self.of}{smoothed} in {self.format}, a scale for {tokens}{lanes}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


#: Values that a field may have, by its name; fields of numbers are left out.
CHOICES: dict[str, tuple[Any, ...]] = {
    "of": ("q", "k", "v"),
    "format": ("int8", *CODES, *FLOATS_OF_8_BITS),
    "over": ("sequence", "buffer"),
    "scale_dtype": ("float32", "float16", "bfloat16"),
    "arithmetic": ("float32", "float64"),
    "rounding": ("nearest_even", "nearest", "add_half", "toward_zero"),
    "subtracts": (None, "mean_of_keys"),
    "mean_dtype": ("float32", "float16", "bfloat16", "input"),
}
