"""Time, throughput and memory of each configuration, and against its baseline."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpt.report.compare.brief import Brief
from mpt.report.compare.choice import times
from mpt.report.compare.comparison import Comparison
from mpt.report.compare.configs import Config
from mpt.report.compare.judge import Judged
from mpt.report.compare.parting import Reached
from mpt.report.compare.sections.verdict import greyed
from mpt.report.section import Section, Table, Tone, clean, get, mapping, number, reason
from mpt.report.sections.memory import PARTS
from mpt.report.sections.speed import DATA_BOUND
from mpt.stats.ratio import Ratio
from mpt.units import bytes_text, counted, number_text, seconds_text

_SHORT_MS = 20.0
"""Steps below this are small nets', whose kernels' start costs more than their arithmetic."""


def section(made: Comparison) -> Section:
    return Section(
        key="speed",
        title="Speed, memory and cost",
        tables=(_speed(made), _memory(made)),
        notes=tuple(_notes(made)),
        data={"common_loss": made.reached[0].loss if made.reached else None},
    )


def mean(config: Config, figure: Callable[[Brief], float | None]) -> float | None:
    """Over finished runs that have the figure."""
    values = [v for run in config.done if (v := figure(run)) is not None]
    return math.fsum(values) / len(values) if values else None


def energy_j(run: Brief) -> float | None:
    """Joules, where the run measured them."""
    return number(run.data.summary, "energy", "joules")


def cost(config: Config, price_per_h: float | None) -> float | None:
    """Mean price of a run."""
    total = mean(config, lambda run: number(run.data.summary, "time_s", "total"))
    return None if price_per_h is None or total is None or config.emulated else price_per_h * total / 3600


def _speed(made: Comparison) -> Table:
    judged = {j.pairing.candidate.label: j for j in made.judged}
    columns = ["configuration", "samples/s", "× baseline", "step p50", "data wait", "whole run", "to common loss"]
    told = any(_predicted_ms(config) is not None for config in made.configs)
    columns += ["predicted step"] * told
    energy = any(energy_j(run) is not None for run in made.runs)
    columns += ["energy"] * energy + _cost_title(made)
    rows = []
    for config, reached in zip(made.configs, made.reached, strict=True):
        row = [*_speed_cells(config, judged.get(config.label), reached)]
        row += [_number(_predicted_ms(config), "ms")] if told else []
        row += [_number(mean(config, energy_j), "J")] if energy else []
        row += [_number(cost(config, made.options.price_per_h), "")] if made.options.price_per_h is not None else []
        rows.append(tuple(row))
    dim = tuple(i for i, config in enumerate(made.configs) if config.label in greyed(made))
    return Table(tuple(columns), tuple(rows), right=tuple(range(1, len(columns))), dim=dim)


def _predicted_ms(config: Config) -> float | None:
    return mean(config, lambda run: number(run.data.summary, "speed", "predicted_step_ms"))


def _cost_title(made: Comparison) -> list[str]:
    """Costs are in the price's own currency, whichever it is."""
    price = made.options.price_per_h
    return [] if price is None else [f"cost of a run, at {number_text(price)} an hour"]


def _speed_cells(config: Config, judged: Judged | None, reached: Reached) -> list[str]:
    rates = [v for run in config.done if (v := number(run.data.summary, "speed", "samples_per_s")) is not None]
    p50 = mean(config, lambda run: number(run.data.summary, "speed", "step_p50_ms"))
    wait = mean(config, lambda run: number(run.data.summary, "speed", "data_wait_share"))
    total = mean(config, lambda run: number(run.data.summary, "time_s", "total"))
    mark = " (emulated)" if config.emulated else ""
    return [
        clean(config.label),
        (_range(rates) + mark) if rates else "not measured",
        _claim(judged.speed) if judged and judged.speed else ("no claim" if judged or config.emulated else "-"),
        _number(p50, "ms"),
        "-" if wait is None else f"{wait:.1%}",
        "-" if total is None else seconds_text(total),
        _reached(reached),
    ]


def _claim(ratio: Ratio) -> str:
    """`1.31 (1.25 to 1.38)`, and where the interval has 1 in it that no difference was shown."""
    told = times(ratio).replace(" times", "")
    return told if ratio.shown or ratio.low is None else f"{told}: not shown to differ"


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    middle = number_text(math.fsum(values) / len(values))
    return middle if len(values) == 1 else f"{middle} ({number_text(low)} to {number_text(high)})"


def _reached(reached: Reached) -> str:
    if reached.steps is None or reached.seconds is None:
        return "never"
    return f"{counted(reached.steps, 'step')}, {seconds_text(reached.seconds)}"


def _memory(made: Comparison) -> Table:
    ratios = {j.pairing.candidate.label: j.memory for j in made.judged}
    parts = [(key, title) for key, title in PARTS if any(_part(config, key) for config in made.configs)]
    rows = []
    for config in made.configs:
        peak = mean(config, lambda run: number(run.data.summary, "memory", "peak_bytes"))
        ratio = ratios.get(config.label)
        cells = [_bytes(_part(config, key), config, key) for key, _ in parts]
        first = _bytes(peak, config, "peak")
        rows.append((clean(config.label), first, times(ratio).replace(" times", "") if ratio else "-", *cells))
    columns = ("configuration", "peak memory", "× baseline", *(title for _, title in parts))
    return Table(columns, tuple(rows), right=tuple(range(1, len(columns))))


def _part(config: Config, key: str) -> float | None:
    return mean(config, lambda run: number(run.data.summary, "memory", f"{key}_bytes"))


def _bytes(value: float | None, config: Config, key: str) -> str:
    if value is not None:
        return bytes_text(value)
    return reason(get(config.runs[0].data.summary, "memory"), f"{key}_bytes")


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number_text(value)} {unit}".rstrip()


def _notes(made: Comparison) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    emulated = [clean(config.label) for config in made.configs if config.emulated]
    if emulated:
        names = ", ".join(emulated)
        notes.append(("careful", f"no speed claim for {names}: emulated here, hardware that has it is another matter"))
    for j in made.judged:
        if j.speed is None and not (j.pairing.candidate.emulated or j.pairing.baseline.emulated):
            notes.append(("careful", f"{clean(j.pairing.candidate.label)}: {clean(j.speed_reason)}"))
        if j.speed and not j.speed.shown:
            why = _likely_reason(j.pairing.candidate)
            notes.append(("", f"{clean(j.pairing.candidate.label)}: no difference in speed was shown{why}"))
    for config in made.configs:
        wait = mean(config, lambda run: number(run.data.summary, "speed", "data_wait_share"))
        if wait is not None and wait > DATA_BOUND:
            notes.append(
                ("careful", f"{clean(config.label)} is data-bound: {wait:.0%} of its steps waited for samples")
            )
    notes += [("careful", what) for config in made.configs for what in _watched(config)]
    loss = made.reached[0].loss if made.reached else math.nan
    if math.isfinite(loss):
        notes.append(
            ("", f"common loss: {number_text(loss)}, the lowest smoothed training loss that every finished run reached")
        )
    methods = {str(mapping(run.data.summary, "memory").get("method", "")) for run in made.runs} - {""}
    notes += [("", f"memory: {clean(method)}") for method in sorted(methods)]
    return notes


def _watched(config: Config) -> list[str]:
    """Runs of one configuration whose speeds are not of one kind."""
    levels = sorted({run.numerics for run in config.done})
    if len(levels) < 2:
        return []
    told = f"its runs have numerics={' and '.join(levels)}, which alters no number but slows steps"
    return [f"{clean(config.label)}: {told}: its speed is of both kinds, × baseline of seeds with the same alone"]


def _likely_reason(config: Config) -> str:
    """Why another precision may not have been faster."""
    wait = mean(config, lambda run: number(run.data.summary, "speed", "data_wait_share"))
    p50 = mean(config, lambda run: number(run.data.summary, "speed", "step_p50_ms"))
    if len(config.done) < 2:
        return ": one pair has no spread to tell it from"
    if wait is not None and wait > DATA_BOUND:
        return ": the steps wait for data"
    if p50 is not None and p50 < _SHORT_MS:
        return f": steps of {p50:.2g} ms are mostly overhead, which no format makes faster"
    return ""


def document(config: Config, made: Comparison) -> dict[str, Any]:
    """The figures of one configuration for compare.json; means over finished runs."""
    figures = ("samples_per_s", "step_p50_ms", "step_p95_ms", "data_wait_share", "predicted_step_ms")
    speed = {name: mean(config, lambda run, n=name: number(run.data.summary, "speed", n)) for name in figures}  # type: ignore[misc]
    memory = {f"{key}_bytes": _part(config, key) for key in ("peak", *(key for key, _ in PARTS))}
    return {
        "emulated": config.emulated,
        "speed": speed,
        "memory": memory,
        "time_s": mean(config, lambda run: number(run.data.summary, "time_s", "total")),
        "energy_j": mean(config, energy_j),
        "cost": cost(config, made.options.price_per_h),
    }
