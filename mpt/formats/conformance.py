"""Proof on one device that rounding and block scales are bit-exact, against tables made from the definition alone.

The tables are made in float64 on the CPU: every code of a format, and the nearest of them by search, ties to the even
code. Nothing of `rounding` or `blocks` has a part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mpt.formats.blocks import powers, quantise_mx, quantise_nv
from mpt.formats.rounding import round_to
from mpt.formats.table import FORMATS, NumberFormat, format_of

_RANDOM = 200_000
_ROWS = 2_000
_E2M1, _E4M3 = format_of("e2m1"), format_of("e4m3")
_RULES = ("floor", "rceil", "ceil", "even")
MX = {"mxfp8": "e4m3", "mxfp8 (e5m2)": "e5m2", "mxfp6": "e2m3", "mxfp6 (e3m2)": "e3m2", "mxfp4": "e2m1"}


@dataclass(frozen=True)
class Conformance:
    """How many results of a format were compared on a device, and how many differed; `example` is the first."""

    format: str
    compared: int
    wrong: int
    example: str = ""


def conform(device: str) -> Iterator[Conformance]:
    """One result for each format of the table, and for each kind of blocks."""
    for row in FORMATS.values():
        yield _casts(row, device)
    for name, element in MX.items():
        yield _mx_blocks(name, format_of(element), device)
    yield _nv_blocks(device)


def codes_of(row: NumberFormat) -> Tensor:
    """The finite numbers of a format that are not negative, in the order of their codes: float64."""
    count = 2 ** (row.exponent_bits + row.mantissa_bits)
    code = torch.arange(count, dtype=torch.int64)
    exponent, mantissa = code >> row.mantissa_bits, (code & (2**row.mantissa_bits - 1)).double()
    normal = torch.ldexp(1 + mantissa * 2.0**-row.mantissa_bits, exponent - row.bias)
    tiny = torch.ldexp(mantissa, torch.tensor(1 - row.bias - row.mantissa_bits))
    values = torch.where((exponent == 0) & row.signed, tiny, normal)
    if row.specials == "ieee":
        return values[exponent < 2**row.exponent_bits - 1]
    return values[:-1] if row.specials == "nan" else values


def nearest(x: Tensor, row: NumberFormat, table: Tensor) -> Tensor:
    """x (float64) as the nearest number of the table, ties to the even code; past the largest as the format says."""
    beyond = table[-1] + (table[-1] - table[-2])
    longer = torch.cat([table, beyond.reshape(1)])
    size = x.abs()
    above = torch.searchsorted(longer, size).clamp(1, len(longer) - 1)
    below = above - 1
    up, down = longer[above] - size, size - longer[below]
    chosen = torch.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    special = {"ieee": torch.inf, "nan": torch.nan, "none": row.max}[row.specials]
    result = torch.where((chosen == len(table)) | size.isinf(), special, longer[chosen])
    return torch.where(x.isnan(), torch.nan, torch.copysign(result, x))


def _casts(row: NumberFormat, device: str) -> Conformance:
    if row.name == "float32":
        x = _random(row)
        return _compared(row.name, x, round_to(x.to(device), row).cpu().double(), x.double())
    table = codes_of(row)
    x = torch.cat([_with_neighbours(table), _random(row)])
    wanted = nearest(x.double(), row, table) if row.signed else _nearest_power(x.double())
    return _compared(row.name, x, round_to(x.to(device), row).cpu().double(), wanted)


def _nearest_power(x: Tensor) -> Tensor:
    """E8M0, which has no zero: the middle of two powers goes up, and all between the two smallest."""
    fraction, exponent = torch.frexp(x)
    power = torch.ldexp(torch.ones_like(x), torch.where(fraction >= 0.75, exponent, exponent - 1))
    power = torch.where((x > 2.0**-127) & (x < 2.0**-126), 2.0**-126, power.clamp(min=2.0**-127))
    return torch.where((x > 0) & x.isfinite() & (power <= 2.0**127), power, torch.nan)


def _with_neighbours(table: Tensor) -> Tensor:
    """All codes, all halfway points, and the float32 on either side of each; both signs."""
    marks = torch.cat([table, (table[1:] + table[:-1]) / 2]).float()
    ends = torch.tensor([-torch.inf, torch.inf])
    every = torch.cat([marks, *(torch.nextafter(marks, end) for end in ends), torch.tensor([torch.inf, torch.nan])])
    return torch.cat([every, -every])


def _random(row: NumberFormat) -> Tensor:
    """Float32 numbers of all sizes around the format's range."""
    draw = torch.Generator().manual_seed(0)
    low, high = max(row.min_exponent - row.mantissa_bits - 2, -140), min(row.max_exponent + 2, 127)
    size = torch.randint(low, high + 1, (_RANDOM,), generator=draw)
    return torch.ldexp(torch.randn(_RANDOM, generator=draw, dtype=torch.float64), size).float()


def _compared(name: str, x: Tensor, got: Tensor, wanted: Tensor) -> Conformance:
    same = (got == wanted) & (got.signbit() == wanted.signbit()) | (got.isnan() & wanted.isnan())
    wrong = int((~same).sum())
    example = ""
    if wrong:
        at = int((~same).nonzero()[0, 0])
        example = f"{x.flatten()[at].item()!r} became {got.flatten()[at].item()!r}, not {wanted.flatten()[at].item()!r}"
    return Conformance(name, got.numel(), wrong, example)


def _blocks(size: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(_ROWS, size, generator=draw)
    x = torch.ldexp(x, torch.randint(-40, 40, (_ROWS, 1), generator=draw))
    x[: _ROWS // 2, 0] = torch.ldexp(torch.ones(_ROWS // 2), torch.arange(_ROWS // 2) % 60 - 30)
    x[: _ROWS // 4, 0] = x[: _ROWS // 4, 0].nextafter(torch.tensor(0.0))
    return x


def _mx_blocks(name: str, row: NumberFormat, device: str) -> Conformance:
    x = _blocks(32)
    results = [_mx_rule(x, row, rule, device) for rule in _RULES]
    got, wanted = (torch.cat([r[i] for r in results]) for i in (0, 1))
    return _compared(name, x.repeat(len(_RULES), 1).flatten(), got.flatten(), wanted.flatten())


def _mx_rule(x: Tensor, row: NumberFormat, rule: str, device: str) -> tuple[Tensor, Tensor]:
    values, codes = quantise_mx(x.to(device), row, rule)  # type: ignore[arg-type]
    got = (values * powers(codes)).flatten(1).cpu().double()
    scale = torch.ldexp(torch.ones(len(x), 1, dtype=torch.float64), _EXPONENTS[rule](x, row))
    wanted = nearest((x.double() / scale).clamp(-row.max, row.max), row, codes_of(row)) * scale
    return got, wanted


def _floor(x: Tensor, row: NumberFormat) -> Tensor:
    return torch.frexp(_largest(x)).exponent - 1 - row.max_exponent


def _ceil(x: Tensor, row: NumberFormat) -> Tensor:
    fraction, exponent = torch.frexp(_largest(x))
    return exponent - 1 + (fraction > 0.5).int() - row.max_exponent


def _rceil(x: Tensor, row: NumberFormat) -> Tensor:
    fraction, exponent = torch.frexp((_largest(x) / row.max).float().double())
    return exponent - 1 + (fraction > 0.5).int()


def _even(x: Tensor, row: NumberFormat) -> Tensor:
    fraction, exponent = torch.frexp(_largest(x))
    carries = 2 * fraction + 2.0 ** -(row.mantissa_bits + 1) >= 2
    return exponent - 1 + carries.int() - row.max_exponent


def _largest(x: Tensor) -> Tensor:
    return x.double().abs().amax(1, keepdim=True)


_EXPONENTS: dict[str, Callable[[Tensor, NumberFormat], Tensor]] = {
    "floor": _floor,
    "ceil": _ceil,
    "rceil": _rceil,
    "even": _even,
}


def _nv_blocks(device: str) -> Conformance:
    x = _blocks(16)
    values, scales, whole = quantise_nv(x.to(device))
    got = torch.cat([values.flatten(1), scales.flatten(1)], 1).cpu().double()
    largest = x.abs().amax(1, keepdim=True)
    top = largest.max() / (_E4M3.max * _E2M1.max)
    scale = ((largest / 6.0) / top).double().clamp(_E4M3.min_normal, _E4M3.max)
    scale = nearest(scale, _E4M3, codes_of(_E4M3))
    scaled = (x * ((1.0 / top) / scale.float())).double().clamp(-6, 6)
    wanted = torch.cat([nearest(scaled, _E2M1, codes_of(_E2M1)), scale], 1)
    result = _compared("nvfp4", torch.cat([x, scale.float()], 1), got, wanted)
    if whole.item() != top.item():
        return Conformance(
            "nvfp4", result.compared, result.wrong + 1, f"a scale of {whole.item()!r}, not {top.item()!r}"
        )
    return result
