"""How far each layer is from the ends of formats, and which formats the network would live in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mpt.formats.table import format_of
from mpt.record.numerics import Noise
from mpt.record.reader import RunData
from mpt.report.advice.recommend import judged_scale
from mpt.report.advice.survival import (
    LEAST_DB,
    LOST,
    TARGETS,
    Layer,
    Target,
    cancels,
    expected_db,
    headroom_bits,
    layers,
)
from mpt.report.advice.words import power, power_of, share, some
from mpt.report.section import Section, Table, Tone, clean, get
from mpt.stats.exponents import Exponents
from mpt.units import counted, number_text

_SHOWN = 12
_FP16, _BF16, _FP8, _MXFP8 = TARGETS


def section(run: RunData) -> Section | None:
    """None for a run that was not looked at."""
    looks = run.numerics.looks
    computed = get(run.config, "precision", "compute")
    own = format_of(_FP16.backward) if computed == _FP16.backward else None
    found = layers(run.numerics, own)
    if not found:
        return None
    scale = judged_scale(run.numerics, own)
    notes = [*_answers(found, scale), *_limits(found)]
    if len(found) > _SHOWN:
        notes.insert(0, ("", f"the table shows the {_SHOWN} of {len(found):,} layers that would lose most"))
    if run.numerics.bad:
        notes.append(("careful", f"numerics.jsonl: {run.numerics.bad} lines could not be read"))
    return Section(
        key="numerics",
        title="Range and precision by layer",
        facts=tuple(_facts(run, found, scale)),
        tables=(_worst(found, scale),),
        notes=tuple(notes),
        data={
            "looks": [look.step for look in looks],
            "noise_scale": noise_scale([look.noise for look in looks if look.noise is not None]),
            "layers": [_document(layer, scale) for layer in found],
        },
    )


def noise_scale(seen: Sequence[Noise]) -> float | None:
    """The batch size at which a gradient's noise is as large as the gradient, in samples; None where it is unknown.

    Numerator and denominator are each the mean over looks: single ones are noisy, and may be negative.
    Source: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.1.
    """
    useful = [n for n in seen if n.big > n.small > 0]
    if not useful:
        return None
    signal = sum((n.big * n.big_sq - n.small * n.small_sq) / (n.big - n.small) for n in useful)
    noise = sum((n.small_sq - n.big_sq) / (1 / n.small - 1 / n.big) for n in useful)
    return noise / signal if signal > 0 and noise > 0 else None


def _facts(run: RunData, found: Sequence[Layer], scale: float) -> list[tuple[str, str]]:
    looks = run.numerics.looks
    facts = [
        (
            "looked at",
            f"{counted(len(looks), 'step')}, {looks[0].step:,} to {looks[-1].step:,}; {counted(len(found), 'layer')}",
        )
    ]
    left = [(bits, layer.name) for layer in found if (bits := headroom_bits(layer, "float16", scale)) is not None]
    if left:
        bits, name = min(left)
        facts.append(("float16 headroom", f"{bits:.1f} bits in {_layer(name)}, at loss scale {power(scale)}"))
    noise = noise_scale([look.noise for look in looks if look.noise is not None])
    if noise is not None:
        facts.append(("noise scale", f"{number_text(noise)} samples: at this batch size noise and gradient are even"))
    return facts


def _layer(name: str) -> str:
    """Layers of sequences have bare numbers as names."""
    return f"layer {clean(name)}" if name else "the whole model"


def _worst(found: Sequence[Layer], scale: float) -> Table:
    """The layers that would lose most, worst first."""
    order = sorted(found, key=lambda layer: _badness(layer, scale), reverse=True)
    shown = ["layer", "activations to", "gradients to", "fp16 headroom", "lost at scale 1", f"at {power(scale)}"]
    more = ("fp8 forward", "fp8 backward", "e4m3 SQNR", "would not survive")
    rows = [_cells(layer, scale) for layer in order[:_SHOWN]]
    if scale == 1:
        shown, rows = shown[:5], [row[:5] + row[6:] for row in rows]
    columns = (*shown, *more)
    return Table(columns, tuple(rows), right=tuple(range(1, len(columns) - 1)))


def _badness(layer: Layer, scale: float) -> tuple[float, float, float]:
    plain, fp8, left = layer.fate(_FP16, 1.0), layer.fate(_FP8, 1.0), headroom_bits(layer, "float16", scale)
    lost = max(x for x in (plain.forward, plain.backward, 0.0) if x is not None)
    return lost, -math.inf if left is None else -left, max(fp8.forward or 0.0, fp8.backward or 0.0)


def _cells(layer: Layer, scale: float) -> tuple[str, ...]:
    plain, scaled, fp8 = layer.fate(_FP16, 1.0), layer.fate(_FP16, scale), layer.fate(_FP8, 1.0)
    left = headroom_bits(layer, "float16", scale)
    return (
        clean(layer.name or "(whole model)"),
        power_of(_top(layer.activations)),
        power_of(_top(layer.gradients)),
        "-" if left is None else f"{left:.1f} bits",
        share(plain.backward),
        share(scaled.backward),
        share(fp8.forward),
        share(fp8.backward),
        "-" if fp8.sqnr_db is None else f"{fp8.sqnr_db:.1f} dB",
        _fates(layer, scale),
    )


def _fates(layer: Layer, scale: float) -> str:
    """The targets under which the layer would lose too much, with what it would lack."""
    lacks = [(t.name, why) for t in TARGETS if (why := layer.fate(t, _scale(t, scale)).why)]
    return ", ".join(f"{name} ({why})" for name, why in lacks) or "-"


def _scale(target: Target, scale: float) -> float:
    """Only float16 is helped by a loss scale."""
    return scale if target is _FP16 else 1.0


def _answers(found: Sequence[Layer], scale: float) -> list[tuple[Tone, str]]:
    """Range or precision; and each format, with the layers that speak against it."""
    without = [layer.name for layer in found if "range" in layer.fate(_FP16, 1.0).why]
    measured = [layer for layer in found if layer.sqnr_db]
    coarse = [layer.name for layer in measured if cancels(layer)]
    told: list[tuple[Tone, str]] = [_sensitive(without, coarse, bool(measured), len(found))]
    seen = any(layer.gradients is not None for layer in found)
    if not seen:
        told = [("bad", "no look found finite gradients: what follows is of activations and weights alone")]
    for target in TARGETS:
        bad = [layer.name for layer in found if layer.fate(target, _scale(target, scale)).why]
        at = f" at loss scale {power(scale)}" if target is _FP16 else ""
        if not bad:
            text = "every layer would survive" if seen else "activations and weights would survive in every layer"
            told.append(("good" if seen else "", f"{target.name}{at}: {text}"))
        else:
            told.append(("careful", f"{target.name}{at}: {some(bad, len(found))} would not"))
    return told


def _sensitive(range_: Sequence[str], coarse: Sequence[str], measured: bool, of: int) -> tuple[Tone, str]:
    if range_:
        said = f"sensitive to range: without a loss scale float16 is too narrow for {some(range_, of)}"
    else:
        said = "not sensitive to range: float16 holds every layer's numbers without a loss scale"
    if not measured:
        return ("careful" if range_ else ""), f"{said}; precision was not measured (numerics=full does)"
    if coarse:
        return "careful", f"{said}; sensitive to precision: sums cancel in {some(coarse, of)}"
    return ("careful" if range_ else "good"), f"{said}; not sensitive to precision: no layer's sums cancel"


def _limits(found: Sequence[Layer]) -> list[tuple[Tone, str]]:
    """What the words mean, and what they leave out."""
    told = [
        f"a layer lacks range where over {LOST:.0%} of its activations, weights or gradients would be 0 or infinite; "
        "fp8 scales each tensor by its largest number, mxfp8 blocks of 32, here taken at random from their tensor"
    ]
    if any(layer.sqnr_db for layer in found):
        told.append(
            f"a layer lacks precision where rounding both operands leaves under {LEAST_DB:.0f} dB of signal "
            f"over noise, an error of a tenth ({expected_db(3):.0f} dB is usual for e4m3). Errors that add up over "
            "layers and steps are not in this: a run in the format is the proof"
        )
    return [("", text) for text in told]


def _document(layer: Layer, scale: float) -> dict[str, Any]:
    fates = {t.name: layer.fate(t, _scale(t, scale)) for t in TARGETS}
    return {
        "name": layer.name,
        "largest_activation_log2": _top(layer.activations),
        "largest_weight_log2": _top(layer.weights),
        "largest_gradient_log2": _top(layer.gradients),
        "fp16_headroom_bits": headroom_bits(layer, "float16", scale),
        "fp16_gradients_lost_unscaled": layer.fate(_FP16, 1.0).backward,
        "sqnr_db": {str(bits): db for bits, db in layer.sqnr_db.items()},
        "formats": {
            name: {"forward_lost": f.forward, "backward_lost": f.backward, "lacks": f.why or None}
            for name, f in fates.items()
        },
    }


def _top(x: Exponents | None) -> float | None:
    return None if x is None else x.top
