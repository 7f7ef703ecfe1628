"""Floating-point formats, a row each: precision, exponent range, and the document that defines the format."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format with subnormals."""

    name: str
    #: Number p of significand bits, hidden bit included.
    precision: int
    #: Exponent of the smallest normal number, 2**emin.
    emin: int
    #: Largest finite number.
    largest: float
    #: Result of rounding a number that lies above the largest and above its tie with the next step of the grid:
    #: "infinity"; or "nan" in a format without infinities.
    above: str = "infinity"
    #: True if the format tells -0.0 from 0.0.
    negative_zero: bool = True
    #: Standard or document that defines the format.
    source: str

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a normal number to nearest, u = 2**-p."""
        return 2.0**-self.precision

    @property
    def rounds_to_largest(self) -> float:
        """The end of the numbers that are rounded to the largest, half a step of the grid above it."""
        return self.largest + 2.0 ** (math.floor(math.log2(self.largest)) - self.precision)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive normal number, 2**emin."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, 2**(emin - p + 1): the spacing of the grid around zero."""
        return 2.0 ** (self.emin - self.precision + 1)

    def includes(self, other: Format) -> bool:
        """Return whether each finite number of another format is one of this: it has as many bits, and the range."""
        fine = self.precision >= other.precision and self.smallest_subnormal <= other.smallest_subnormal
        return fine and self.largest >= other.largest


#: Facts of formats whose code of -0.0 is their only NaN.
_FNUZ: dict[str, Any] = {"above": "nan", "negative_zero": False}

_ROWS = (
    Format(name="float64", precision=53, emin=-1022, largest=(2 - 2.0**-52) * 2.0**1023, source="IEEE 754-2019"),
    Format(name="float32", precision=24, emin=-126, largest=(2 - 2.0**-23) * 2.0**127, source="IEEE 754-2019"),
    Format(name="tf32", precision=11, emin=-126, largest=(2 - 2.0**-10) * 2.0**127, source="NVIDIA A100 whitepaper"),
    Format(name="bfloat16", precision=8, emin=-126, largest=(2 - 2.0**-7) * 2.0**127, source="Intel 338302-001"),
    Format(name="float16", precision=11, emin=-14, largest=65504.0, source="IEEE 754-2019"),
    Format(name="float8_e4m3fn", precision=4, emin=-6, largest=448.0, above="nan", source="OCP OFP8 1.0"),
    Format(name="float8_e5m2", precision=3, emin=-14, largest=57344.0, source="OCP OFP8 1.0"),
    Format(name="float8_e4m3fnuz", precision=4, emin=-7, largest=240.0, source="arXiv 2206.02915", **_FNUZ),
    Format(name="float8_e5m2fnuz", precision=3, emin=-15, largest=57344.0, source="arXiv 2206.02915", **_FNUZ),
)

#: Formats by name.
FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}


@functools.cache
def narrowest(*names: str) -> Format:
    """Return the format of fewest bits, then of least range, that includes all of these formats, given by name."""
    given = [FORMATS[name] for name in names]
    able = [form for form in FORMATS.values() if all(map(form.includes, given))]
    return min(able, key=lambda form: (form.precision, -form.emin))


#: Formats in which a problem's tensors may be stored.
DTYPES = ("float64", "float32", "float16", "bfloat16")

#: Formats of 8 bits in which q, k, v and outputs may be stored beside these; no gradient or option has them.
EIGHT_BITS = tuple(name for name in FORMATS if name.startswith("float8_"))

#: Formats in which q, k and v may be stored.
INPUT_DTYPES = (*DTYPES, *EIGHT_BITS)
