"""How one operand of a product is quantised, as text (`e2m1/nv/square`), and the products of a layer. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from mpt.errors import PrecisionError, Problem
from mpt.formats.table import NumberFormat, format_of
from mpt.registry import did_you_mean

Scale = Literal["none", "tensor", "delayed", "row", "block", "mx", "nv"]
ScaleRule = Literal["floor", "rceil", "ceil", "even"]
RULES: tuple[str, ...] = get_args(ScaleRule)
BLOCK = {"block": 128, "mx": 32, "nv": 16}
"""Numbers that share a scale: OCP MX 32, NVFP4 16, FP8 by blocks 128."""
HADAMARD = 16
HIGH = "high"
SAME = "same"
_INTEGER = re.compile(r"int([2-8])")
_WORDS = (*RULES, "square", "pow2", "nearest", "stochastic", "zero", "hadamard")
_LARGEST_EXPONENT_BITS = 5


@dataclass(frozen=True, slots=True)
class Operand:
    """Format and scale of one operand.

    `format` is a number format, `intN`, `high` (left in the policy's compute format) or `same` (what the forward
    product multiplied). `square` scales are shared by block × block numbers, others by a run along the reduction.
    """

    format: str
    scale: Scale = "none"
    rule: ScaleRule = "rceil"
    square: bool = False
    pow2: bool = False
    rounding: Literal["nearest", "stochastic", "zero"] = "nearest"
    hadamard: bool = False

    @property
    def low(self) -> bool:
        return self.format not in (HIGH, SAME)

    @property
    def integer_bits(self) -> int | None:
        found = _INTEGER.fullmatch(self.format)
        return int(found[1]) if found else None

    @property
    def row(self) -> NumberFormat:
        return format_of(self.format)

    @property
    def block(self) -> int | None:
        """Numbers in a block along the reduction."""
        return BLOCK.get(self.scale)

    @property
    def label(self) -> str:
        """Format and scale, as the plan and the audit name them."""
        return self.format if self.scale == "none" else f"{self.format}/{self.scale}"

    @property
    def in_bfloat16(self) -> bool:
        """Whether every quantised number times its scale is a bfloat16: at most 8 bits times a power of two."""
        if self.integer_bits is not None or not self.low:
            return False
        powers = self.scale in ("none", "mx") or self.pow2
        return powers and self.row.mantissa_bits < format_of("bfloat16").bits - 8


def parse(text: str, where: str) -> Operand:
    """The operand that `text` names: `format[/scale[/word …]]`.

    Raises: PrecisionError that names the key `where`, the part that is wrong and what is near it.
    """
    name, *rest = str(text).split("/")
    if name in (HIGH, SAME):
        if rest:
            raise PrecisionError(Problem(where, f"got `{text}`", f"`{name}` stands alone"))
        return Operand(name)
    scale = rest[0] if rest else "none"
    if scale not in get_args(Scale):
        raise PrecisionError(Problem(where, f"got `{text}`: no scale `{scale}`", _near(scale, get_args(Scale))))
    given: dict[str, Any] = {}
    for word in rest[1:]:
        if word not in _WORDS:
            raise PrecisionError(Problem(where, f"got `{text}`: no word `{word}`", _near(word, _WORDS)))
        given.update({"rule": word} if word in RULES else _flag(word))
    return _checked(Operand(_long(name, text, where), scale, **given), text, where)  # type: ignore[arg-type]


def _near(word: str, known: tuple[str, ...]) -> str:
    return did_you_mean(word, known)


def _flag(word: str) -> dict[str, Any]:
    return {"rounding": word} if word in ("nearest", "stochastic", "zero") else {word: True}


def _long(name: str, text: str, where: str) -> str:
    """The name as labels show it: the short one where there is one."""
    if _INTEGER.fullmatch(name):
        return name
    try:
        return format_of(name).short
    except PrecisionError as error:
        problem = error.problems[0]
        what = problem.what.replace(f"got `{name}`", f"no format `{name}`")
        raise PrecisionError(Problem(where, f"got `{text}`: {what}", problem.hint)) from None


def _checked(op: Operand, text: str, where: str) -> Operand:
    def refuse(why: str, hint: str) -> PrecisionError:
        return PrecisionError(Problem(where, f"got `{text}`: {why}", hint))

    if op.integer_bits is None:
        if not op.row.signed:
            raise refuse("a format of scales holds no operands", "use e4m3, e5m2, e3m2, e2m3, e2m1 or another eXmY")
        if op.row.exponent_bits > _LARGEST_EXPONENT_BITS:
            raise refuse(f"{op.row.exponent_bits} exponent bits need no scale", "use a format of 2 to 5 exponent bits")
    elif op.scale in ("none", "mx", "nv"):
        raise refuse("integers need a scale of their own", f"{op.format}/row or {op.format}/tensor")
    if op.scale == "nv" and op.format != "e2m1":
        raise refuse("NVFP4's two scales are made for e2m1", "e2m1/nv")
    if op.square and op.block is None:
        raise refuse(f"`{op.scale}` has no blocks to be square", "use /block, /mx or /nv with /square")
    if op.pow2 and op.scale not in ("tensor", "row", "block"):
        raise refuse("`pow2` rounds the scales of tensor, row or block", "leave it away")
    return op


_OPERANDS = {
    "forward": ("activation", "weight"),
    "grad_input": ("gradient", "weight"),
    "grad_weight": ("gradient", "activation"),
}


@dataclass(frozen=True, slots=True)
class Product:
    """The two operands of one product, by role."""

    left: Operand
    right: Operand

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(op.label for op in (self.left, self.right) if op.low)

    @property
    def low(self) -> bool:
        return self.left.low or self.right.low or SAME in (self.left.format, self.right.format)


@dataclass(frozen=True, slots=True)
class Gemms:
    """The products of a linear or a convolution: forward (activation, weight), grad_input (gradient, weight) and
    grad_weight (gradient, activation)."""

    forward: Product
    grad_input: Product
    grad_weight: Product

    @property
    def label(self) -> str:
        """All formats, the forward's first."""
        products = (self.forward, self.grad_input, self.grad_weight)
        return "+".join(dict.fromkeys(op.label for p in products for op in (p.right, p.left) if op.low))

    def operands(self) -> Iterator[Operand]:
        for field in fields(self):
            product: Product = getattr(self, field.name)
            yield from (product.left, product.right)


def gemms_of(given: Mapping[str, Any], where: str = "precision.gemms") -> Gemms | None:
    """The products that a policy's YAML names; None where it names none. What is not named stays high.

    Raises: PrecisionError, with everything that is wrong.
    """
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise PrecisionError(Problem(where, f"got `{given}`", "want forward: …, grad_input: … and grad_weight: …"))
    problems = [
        Problem(f"{where}.{name}", "no such product", did_you_mean(name, list(_OPERANDS)))
        for name in given
        if name not in _OPERANDS
    ]
    products = {}
    for name, roles in _OPERANDS.items():
        product, wrong = _product(given.get(name) or {}, roles, f"{where}.{name}")
        problems += wrong
        products[name] = product
    if problems:
        raise PrecisionError(*problems)
    return Gemms(**products)


def _product(given: Any, roles: tuple[str, str], where: str) -> tuple[Product, list[Problem]]:
    if not isinstance(given, Mapping):
        return Product(Operand(HIGH), Operand(HIGH)), [
            Problem(where, f"got `{given}`", f"want {roles[0]}: …, {roles[1]}: …")
        ]
    problems = [Problem(f"{where}.{k}", "no such operand", did_you_mean(k, roles)) for k in given if k not in roles]
    found = []
    for role in roles:
        try:
            found.append(parse(given.get(role, HIGH), f"{where}.{role}"))
        except PrecisionError as error:
            problems += error.problems
            found.append(Operand(HIGH))
    problems += _mismatched(found[0], found[1], where)
    return Product(found[0], found[1]), problems


def _mismatched(left: Operand, right: Operand, where: str) -> list[Problem]:
    problems = []
    if SAME in (left.format, right.format) and where.endswith("forward"):
        problems.append(Problem(where, "got `same` in the forward product", "name a format"))
    if left.hadamard != right.hadamard:
        problems.append(Problem(where, "one operand has hadamard", "rotate both, or the product is another"))
    if left.hadamard and not where.endswith("grad_weight"):
        problems.append(Problem(where, "got hadamard", "the transform is for the grad_weight product"))
    return problems
