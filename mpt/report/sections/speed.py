"""How fast it was, and where the time went."""

from __future__ import annotations

import math
from typing import Any

from mpt.record.reader import RunData
from mpt.report.section import Section, Table, Tone, clean, get, mapping, number, shown
from mpt.report.sections.precision import is_emulated
from mpt.units import counted, number_text, seconds_text

DATA_BOUND = 0.2
"""Share of step time spent waiting for data above which faster arithmetic can't help much."""

_WARMUP_STEPS = 5
_PHASES = ("train", "data", "eval", "checkpoint")


def section(run: RunData) -> Section:
    speed = mapping(run.summary, "speed") or from_steps(run)
    return Section(
        key="speed",
        title="Speed",
        facts=(*_facts(speed), *_energy(run)),
        tables=tuple(_split(run)),
        notes=tuple(_notes(run, speed)),
        data={**speed, "time_s": get(run.summary, "time_s"), "emulated": is_emulated(run)},
    )


def from_steps(run: RunData) -> dict[str, Any]:
    """Figures of a run without a summary, from its steps after the warm-up."""
    times = run.steps.time_s[_WARMUP_STEPS:]
    total = math.fsum(t for t in times if math.isfinite(t))
    if total <= 0:
        why = f"{counted(len(run.steps), 'step')}, fewer than the {_WARMUP_STEPS} warm-up steps + 1"
        return {"n": 0, "samples_per_s": None, "samples_per_s_reason": why}
    ordered = sorted(t for t in times if math.isfinite(t))
    return {
        "n": len(ordered),
        "samples_per_s": sum(run.steps.samples[_WARMUP_STEPS:]) / total,
        "step_p50_ms": 1e3 * ordered[len(ordered) // 2],
        "step_p95_ms": 1e3 * ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
        "data_wait_share": math.fsum(w for w in run.steps.data_wait_s[_WARMUP_STEPS:] if math.isfinite(w)) / total,
    }


def _facts(speed: dict[str, Any]) -> list[tuple[str, str]]:
    n = number(speed, "n") or 0
    if number(speed, "samples_per_s") is None:
        return [("throughput", shown(speed, ("samples_per_s",)))]
    facts = [
        ("throughput", f"{shown(speed, ('samples_per_s',))} samples/s over {counted(n, 'step')} after the warm-up"),
        (
            "step",
            f"median {shown(speed, ('step_p50_ms',), 'ms')}, 95th percentile {shown(speed, ('step_p95_ms',), 'ms')}",
        ),
        ("waiting for data", shown(speed, ("data_wait_share",), "share")),
    ]
    told, p50 = number(speed, "predicted_step_ms"), number(speed, "step_p50_ms")
    if told is not None:
        against = f" ({told / p50 - 1:+.1%} of the measured median)" if p50 else ""
        facts.append(("predicted step", shown(speed, ("predicted_step_ms",), "ms") + against))
    for key, title in (("compile_s", "compilation"), ("startup_s", "start-up")):
        if number(speed, key) is not None:
            facts.append((title, shown(speed, (key,), "s")))
    if number(speed, "mfu") is not None:
        facts.append(("model FLOP utilisation", shown(speed, ("mfu",), "share")))
    return facts


def _energy(run: RunData) -> list[tuple[str, str]]:
    joules, method = number(run.summary, "energy", "joules"), get(run.summary, "energy", "method")
    return [] if joules is None else [("energy", f"{number_text(joules)} J ({clean(method)})")]


def _split(run: RunData) -> list[Table]:
    split = get(run.summary, "time_s")
    total = number(split, "total")
    if not total:
        return []
    known = [(name, number(split, name) or 0.0) for name in _PHASES]
    startup = number(run.summary, "speed", "startup_s") or 0.0
    parts = [*known, ("start-up", startup)]
    parts.append(("rest", max(0.0, total - math.fsum(v for _, v in parts))))
    rows = tuple((name, seconds_text(value), f"{value / total:.1%}") for name, value in (*parts, ("total", total)))
    return [Table(("time", "seconds", "share"), rows, right=(1, 2))]


def _notes(run: RunData, speed: dict[str, Any]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    share = number(speed, "data_wait_share")
    if is_emulated(run):
        notes.append(("careful", "no speed claim: the format was emulated, native hardware has another speed"))
    if share is not None and share > DATA_BOUND:
        what = f"data-bound: {share:.0%} of the step was spent waiting for samples"
        notes.append(("careful", f"{what}; another precision can't help much, more data.workers or faster storage may"))
    if not mapping(run.summary, "speed") and len(run.steps):
        notes.append(("", f"computed from steps.jsonl: there is no summary ({counted(len(run.steps), 'step')})"))
    return notes
