"""Every floating-point format as one row: precision, exponent range, and where it is defined."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Format:
    """A binary floating-point format with subnormals."""

    name: str
    #: p, the significand bits, hidden bit included.
    precision: int
    #: Exponent of the smallest normal number, 2**emin.
    emin: int
    #: Largest finite number.
    largest: float
    #: Where the format is defined.
    source: str

    @property
    def unit_roundoff(self) -> float:
        """u = 2**-p: the largest relative error of rounding a normal number to nearest."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """2**emin."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """2**(emin - p + 1), the spacing of the grid around zero."""
        return 2.0 ** (self.emin - self.precision + 1)


_ROWS = (
    Format(name="float64", precision=53, emin=-1022, largest=(2 - 2.0**-52) * 2.0**1023, source="IEEE 754-2019"),
    Format(name="float32", precision=24, emin=-126, largest=(2 - 2.0**-23) * 2.0**127, source="IEEE 754-2019"),
    Format(name="tf32", precision=11, emin=-126, largest=(2 - 2.0**-10) * 2.0**127, source="NVIDIA A100 whitepaper"),
    Format(name="bfloat16", precision=8, emin=-126, largest=(2 - 2.0**-7) * 2.0**127, source="Intel 338302-001"),
    Format(name="float16", precision=11, emin=-14, largest=65504.0, source="IEEE 754-2019"),
)

#: Formats by name.
FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}

#: The formats a problem's tensors may be stored in.
DTYPES = ("float64", "float32", "float16", "bfloat16")
