"""Number formats as data: a row is a name, its bits and its specials; every limit is derived from them. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mpt.errors import PrecisionError, Problem
from mpt.registry import did_you_mean

Specials = Literal["ieee", "nan", "none"]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary floating-point format with subnormals; one that is not `signed` (E8M0) has no zero and none of them.

    `specials`: `ieee` gives the top exponent to inf and NaN, `nan` gives NaN the all-ones code only and has no
    inf (E4M3), `none` uses every code for a number. `storage` is the torch dtype that holds its values.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: Specials
    storage: str
    short: str
    source: str
    signed: bool = True

    @property
    def bits(self) -> int:
        """Width of a code: sign, exponent, mantissa."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return int(2 ** (self.exponent_bits - 1) - 1)

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; subnormals share it."""
        return (1 if self.signed else 0) - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        top = int(2**self.exponent_bits - 1)
        taken = self.specials == "ieee" or (self.specials == "nan" and self.mantissa_bits == 0)
        return top - self.bias - (1 if taken else 0)

    @property
    def max(self) -> float:
        """The largest finite number; exact in float64."""
        steps = 2 if self.specials == "nan" and self.mantissa_bits else 1
        return float((2.0 - steps * 2.0**-self.mantissa_bits) * 2.0**self.max_exponent)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal number."""
        return float(2.0**self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive number."""
        return float(2.0 ** (self.min_exponent - self.mantissa_bits))

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a number in the normal range to nearest."""
        return float(2.0 ** -(self.mantissa_bits + 1))


_IEEE754 = "IEEE 754-2019, table 3.5"
_OFP8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0"
_MX = "OCP Microscaling Formats (MX) Specification 1.0"

FORMATS: dict[str, NumberFormat] = {
    row.name: row
    for row in (
        NumberFormat("float32", 8, 23, "ieee", "float32", "fp32", _IEEE754),
        NumberFormat("tfloat32", 8, 10, "ieee", "float32", "tf32", "NVIDIA A100 architecture whitepaper (2020)"),
        NumberFormat("bfloat16", 8, 7, "ieee", "bfloat16", "bf16", "Intel bfloat16 numerics definition (2018)"),
        NumberFormat("float16", 5, 10, "ieee", "float16", "fp16", _IEEE754),
        NumberFormat("float8_e4m3fn", 4, 3, "nan", "float8_e4m3fn", "e4m3", _OFP8),
        NumberFormat("float8_e5m2", 5, 2, "ieee", "float8_e5m2", "e5m2", _OFP8),
        NumberFormat("float6_e3m2fn", 3, 2, "none", "float32", "e3m2", _MX),
        NumberFormat("float6_e2m3fn", 2, 3, "none", "float32", "e2m3", _MX),
        NumberFormat("float4_e2m1fn", 2, 1, "none", "float32", "e2m1", _MX),
        NumberFormat("float8_e8m0fnu", 8, 0, "nan", "float8_e8m0fnu", "e8m0", _MX, signed=False),
    )
}
COMPUTE = ("float32", "tfloat32", "bfloat16", "float16")
"""Formats that matmul and convolution take without a scale: what `precision.compute` may be."""

_SHORT = {row.short: row.name for row in FORMATS.values()}
_BY_BITS = re.compile(r"e([1-9]\d?)m(\d\d?)(fn)?")
_WIDEST = 8, 23
"""Exponent and mantissa bits of float32, in which emulated numbers are held."""


def format_of(name: str) -> NumberFormat:
    """The row of that name or short name (`e4m3`), or a format made of any other `eXmY`.

    A made format has inf and NaN as in IEEE 754; `eXmYfn` has no inf, and NaN only from 8 bits on, as OCP's have.
    Raises: PrecisionError with the nearest names when there is none.
    """
    known = FORMATS.get(_SHORT.get(name, name))
    if known is not None:
        return known
    bits = _BY_BITS.fullmatch(name)
    if bits is None:
        raise PrecisionError(Problem("format", f"got `{name}`", did_you_mean(name, [*FORMATS, *_SHORT])))
    return _made(name, int(bits[1]), int(bits[2]), bits[3] is not None)


def _made(name: str, exponent: int, mantissa: int, finite: bool) -> NumberFormat:
    if not (2 <= exponent <= _WIDEST[0] and 1 <= mantissa <= _WIDEST[1]):
        what = f"got `{name}`: {exponent} exponent and {mantissa} mantissa bits"
        raise PrecisionError(Problem("format", what, "want 2 to 8 exponent bits and 1 to 23 mantissa bits"))
    specials: Specials = "ieee" if not finite else "nan" if 1 + exponent + mantissa >= 8 else "none"
    return NumberFormat(name, exponent, mantissa, specials, "float32", name, "made of its bits")
