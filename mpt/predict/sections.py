"""A prediction for people: the plan, its memory and time, and what stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpt.config.gpus import gpu_of
from mpt.predict.alike import told_once
from mpt.predict.prediction import Prediction, keeping
from mpt.predict.roofline import Spent
from mpt.predict.tracker import OUTSIDE
from mpt.report.section import Section, Table, Tone
from mpt.types import ModuleRow, Unmeasured
from mpt.units import bytes_text, counted, number_text, seconds_text

Speed = Mapping[str, float | Unmeasured]
_FEW = 5
_WAITS = 0.10
"""Share of the step that waiting for data must take to be worth a warning."""


def plan_section(made: Prediction) -> Section:
    """What would run, module by module, with what each holds and takes."""
    head, *more = made.plan.lines()
    table = _modules(made)
    if any("–" in row[0] or "," in row[0] for row in table.rows):
        more = ["blocks that are alike share a row: its figures are those of each of them", *more]
    return Section("plan", head, tables=(table,), notes=tuple(("", line) for line in more))


def memory_section(made: Prediction, ways: Sequence[str] = ()) -> Section:
    """The peak and what holds it; what fits. `ways` are words that would make one sample fit."""
    memory = made.memory
    if isinstance(memory, Unmeasured):
        return Section("memory", f"Predicted memory{_of_each(made)}", facts=(("peak", f"n/a: {memory.reason}"),))
    facts = [("peak", f"{bytes_text(memory.peak_bytes)} in the {memory.phase}{_of_limit(made)}")]
    facts += [(f"  {name}", bytes_text(size)) for name, size in memory.parts.items()]
    facts.append(("kept for the backward", bytes_text(memory.kept_bytes)))
    facts.append(("largest micro-batch", _largest(made)))
    return Section("memory", f"Predicted memory{_of_each(made)}", tuple(facts), notes=tuple(_memory_notes(made, ways)))


def time_section(made: Prediction, speed: Speed, price_per_h: float | None) -> Section:
    """A step, the run, and against float32."""
    time, step_s = made.time, made.step_s
    if isinstance(time, Unmeasured) or isinstance(step_s, Unmeasured):
        assert isinstance(time, Unmeasured), "a step has a time where its ops have one"
        return Section("time", "Predicted time", facts=(("step", f"n/a: {time.reason}"),))
    length = made.plan.length
    parts = ", ".join(f"{name} {in_ms(s)}" for name, s in time.phases.items())
    bounds = ", ".join(f"{name} {share / time.total_s:.0%}" for name, share in time.bounds.items())
    facts = [
        ("step", f"{in_ms(step_s)} ({parts}), {number_text(made.samples / step_s, 3)} samples/s"),
        ("bound by", bounds),
        ("work", f"{number_text(sum(time.flops.values()) / 1e9, 3)} GFLOP, {bytes_text(time.moved_bytes)} moved, "
                 f"{time.launches:,} kernels"),
        ("rates", made.how),
    ]  # fmt: skip
    if made.loading_s:
        facts.append(("data loading", f"{in_ms(made.loading_s)} a micro-batch here with one process"))
    facts += _communication(made)
    facts += [(f"speed-up over {name}", ratio(seconds, step_s - made.wait_s)) for name, seconds in speed.items()]
    facts += _whole(made, step_s * length.steps, price_per_h)
    return Section("time", "Predicted time", tuple(facts), notes=tuple(_time_notes(made, step_s)))


def _of_each(made: Prediction) -> str:
    n = made.plan.processes
    return "" if n == 1 else f" of each of {n} processes"


def _communication(made: Prediction) -> list[tuple[str, str]]:
    """What goes from each process to the others."""
    found = made.communication
    if not found.sent_bytes:
        return []
    sent = ", ".join(f"{bytes_text(size)} of {name}" for name, size in found.sent_bytes.items())
    told = f"{sent} sent by each process in a step"
    if not isinstance(found.seconds, Unmeasured):
        told += f": {in_ms(found.seconds)}, of which {in_ms(found.known_s)} show beside the computing"
    return [("communication", told)]


def not_counted(made: Prediction) -> list[str]:
    """What the predicted step leaves out."""
    if not isinstance(made.communication.seconds, Unmeasured) or isinstance(made.time, Unmeasured):
        return []
    return ["communication is not counted in the step: say what one process can send, distributed.link_gb_s=N (GB/s)"]


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
        rows.append((label, "", "", "", "", "–", size_text, *_spent(spent.get(name)), _why_outside(name, made)))
    return Table(columns, tuple(told_once(rows)), right=(5, 6, 7))


def _why_outside(name: str, made: Prediction) -> str:
    """What takes time or memory there, beside the layers."""
    if name in made.plan.recomputed:
        return "between its layers; its input is kept, all else computed again in the backward"
    if made.compiled and not name:
        return "all of it: a compiler's kernels go across layers"
    return "the loss, the optimizer, the record" if name == OUTSIDE else "between its layers"


def _spent(spent: Spent | None) -> tuple[str, str]:
    return ("–", "") if spent is None or not spent.total_s else (in_ms(spent.total_s), spent.bound)


def _of_limit(made: Prediction) -> str:
    limit = made.limit_bytes
    return "" if isinstance(limit, Unmeasured) else f", of {bytes_text(limit)} that {made.plan.device.name} has for it"


def _largest(made: Prediction) -> str:
    largest = made.largest_batch
    if isinstance(largest, Unmeasured):
        return f"n/a: {largest.reason}"
    data = made.plan.data
    more = f" by memory alone; {data.name} has {data.n_train:,}" if largest > data.n_train else ""
    return counted(largest, "sample") + more if largest else "none: one sample does not fit"


def _memory_notes(made: Prediction, ways: Sequence[str]) -> list[tuple[Tone, str]]:
    notes: list[tuple[Tone, str]] = [("careful", made.not_told)] if made.not_told else []
    short = does_not_fit(made)
    if short is not None:
        none_fits = made.largest_batch == 0
        notes.append(("bad", short + (", whatever is tried" if none_fits and not ways else "")))
        notes += [("careful", f"would fit{'' if none_fits else ' as it is'}: {way}") for way in ways]
    notes += [("careful", f"{row.name}: {row.reason}; it stays in {row.compute}") for row in _left_high(made)]
    return notes


def does_not_fit(made: Prediction) -> str | None:
    """What is too much for the device, and the words that keep an update's batch; None where nothing is known to be."""
    limit, largest, one = made.limit_bytes, made.largest_batch, made.smallest_bytes
    if not (isinstance(limit, int) and isinstance(largest, int) and isinstance(one, int)):
        return None
    plan = made.plan
    if largest == 0:
        return f"a batch of one does not fit: {bytes_text(one - limit)} too much"
    if plan.batch_size <= largest:
        return None
    size, parts = keeping(plan.batch_size, plan.length.accumulate, largest)
    what = f"a micro-batch of {plan.batch_size} does not fit"
    return f"{what}: data.batch_size={size} trainer.accumulate={parts} keeps the batch of an update"


def _left_high(made: Prediction) -> list[ModuleRow]:
    """The first layers that a low-bit policy does not take."""
    m = made.plan.mechanism
    return [row for row in made.plan.rows if m.low and row.kind == "gemm" and row.compute == m.compute][:_FEW]


def _whole(made: Prediction, run_s: float, price_per_h: float | None) -> list[tuple[str, str]]:
    facts = [("run", f"{made.plan.length.steps:,} steps, {seconds_text(run_s)} without evaluations")]
    gpu = gpu_of(made.plan.device.name)
    if gpu is not None:
        n, boards = made.plan.processes, "the board's" if made.plan.processes == 1 else "each board's"
        energy = f"at most {n * gpu.power_w * run_s / 3.6e6:.3g} kWh for the run, of {boards} {gpu.power_w:g} W"
        facts.append(("energy", energy))
    if price_per_h is not None:
        cost = price_per_h * made.plan.processes * run_s / 3600
        each = "" if made.plan.processes == 1 else f" for each of {made.plan.processes} devices"
        epoch = f"{cost / made.plan.length.epochs:.3g} an epoch"
        facts.append(
            ("cost", f"{cost:.3g} for the run, {epoch}; in the currency of the price, {price_per_h:g} an hour{each}")
        )
    return facts


def _time_notes(made: Prediction, step_s: float) -> list[tuple[Tone, str]]:
    share = made.wait_s / step_s
    notes: list[tuple[Tone, str]] = [("careful", what) for what in not_counted(made)]
    if share < _WAITS:
        return notes
    wanted = math.ceil(made.loading_s / max(step_s - made.wait_s, 1e-9))
    return [
        *notes,
        ("careful", f"loader-bound at {share:.0%} of the step: data.workers={wanted} would keep up, on cores as here"),
    ]


def ratio(seconds: float | Unmeasured, ours_s: float) -> str:
    """How many times as long, or why that is not known."""
    return f"n/a: {seconds.reason}" if isinstance(seconds, Unmeasured) else f"{seconds / ours_s:.2f}"


def in_ms(seconds: float) -> str:
    """Three digits of milliseconds."""
    return f"{number_text(seconds * 1e3, 3)} ms"
