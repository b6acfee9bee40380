"""Number formats as data: a row is a name, its bits and its specials; every limit is derived from them. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpt.errors import PrecisionError, Problem
from mpt.registry import did_you_mean

Specials = Literal["ieee", "nan", "none"]


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A signed binary floating-point format with subnormals.

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

    @property
    def bits(self) -> int:
        """Width of a code: sign, exponent, mantissa."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return int(2 ** (self.exponent_bits - 1) - 1)

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; subnormals share it."""
        return 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        top = int(2**self.exponent_bits - 1)
        return top - self.bias - (1 if self.specials == "ieee" else 0)

    @property
    def max(self) -> float:
        """The largest finite number; exact in float64."""
        steps = 2 if self.specials == "nan" else 1
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

FORMATS: dict[str, NumberFormat] = {
    row.name: row
    for row in (
        NumberFormat("float32", 8, 23, "ieee", "float32", "fp32", _IEEE754),
        NumberFormat("tfloat32", 8, 10, "ieee", "float32", "tf32", "NVIDIA A100 architecture whitepaper (2020)"),
        NumberFormat("bfloat16", 8, 7, "ieee", "bfloat16", "bf16", "Intel bfloat16 numerics definition (2018)"),
        NumberFormat("float16", 5, 10, "ieee", "float16", "fp16", _IEEE754),
    )
}


def format_of(name: str) -> NumberFormat:
    """The row of that name.

    Raises: PrecisionError with the nearest names when there is none.
    """
    if name not in FORMATS:
        raise PrecisionError(Problem("format", f"got `{name}`", did_you_mean(name, list(FORMATS))))
    return FORMATS[name]
