"""Formats of numbers, a row each: precision, range, and the document that defines the format."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format with subnormals, or a format of integers."""

    name: str
    #: Number p of significand bits, hidden bit included.
    precision: int
    #: Exponent of the smallest normal number, 2**emin.
    emin: int
    #: Largest finite number.
    largest: float
    #: Result of rounding a number that lies above the largest and above its tie with the next step of the grid:
    #: "infinity"; or in a format without infinities "nan", or its "largest" number.
    above: str = "infinity"
    #: Least number; None is minus the largest.
    least: float | None = None
    #: True if the format tells -0.0 from 0.0.
    negative_zero: bool = True
    #: True if the format has 0 and negative numbers. One without has NaN for these, and its smallest number for all
    #: positive numbers below it.
    signed: bool = True
    #: True if the numbers are integers, among which are no NaN and no infinity.
    is_integer: bool = False
    #: Standard or document that defines the format.
    source: str

    @functools.cached_property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a normal number to nearest, u = 2**-p."""
        return 2.0**-self.precision

    @property
    def rounds_to_largest(self) -> float:
        """The end of the numbers that are rounded to the largest, half a step of the grid above it."""
        return self.largest + 2.0 ** (math.floor(math.log2(self.largest)) - self.precision)

    @functools.cached_property
    def smallest_normal(self) -> float:
        """The smallest positive normal number, 2**emin."""
        return 2.0**self.emin

    @functools.cached_property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, 2**(emin - p + 1) or 1: the spacing of the grid around zero."""
        return 1.0 if self.is_integer else 2.0 ** (self.emin - self.precision + 1)

    def __hash__(self) -> int:
        """Return the hash of the name, which no two formats share: caches of what bounds said are keyed by formats."""
        return hash(self.name)

    def includes(self, other: Format) -> bool:
        """Return whether each finite number of another format is one of this: it has as many bits, and the range."""
        fine = self.precision >= other.precision and self.smallest_subnormal <= other.smallest_subnormal
        return fine and self.largest >= other.largest


#: Facts of formats whose code of -0.0 is their only NaN.
_FNUZ: dict[str, Any] = {"above": "nan", "negative_zero": False}

#: Facts of integers in two's complement. Quantisers that are symmetric leave the least out.
_INTEGERS: dict[str, Any] = {"above": "largest", "negative_zero": False, "is_integer": True}

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
    Format(name="int8", precision=7, emin=0, largest=127.0, least=-128.0, source="ISO/IEC 9899, int8_t", **_INTEGERS),
)

#: Formats of tensors and of stages of a contract, by name.
FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}

#: Facts of formats without infinities or NaN.
_FINITE: dict[str, Any] = {"above": "largest", "source": "OCP MX 1.0"}

_CODES = (
    Format(name="int4", precision=3, emin=0, largest=7.0, source="two's complement", **_INTEGERS),
    Format(name="float6_e3m2fn", precision=3, emin=-2, largest=28.0, **_FINITE),
    Format(name="float6_e2m3fn", precision=4, emin=0, largest=7.5, **_FINITE),
    Format(name="float4_e2m1fn", precision=2, emin=0, largest=6.0, **_FINITE),
)
_POWERS: dict[str, Any] = {"above": "nan", "negative_zero": False, "signed": False, "source": "OCP MX 1.0"}

#: Formats that only codes of a quantiser have, by name; no tensor and no stage of a contract has them.
CODES: dict[str, Format] = {row.name: row for row in _CODES}

#: Formats that only scales of a quantiser have, by name: powers of 2.
SCALES: dict[str, Format] = {
    row.name: row for row in (Format(name="float8_e8m0fnu", precision=1, emin=-127, largest=2.0**127, **_POWERS),)
}

#: Every format, by name.
EVERY: dict[str, Format] = FORMATS | CODES | SCALES

#: Floating-point formats, which results of a kernel's operations may have.
FLOATS = tuple(name for name, row in FORMATS.items() if not row.is_integer)


@functools.cache
def narrowest(*names: str) -> Format:
    """Return the float of fewest bits, then of least range, that includes all of these formats, given by name."""
    given = [EVERY[name] for name in names]
    able = [FORMATS[name] for name in FLOATS if all(map(FORMATS[name].includes, given))]
    return min(able, key=lambda form: (form.precision, -form.emin))


#: Formats in which a problem's tensors may be stored.
DTYPES = ("float64", "float32", "float16", "bfloat16")

#: Floats of 8 bits in which q, k, v and outputs may be stored beside these; no gradient or option has them.
FLOATS_OF_8_BITS = tuple(name for name in FLOATS if name.startswith("float8_"))

#: Formats in which outputs may be stored.
OUTPUT_DTYPES = (*DTYPES, *FLOATS_OF_8_BITS)

#: Formats of 8 bits in which q, k and v may be stored: these floats, and integers.
EIGHT_BITS = (*FLOATS_OF_8_BITS, *(name for name in FORMATS if name not in FLOATS))

#: Formats in which q, k and v may be stored.
INPUT_DTYPES = (*DTYPES, *EIGHT_BITS)
