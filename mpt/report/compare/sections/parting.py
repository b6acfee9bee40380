"""Where each configuration's loss leaves its baseline's."""

from __future__ import annotations

from mpt.record.numerics import ACTIVATIONS, GRADIENTS, OUTPUT_GRADIENTS, WEIGHTS
from mpt.report.compare.comparison import Comparison
from mpt.report.compare.layers import LayerParting
from mpt.report.section import Section, Table, clean

_SHOWN = 8
_NUMBERS = {
    ACTIVATIONS: "activations",
    WEIGHTS: "weights",
    GRADIENTS: "gradients",
    OUTPUT_GRADIENTS: "gradients of activations",
}


def section(made: Comparison) -> Section | None:
    rows, bands, layers = [], set(), []
    for judged, parting in zip(made.judged, made.partings, strict=True):
        if parting is None:
            continue
        bit = "never: every loss is the same number" if parting.first_bit is None else f"step {parting.first_bit:,}"
        step = "never" if parting.first_step is None else f"step {parting.first_step:,}"
        pair = judged.pairing
        rows.append((clean(pair.candidate.label), clean(pair.baseline.label), bit, step))
        bands.add(parting.noise)
        layers += [_layer(clean(pair.candidate.label), layer) for layer in (parting.layers or ())[:_SHOWN]]
    if not rows:
        return None
    columns = ("configuration", "baseline", "first other number", "leaves the noise band")
    notes = tuple(("", f"noise band: {band}, on the mean loss of up to 200 stretches") for band in sorted(bands))
    tables = [Table(columns, tuple(rows))]
    if layers:
        named = ("configuration", "layer", "numbers", "part at step", "by")
        tables.append(Table(named, tuple(layers), right=(3, 4)))
        told = "their size (mean exponent) leaves twice its own spread from look to look, and stays out"
        notes = (*notes, ("", f"layers part where {told}; the first {_SHOWN} are shown"))
    return Section("parting", "Where runs part", tables=tuple(tables), notes=notes)


def _layer(label: str, layer: LayerParting) -> tuple[str, ...]:
    bits = f"{layer.bits:+.2f} bits"
    return label, clean(layer.module or "(whole model)"), _NUMBERS[layer.role], f"{layer.step:,}", bits
