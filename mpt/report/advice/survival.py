"""Whether a network would live in another format, by layer: range from exponents, precision from products."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mpt.formats.table import NumberFormat, format_of
from mpt.record.numerics import ACTIVATIONS, GRADIENTS, ROLES, SCALED, WEIGHTS, Look, Numerics, module_of
from mpt.stats.exponents import Exponents, merged, overflow_log2, underflow_log2

LOST = 0.01
"""Share of a layer's numbers that may become 0 or infinite in a format before its range is called too small."""

LEAST_DB = 20.0
"""Signal over noise below which a layer's product is called too coarse: an error of a tenth of it."""

_SUBNORMAL = 0.05
"""Share of a format's subnormal numbers among those left from which on its zeros are underflow."""

_SPREAD, _BIAS = 16, 127

CANCELS_DB = 6.02
"""How far (one bit) a product may fall below what rounding costs where nothing cancels."""


@dataclass(frozen=True)
class Target:
    """A way to compute: the formats of what goes forward and of gradients, and how they are scaled.

    `block`: numbers that are scaled together by their largest one; 0 is the whole tensor, None the loss scale alone.
    """

    name: str
    forward: str
    backward: str
    block: int | None


TARGETS = (
    Target("fp16", "float16", "float16", None),
    Target("bf16", "bfloat16", "bfloat16", None),
    Target("fp8", "float8_e4m3fn", "float8_e5m2", 0),
    Target("mxfp8", "float8_e4m3fn", "float8_e4m3fn", 32),
)


@dataclass(frozen=True)
class Fate:
    """A layer under a target: shares lost forward (activations, weights) and backward, and the product's SQNR.

    None where it was not measured. `why`: `range`, `precision`, both, or empty where it survives.
    """

    forward: float | None
    backward: float | None
    sqnr_db: float | None

    @property
    def why(self) -> str:
        lost = [x for x in (self.forward, self.backward) if x is not None]
        found = ["range"] if any(x > LOST for x in lost) else []
        found += ["precision"] if self.sqnr_db is not None and self.sqnr_db < LEAST_DB else []
        return " and ".join(found)


@dataclass(frozen=True)
class Layer:
    """What is known of one module over all looks. Exponents are unscaled; `sqnr_db` is the worst, by mantissa bits."""

    name: str
    activations: Exponents | None
    weights: Exponents | None
    gradients: Exponents | None
    sqnr_db: dict[int, float]

    def fate(self, target: Target, scale: float) -> Fate:
        """The layer under the target, its gradients multiplied by the loss scale."""
        ahead, back = format_of(target.forward), format_of(target.backward)
        forward = [lost(x, ahead, target.block, 1.0) for x in (self.activations, self.weights) if x is not None]
        backward = None if self.gradients is None else lost(self.gradients, back, target.block, scale)
        return Fate(max(forward, default=None), backward, self.sqnr_db.get(ahead.mantissa_bits))


@lru_cache(maxsize=4)
def layers(numerics: Numerics, computed: NumberFormat | None = None) -> list[Layer]:
    """Every module with numbers of its own, in the order of the model. Gradients of a step that overflowed are left
    out: what is finite of them says little, and nobody was trained by it. `computed`: the format that the run computed
    in itself, in which small gradients may have become 0."""
    gone = all_zero(numerics)
    parts: dict[str, dict[str, list[Exponents]]] = {}
    worst: dict[str, dict[int, float]] = {}
    for look in numerics.looks:
        for role in ROLES if finite_backward(look) else (r for r in ROLES if r not in SCALED):
            for name, x in look.of(role).items():
                kind = GRADIENTS if role in SCALED else role
                held = parts.setdefault(module_of(role, name), {})
                if computed is not None and role in SCALED:
                    x = vanished(x, computed, surely=gone)
                held.setdefault(kind, []).append(unscaled(x, look.scale_of(role)))
        for name, by_bits in look.sqnr_db.items():
            known = worst.setdefault(name, {})
            known.update({bits: min(db, known.get(bits, math.inf)) for bits, db in by_bits.items()})
    return [_layer(name, held, worst.get(name, {})) for name, held in parts.items()]


def starved(found: Sequence[Layer], scale: float) -> list[str]:
    """Layers that would lose too many of their gradients, of weights or of outputs, in float16 at the loss scale."""
    row = format_of(TARGETS[0].backward)
    return [x.name for x in found if x.gradients is not None and lost(x.gradients, row, None, scale) > LOST]


def finite_backward(look: Look) -> bool:
    """Whether no number of the look's backward pass was inf or NaN."""
    return not any(x.nonfinite for role in SCALED for x in look.of(role).values())


def all_zero(numerics: Numerics) -> bool:
    """Whether there were gradients to look at, and all of them were 0."""
    gradients = [x for look in numerics.looks for x in look.of(GRADIENTS).values()]
    return bool(gradients) and not any(x.some or x.nonfinite for x in gradients)


def vanished(tensor: Exponents, row: NumberFormat, *, surely: bool = False) -> Exponents:
    """The tensor as it may have been before the format it was computed in made small numbers 0.

    `surely`, or where many of those that are left are subnormal, its zeros are taken to lie below, spread evenly over
    16 powers of two; elsewhere they are taken for zeros.
    """
    if not tensor.zeros or not (surely or tensor.loss(row).subnormal >= _SUBNORMAL):
        return tensor
    counts = tensor.counts.copy()
    end = int(underflow_log2(row)) + _BIAS
    counts[end - _SPREAD : end] += tensor.zeros / _SPREAD
    return Exponents(counts, 0, tensor.nonfinite, tensor.size, tensor.amax or None)


def lost(x: Exponents, row: NumberFormat, block: int | None, scale: float) -> float:
    """The share of x that is 0 or infinite in the format."""
    if block:
        return x.block_underflow(row, block)
    if block == 0 and x.top is not None:
        scale = 2.0 ** (math.log2(row.max) - x.top)
    return x.loss(row, scale).lost


def cancels(layer: Layer, bits: int = 7) -> bool:
    """Whether rounding its operands costs the layer's product more than independent errors would."""
    return bits in layer.sqnr_db and layer.sqnr_db[bits] < expected_db(bits) - CANCELS_DB


def expected_db(bits: int) -> float:
    """Signal over noise of a product of two rounded operands in which nothing cancels.

    Errors are evenly spread over a unit in the last place (its square / 12), magnitudes over an octave's logarithm
    (their mean square is 1.5 / ln 2), and both operands err.
    """
    return 10 * math.log10(12 * 4**bits * 1.5 / math.log(2) / 2)


def headroom_bits(layer: Layer, spec: str, scale: float) -> float | None:
    """Powers of two left before the layer's largest number overflows, whichever it is."""
    over = overflow_log2(format_of(spec))
    left = [over - x.top for x in (layer.activations, layer.weights) if x is not None and x.top is not None]
    if layer.gradients is not None and layer.gradients.top is not None:
        left.append(over - layer.gradients.top - math.log2(scale))
    return min(left, default=None)


def _layer(name: str, held: Mapping[str, Sequence[Exponents]], sqnr_db: dict[int, float]) -> Layer:
    activations, weights, gradients = (
        merged(held[kind]) if kind in held else None for kind in (ACTIVATIONS, WEIGHTS, GRADIENTS)
    )
    return Layer(name, activations, weights, gradients, sqnr_db)


def unscaled(x: Exponents, scale: float) -> Exponents:
    """x divided by the nearest power of two to `scale`: its bins are moved."""
    shift = round(math.log2(scale))
    return x if shift == 0 else x.shifted(-shift)
