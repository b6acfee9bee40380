"""What a bench found, as text and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mpt.bench.measure import NOT_ASKED, Result
from mpt.bench.spread import MAX_NOISE, Spread
from mpt.report.section import Section, Table, Tone
from mpt.types import Unmeasured
from mpt.units import bytes_text, number_text

SCHEMA = "mpt.bench/1"


def section(results: Sequence[Result], device: str) -> Section:
    """One line for each configuration; the first is what the others are held against."""
    columns: tuple[str, ...] = (
        "configuration",
        "step ms",
        "p10–p90",
        "samples/s",
        "× first",
        "peak",
        "MFU",
        "of what is reached here",
    )
    columns += ("/ expert",) if any(isinstance(r.expert_ms, Spread) for r in results) else ()
    rows = tuple(_row(r, results[0], len(columns) > 8) for r in results)
    table = Table(columns, rows, right=tuple(range(1, len(columns))))
    return Section("bench", f"{results[0].cfg.model.choice} on {device}", tables=(table,), notes=tuple(_notes(results)))


def document(results: Sequence[Result], device: dict[str, Any]) -> dict[str, Any]:
    """Everything that was measured; null with a reason where nothing was."""
    return {"schema": SCHEMA, "device": device, "results": [_plain(r, results[0]) for r in results]}


def _row(r: Result, first: Result, with_expert: bool) -> tuple[str, ...]:
    s = r.step_ms
    row = [
        r.label,
        f"{number_text(s.median)}{' void' if s.void else ''}",
        f"{number_text(s.p10)}–{number_text(s.p90)}",
        number_text(r.samples_per_s, 3),
        _times(r, first),
        "n/a" if isinstance(r.memory.peak_bytes, Unmeasured) else bytes_text(r.memory.peak_bytes),
        "n/a" if isinstance(r.mfu, Unmeasured) else f"{r.mfu:.1%}",
        "n/a" if isinstance(r.ceiling_share, Unmeasured) else f"{r.ceiling_share:.0%}",
    ]
    if with_expert:
        found = of_expert(r)
        row.append("n/a" if isinstance(found, Unmeasured) else f"{found:.3f}")
    return tuple(row)


def speed_up(r: Result, first: Result) -> float | Unmeasured:
    """Samples a second over those of the first; no claim for what is emulated."""
    if r.emulated or first.emulated:
        return Unmeasured("emulated: no speed is claimed")
    if r.step_ms.void or first.step_ms.void:
        return Unmeasured(f"noise above {MAX_NOISE:.0%}")
    return r.samples_per_s / first.samples_per_s


def of_expert(r: Result) -> float | Unmeasured:
    """Milliseconds of a step over the hand-written loop's: below 1 is faster than it."""
    if isinstance(r.expert_ms, Unmeasured):
        return r.expert_ms
    if r.step_ms.void or r.expert_ms.void:
        return Unmeasured(f"noise above {MAX_NOISE:.0%}")
    return r.step_ms.median / r.expert_ms.median


def _times(r: Result, first: Result) -> str:
    found = speed_up(r, first)
    return "n/a" if isinstance(found, Unmeasured) else f"{found:.2f}"


def break_even(eager: Result, compiled: Result) -> float | Unmeasured:
    """Steps after which compiling has paid for itself."""
    gain_s = (eager.step_ms.median - compiled.step_ms.median) / 1e3
    if isinstance(compiled.compile_s, Unmeasured):
        return compiled.compile_s
    if eager.step_ms.void or compiled.step_ms.void:
        return Unmeasured(f"noise above {MAX_NOISE:.0%}")
    return math.ceil(compiled.compile_s / gain_s) if gain_s > 0 else Unmeasured("compiled steps are not faster")


def _notes(results: Sequence[Result]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    void = [r.label for r in results if r.step_ms.void]
    if void:
        what = f"void: p90 lies more than {MAX_NOISE:.0%} above p10 ({', '.join(void)})"
        notes.append(("careful", f"{what}; something else uses this machine, or steps are too few (--repeats)"))
    notes += _expert_notes(results)
    notes += [("", f"{r.label}: {r.effective} is emulated here, its speed says nothing") for r in results if r.emulated]
    notes += [("", _told_batch(r)) for r in results if r.largest is not None]
    for eager, compiled in _pairs(results):
        found = break_even(eager, compiled)
        told = f"never: {found.reason}" if isinstance(found, Unmeasured) else f"after {found:,.0f} steps"
        cost = "" if isinstance(compiled.compile_s, Unmeasured) else f" ({compiled.compile_s:.1f} s)"
        notes.append(("", f"{compiled.label}: compiling{cost} pays {told}"))
    reasons = {r.mfu.reason for r in results if isinstance(r.mfu, Unmeasured) and not r.emulated}
    return notes + [("", f"MFU n/a: {reason}") for reason in sorted(reasons)]


def _expert_notes(results: Sequence[Result]) -> list[tuple[Tone, str]]:
    """Which way is good, and where the other side spoilt it."""
    sides = [(r.label, r.expert_ms) for r in results if isinstance(r.expert_ms, Spread)]
    none = [(r.label, r.expert_ms.reason) for r in results if isinstance(r.expert_ms, Unmeasured)]
    missing: list[tuple[Tone, str]] = [
        ("", f"{label}: no hand-written loop beside it: {why}") for label, why in none if why != NOT_ASKED
    ]
    if not sides:
        return missing
    told: list[tuple[Tone, str]] = [
        ("", "/ expert: time of a step over that of the hand-written loop; below 1 is faster than it")
    ]
    void = [label for label, side in sides if side.void]
    what = f"void: the hand-written loop's p90 lies more than {MAX_NOISE:.0%} above its p10 ({', '.join(void)})"
    return told + ([("careful", what)] if void else []) + missing


def _told_batch(r: Result) -> str:
    assert r.largest is not None, "asked for"
    size, how = r.largest
    data, trainer = r.cfg.data, r.cfg.trainer
    found = f"micro-batches up to {size:,} fit ({how})" if size else f"which micro-batches fit is not known: {how}"
    return f"{r.label}: {found}; measured with {data.batch_size} × {trainer.accumulate}"


def _pairs(results: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Configurations that differ in trainer.compile alone."""
    eager = {r.label.replace("trainer.compile=false", ""): r for r in results if not r.cfg.trainer.compile}
    compiled = [r for r in results if r.cfg.trainer.compile]
    keys = [(r.label.replace("trainer.compile=true", ""), r) for r in compiled]
    return [(eager[key], r) for key, r in keys if key in eager]


def _plain(r: Result, first: Result) -> dict[str, Any]:
    found: dict[str, Any] = {
        "label": r.label,
        "precision": r.cfg.precision.name,
        "batch_size": r.cfg.data.batch_size,
        "accumulate": r.cfg.trainer.accumulate,
        "emulated": r.emulated,
        "effective": r.effective,
        "step_ms": {**asdict(r.step_ms), "noise": r.step_ms.noise, "void": r.step_ms.void},
        "samples_per_s": r.samples_per_s,
        "flops_per_step": r.work.total,
    }
    expert = r.expert_ms if isinstance(r.expert_ms, Unmeasured) else asdict(r.expert_ms)
    named = {
        "mfu": r.mfu, "peak_tflops": r.peak_tflops, "ceiling_share": r.ceiling_share, "compile_s": r.compile_s,
        "expert_ms": expert, "speed_up": speed_up(r, first), "of_expert": of_expert(r), "largest_batch": _batch(r),
    }  # fmt: skip
    for key, value in named.items():
        _put(found, key, value)
    memory: dict[str, Any] = {}
    for key, value in vars(r.memory).items():
        _put(memory, key, value)
    return {**found, "memory": memory}


def _batch(r: Result) -> int | Unmeasured:
    """The largest micro-batch that fits."""
    if r.largest is None:
        return Unmeasured(NOT_ASKED)
    size, how = r.largest
    return size or Unmeasured(how)


def _put(into: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Unmeasured):
        into |= {key: None, f"{key}_reason": value.reason}
    else:
        into[key] = value
