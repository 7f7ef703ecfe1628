"""Quantisers: how a kernel makes numbers of few bits of q, k and v, in enough detail to do the same again.

A quantiser cuts a tensor into blocks of tokens. Of each block it takes the largest magnitude, and from that a scale. It
keeps each number over the scale as a *code*, a number of few bits. The kernel then multiplies codes, and its products
by the scales. Its answer is compared with attention of codes times scales (``bounds.replay``).

Blocks may be cut along columns too. Their scales multiply the codes before products are added, since products with
several of them are summed. A *second level* is one more scale, of all blocks of a head or tensor: products have it.

Sources: SageAttention, arXiv 2410.02367, sections 4.2 and 4.3; SageAttention2, arXiv 2411.10958, section 3.2 (lanes);
FlashAttention-3, arXiv 2407.08608, section 3.3 (rotation); OCP Microscaling Formats 1.0, section 6 (blocks of columns);
SageAttention3, arXiv 2505.11594, section 3 (two levels).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attn_spec.numbers.formats import CODES, EVERY, FLOATS_OF_8_BITS, SCALES


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
    #: Neighbouring columns that share a scale; None is all of a token. The mx formats have 32 columns with scales in
    #: float8_e8m0fnu, nvfp4 has 16 with float8_e4m3fn. Blocks of values are along tokens: block=32, columns=1.
    columns: int | None = None
    #: Tokens whose largest magnitude makes a scale of the second level: a "head", or the "tensor"; None is one level.
    #: That scale is the magnitude over the largest code and the largest scale, in float32. Scales of blocks are those
    #: of numbers divided by it, in float8_e4m3fn.
    second_level: str | None = None
    #: Tokens that count for scales and means, and that blocks start from: those of the "sequence", or all of the
    #: "buffer", behind its length too. A token that another option masks counts. Or those that are "appended": a call
    #: writes their codes and scales to caches, which have those of other tokens already. Each has a scale of its own.
    over: str = "sequence"
    #: Code of the largest magnitude of a block; None is the largest code.
    largest: float | None = None
    #: Scale of all blocks, which data do not change, so that codes saturate; None is that of the largest magnitude.
    scale: float | None = None
    #: Number that is added to each scale.
    epsilon: float = 0.0
    #: Least scale of a token, which those of smaller numbers have: vLLM has 1e-6.
    least_scale: float = 0.0
    #: Format in which a scale is kept.
    scale_dtype: str = "float32"
    #: Rounding of a scale to its format: "nearest_even", "up" or "down". The mx formats have "up"; or "down" with the
    #: power of 2 below the largest code as ``largest``, so that codes saturate.
    scale_rounding: str = "nearest_even"
    #: Format of the quantiser's own arithmetic: magnitudes, scales and quotients.
    arithmetic: str = "float32"
    #: Error of a scale and of a quotient beyond their rounding, in unit roundoffs of ``arithmetic``: 0 of a division
    #: that is correctly rounded, 2 of a product with the rounded reciprocal, 4 of CUDA's fast division (2 ulps).
    division_error: float = 4.0
    #: Rounding of a quotient to a code: "nearest_even"; "nearest", with ties on either side; "add_half", a sum with 1/2
    #: of its sign, which is rounded and then cut; "toward_zero"; or "either", any of the two codes around it, as
    #: stochastic rounding has. That is a weak contract: every code may be a step away, and the bound is as wide.
    rounding: str = "nearest_even"
    #: Vector that is subtracted from keys first: none, or the "mean_of_keys" of their head. It moves all scores of a
    #: row alike. The kernel adds the query's product with it to the log-sum-exp.
    subtracts: str | None = None
    #: Format of the mean, of keys without it, and of its product with a query: one of its name, or "input".
    mean_dtype: str = "float32"
    #: Orthogonal matrix that multiplies the vectors of q and k first: none, or "hadamard". That is H / sqrt(n), of
    #: Sylvester's H, for each n neighbouring columns. n is the largest power of 2 that divides the head dimension.
    rotates: str | None = None
    #: Signs of columns before that: column d is multiplied by number d of these, 1 or -1, modulo their count. No signs
    #: are all 1.
    signs: tuple[int, ...] = ()
    #: Format of rotated numbers: one of its name, or "input".
    rotated_dtype: str = "float32"

    def __post_init__(self) -> None:
        """Raise :class:`QuantiserError` for a field that has another type, or a word that is not known."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise QuantiserError(f"quantiser field {name} must be one of {allowed}, not {getattr(self, name)!r}")
        if not (self.block in ("head", "tensor") or _is_count(self.block)):
            raise QuantiserError(
                f'quantiser field block must be a number of tokens, 1 or more, "head" or "tensor", not {self.block!r}'
            )
        for name in ("lanes", "lane_width", "columns"):
            if not _is_count(getattr(self, name)) and not (name == "columns" and self.columns is None):
                raise QuantiserError(
                    f"quantiser field {name} must be an integer, 1 or more, not {getattr(self, name)!r}"
                )
        not_negative = dict.fromkeys(("division_error", "epsilon", "least_scale"), 0.0)
        for name, least in {**not_negative, "scale": None, "largest": None}.items():
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
        self._check_rotation()
        self._check_columns()
        self._check_appended()

    def _check_appended(self) -> None:
        if self.least_scale and self.columns is not None:
            raise QuantiserError("quantiser field least_scale is one of tokens, not of blocks of columns; leave it out")
        if self.over != "appended":
            return
        if self.of == "q":
            raise QuantiserError('quantiser field over="appended" is one of k and v, which a call appends, not of q')
        plain = {"block": 1, "lanes": 1, "columns": None, "scale": None, "subtracts": None, "rotates": None}
        for name, only in plain.items():
            if getattr(self, name) != only:
                raise QuantiserError(
                    f'quantiser field over="appended" needs {name}={only!r}, not {getattr(self, name)!r}: a cache has '
                    "the scale of each token and head, of its numbers as they are"
                )

    def _check_rotation(self) -> None:
        if self.rotates and self.of == "v":
            raise QuantiserError(
                "quantiser field rotates is one of q and k: an output of rotated values is rotated too"
            )
        if not (isinstance(self.signs, tuple) and all(sign in (1, -1) for sign in self.signs)):
            raise QuantiserError(f"quantiser field signs must be a tuple of 1 and -1, not {self.signs!r}")
        if self.signs and not self.rotates:
            raise QuantiserError('quantiser field signs is one of a rotation; declare rotates="hadamard"')

    def _check_columns(self) -> None:
        if self.second_level and self.columns is None:
            raise QuantiserError("quantiser field second_level is one of blocks of columns; declare columns=")
        if self.second_level and self.scale_dtype != "float8_e4m3fn":
            raise QuantiserError(
                "quantiser field second_level brings scales of blocks into the range of float8_e4m3fn; declare "
                f'scale_dtype="float8_e4m3fn", not {self.scale_dtype!r}'
            )
        if self.scale is not None and self.columns is not None:
            raise QuantiserError("quantiser fields scale and columns exclude each other: a fixed scale has no blocks")
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

    @classmethod
    def of_both(cls, **steps: Any) -> tuple[Quantiser, Quantiser]:
        """Return quantisers of q and of k with the same fields."""
        return cls(of="q", **steps), cls(of="k", **steps)

    @property
    def largest_code(self) -> float:
        """Return the largest code of the format."""
        return EVERY[self.format].largest

    @property
    def rotation(self) -> tuple[str | None, tuple[int, ...]]:
        """Return what a score must find of both its vectors alike, so that their product stays."""
        return self.rotates, self.signs

    @property
    def is_of_appended(self) -> bool:
        """Return whether codes and scales are written to caches, for the tokens that a call appends."""
        return self.over == "appended"

    @property
    def has_descale(self) -> bool:
        """Return whether products have a scale: that of tokens, or of the second level."""
        return self.columns is None or self.second_level is not None

    @property
    def has_integers(self) -> bool:
        """Return whether codes are integers."""
        return EVERY[self.format].is_integer

    @property
    def most(self) -> float:
        """Return the code of the largest magnitude of a block."""
        return self.largest_code if self.largest is None else float(self.largest)

    def __str__(self) -> str:
        counted = "token" if self.block == 1 else "tokens"
        tokens = f"{self.block} {counted}" if isinstance(self.block, int) else f"a {self.block}"
        tokens = "each appended token" if self.is_of_appended else tokens
        lanes = f" in {self.lanes} lanes" if self.lanes > 1 else ""
        smoothed = " without the mean of keys" if self.subtracts else ""
        rotated = ", rotated," if self.rotates else ""
        columns = "" if self.columns is None else f" and {self.columns} columns"
        second = f", and one for a {self.second_level}" if self.second_level else ""
        return f"{self.of}{smoothed}{rotated} in {self.format}, a scale for {tokens}{lanes}{columns}{second}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


#: Values that a field may have, by its name; fields of numbers are left out.
CHOICES: dict[str, tuple[Any, ...]] = {
    "of": ("q", "k", "v"),
    "format": ("int8", *CODES, *FLOATS_OF_8_BITS),
    "over": ("sequence", "buffer", "appended"),
    "second_level": (None, "head", "tensor"),
    "scale_dtype": ("float32", "float16", "bfloat16", "float8_e4m3fn", *SCALES),
    "scale_rounding": ("nearest_even", "up", "down"),
    "arithmetic": ("float32", "float64"),
    "rounding": ("nearest_even", "nearest", "add_half", "toward_zero", "either"),
    "subtracts": (None, "mean_of_keys"),
    "mean_dtype": ("float32", "float16", "bfloat16", "input"),
    "rotates": (None, "hadamard"),
    "rotated_dtype": ("float32", "float16", "bfloat16", "input"),
}
