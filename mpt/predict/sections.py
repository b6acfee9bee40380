"""A prediction for people: the plan, its memory and time, and what stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpt.config.gpus import gpu_of
from mpt.predict.prediction import Prediction, keeping
from mpt.predict.roofline import Spent
from mpt.predict.tracker import OUTSIDE
from mpt.report.section import Section, Table, Tone
from mpt.types import ModuleRow, Unmeasured
from mpt.units import bytes_text, number_text, seconds_text

Speed = Mapping[str, float | Unmeasured]
_FEW = 5
_WAITS = 0.10
"""Share of the step that waiting for data must take to be worth a warning."""


def plan_section(made: Prediction) -> Section:
    """What would run, module by module, with what each holds and takes."""
    head, *more = made.plan.lines()
    return Section("plan", head, tables=(_modules(made),), notes=tuple(("", line) for line in more))


def memory_section(made: Prediction, ways: Sequence[str] = ()) -> Section:
    """The peak and what holds it; what fits. `ways` are words that would make one sample fit."""
    memory = made.memory
    if isinstance(memory, Unmeasured):
        return Section("memory", "Predicted memory", facts=(("peak", f"n/a: {memory.reason}"),))
    facts = [("peak", f"{bytes_text(memory.peak_bytes)} in the {memory.phase}{_of_limit(made)}")]
    facts += [(name, bytes_text(size)) for name, size in memory.parts.items()]
    facts.append(("kept for the backward", bytes_text(memory.kept_bytes)))
    facts.append(("largest micro-batch", _largest(made)))
    return Section("memory", "Predicted memory", tuple(facts), notes=tuple(_memory_notes(made, ways)))


def time_section(made: Prediction, speed: Speed, price_per_h: float | None) -> Section:
    """A step, the run, and against float32."""
    time, step_s = made.time, made.step_s
    if isinstance(time, Unmeasured) or isinstance(step_s, Unmeasured):
        assert isinstance(time, Unmeasured), "a step has a time where its ops have one"
        return Section("time", "Predicted time", facts=(("step", f"n/a: {time.reason}"),))
    length = made.plan.length
    samples = made.plan.batch_size * length.accumulate
    parts = ", ".join(f"{name} {_ms(s)}" for name, s in time.phases.items())
    bounds = ", ".join(f"{name} {share / time.total_s:.0%}" for name, share in time.bounds.items())
    facts = [
        ("step", f"{_ms(step_s)} ({parts}), {number_text(samples / step_s, 3)} samples/s"),
        ("bound by", bounds),
        ("work", f"{number_text(sum(time.flops.values()) / 1e9, 3)} GFLOP, {bytes_text(time.moved_bytes)} moved, "
                 f"{time.launches:,} kernels"),
        ("rates", made.how),
    ]  # fmt: skip
    if made.loading_s:
        facts.append(("data loading", f"{_ms(made.loading_s)} a micro-batch here with one process"))
    facts += [(f"speed-up over {name}", _ratio(seconds, time.total_s)) for name, seconds in speed.items()]
    facts += _whole(made, step_s * length.steps, price_per_h)
    return Section("time", "Predicted time", tuple(facts), notes=tuple(_time_notes(made, step_s)))


def side_by_side(made: Sequence[Prediction], speed: Speed, price_per_h: float | None) -> Section:
    """Several precisions in one table; what each run costs where an hour has a price."""
    columns: tuple[str, ...]
    columns = ("precision", "how", "peak", "against fp32", "largest batch", "step", "samples/s", "× fp32", "× tf32")
    columns += () if price_per_h is None else ("run", "cost")
    base = next((p.memory.peak_bytes for p in made if p.plan.precision == "fp32" and not _none(p.memory)), None)  # type: ignore[union-attr]
    rows = tuple((*_row(p, base, speed), *_price(p, price_per_h)) for p in made)
    notes: list[tuple[Tone, str]] = [("", f"{p.plan.precision}: {note}") for p in made for note in _why_not(p)]
    notes += [("careful", note) for p in made for note in _costs(p, base)]
    notes += [("", note) for p in made for note in _emulated(p)]
    notes += (
        [] if price_per_h is None else [("", f"cost: of the whole run without evaluations, at {price_per_h:g} an hour")]
    )
    table = Table(columns, rows, right=tuple(range(2, len(columns))))
    plan = made[0].plan
    return Section("precisions", f"{plan.model} on {plan.device.name}", tables=(table,), notes=tuple(notes))


def _none(value: object) -> bool:
    return isinstance(value, Unmeasured)


def _row(p: Prediction, base: int | None, speed: Speed) -> tuple[str, ...]:
    peak = None if isinstance(p.memory, Unmeasured) else p.memory.peak_bytes
    step_s = p.step_s
    samples = p.plan.batch_size * p.plan.length.accumulate
    told = peak is not None and base is not None
    return (
        p.plan.precision,
        p.plan.mechanism.backend,
        "n/a" if peak is None else bytes_text(peak),
        f"{peak / base - 1:+.0%}" if told and peak and base else "n/a",
        "n/a" if isinstance(p.largest_batch, Unmeasured) else f"{p.largest_batch:,}",
        "n/a" if isinstance(step_s, Unmeasured) else _ms(step_s),
        "n/a" if isinstance(step_s, Unmeasured) else number_text(samples / step_s, 3),
        *("n/a" if _none(speed[k]) or _none(p.time) else _ratio(speed[k], p.time.total_s) for k in ("fp32", "tf32")),  # type: ignore[union-attr]
    )


def _price(p: Prediction, price_per_h: float | None) -> tuple[str, ...]:
    """Time of the whole run and what it costs."""
    if price_per_h is None:
        return ()
    if isinstance(p.step_s, Unmeasured):
        return ("n/a", "n/a")
    run_s = p.step_s * p.plan.length.steps
    return seconds_text(run_s), f"{price_per_h * run_s / 3600:.3g}"


def _emulated(p: Prediction) -> list[str]:
    """Why low-bit operands or a half format are no products of the device, and what would make them so."""
    m = p.plan.mechanism
    if m.backend != "emulated":
        return []
    return [f"{p.plan.precision} is emulated: {m.low_reason if m.low and not m.emulated else m.reason}"]


def _why_not(p: Prediction) -> list[str]:
    return [f"n/a: {value.reason}" for value in (p.memory, p.time) if isinstance(value, Unmeasured)]


def _costs(p: Prediction, base: int | None) -> list[str]:
    """Autocast that takes memory: half copies of float32 weights weigh more than what activations save."""
    if isinstance(p.memory, Unmeasured) or base is None or p.memory.peak_bytes <= base:
        return []
    more = bytes_text(p.memory.peak_bytes - base)
    what = "operands in low bits and their scales" if p.plan.mechanism.low else "copies of the weights in half"
    return [f"{p.plan.precision} takes {more} more than fp32: {what} weigh more than what activations save here"]


def _modules(made: Prediction) -> Table:
    columns = ("module", "type", "stored", "computes in", "how", "weights and state", "kept", "time", "bound by", "why")
    memory, time = made.memory, made.time
    kept = {} if isinstance(memory, Unmeasured) else memory.kept
    spent = {} if isinstance(time, Unmeasured) else time.modules
    rows: list[tuple[str, ...]] = []
    for row in made.plan.rows:
        mine = spent.get(row.name)
        size = made.weights.get(row.name, 0)
        rows.append((row.name, row.type, row.param, row.compute, row.how, bytes_text(size) if size else "–",
                     bytes_text(kept[row.name]) if kept.get(row.name) else "–", *_spent(mine), row.reason))  # fmt: skip
    listed = {row.name for row in made.plan.rows}
    for name in (n for n in dict.fromkeys((*spent, *kept)) if n not in listed):
        label = name or "(the model itself)"
        size_text = bytes_text(kept[name]) if kept.get(name) else "–"
        why = "the loss, the optimizer, the record" if name == OUTSIDE else "between its layers"
        rows.append((label, "", "", "", "", "–", size_text, *_spent(spent.get(name)), why))
    return Table(columns, tuple(rows), right=(5, 6, 7))


def _spent(spent: Spent | None) -> tuple[str, str]:
    return ("–", "") if spent is None or not spent.total_s else (_ms(spent.total_s), spent.bound)


def _of_limit(made: Prediction) -> str:
    limit = made.limit_bytes
    return "" if isinstance(limit, Unmeasured) else f", of {bytes_text(limit)} that {made.plan.device.name} has for it"


def _largest(made: Prediction) -> str:
    largest = made.largest_batch
    if isinstance(largest, Unmeasured):
        return f"n/a: {largest.reason}"
    return f"{largest:,} samples" if largest else "none: one sample does not fit"


def _memory_notes(made: Prediction, ways: Sequence[str]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = []
    limit, largest, one = made.limit_bytes, made.largest_batch, made.smallest_bytes
    known = isinstance(limit, int) and isinstance(largest, int) and isinstance(one, int)
    plan = made.plan
    if known and largest == 0:
        over = bytes_text(one - limit)  # type: ignore[operator]
        notes.append(("bad", f"a batch of one does not fit: {over} too much" + ("" if ways else ", whatever is tried")))
        notes += [("careful", f"would fit: {way}") for way in ways]
    elif known and plan.batch_size > largest:  # type: ignore[operator]
        size, parts = keeping(plan.batch_size, plan.length.accumulate, largest)  # type: ignore[arg-type]
        what = f"a micro-batch of {plan.batch_size} does not fit"
        notes.append(("bad", f"{what}: data.batch_size={size} trainer.accumulate={parts} keeps the batch of an update"))
    notes += [("careful", f"{row.name}: {row.reason}; it stays in {row.compute}") for row in _left_high(made)]
    return notes


def _left_high(made: Prediction) -> list[ModuleRow]:
    """The first layers that a low-bit policy does not take."""
    m = made.plan.mechanism
    return [row for row in made.plan.rows if m.low and row.kind == "gemm" and row.compute == m.compute][:_FEW]


def _whole(made: Prediction, run_s: float, price_per_h: float | None) -> list[tuple[str, str]]:
    facts = [("run", f"{made.plan.length.steps:,} steps, {seconds_text(run_s)} without evaluations")]
    gpu = gpu_of(made.plan.device.name)
    if gpu is not None:
        facts.append(("energy", f"at most {gpu.power_w * run_s / 3.6e6:.3g} kWh of the board's {gpu.power_w:g} W"))
    if price_per_h is not None:
        facts.append(("cost", f"{price_per_h * run_s / 3600:.3g} at {price_per_h:g} an hour"))
    return facts


def _time_notes(made: Prediction, step_s: float) -> list[tuple[Tone, str]]:
    share = made.wait_s / step_s
    if share < _WAITS:
        return []
    wanted = math.ceil(made.loading_s / max(step_s - made.wait_s, 1e-9))
    return [
        ("careful", f"loader-bound at {share:.0%} of the step: data.workers={wanted} would keep up, on cores as here")
    ]


def _ratio(seconds: float | Unmeasured, ours_s: float) -> str:
    return f"n/a: {seconds.reason}" if isinstance(seconds, Unmeasured) else f"{seconds / ours_s:.2f}"


def _ms(seconds: float) -> str:
    return f"{number_text(seconds * 1e3, 3)} ms"
