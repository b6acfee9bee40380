"""All configurations: what each holds, alone; then their steps, in turns."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from mpt.bench.cell import Cell
from mpt.bench.spread import Effort, Spread, interleaved, spread
from mpt.config.schema import RunConfig
from mpt.errors import ModelError, MptError
from mpt.plan.mfu import Work, blended, mfu, peak_tflops
from mpt.precision.routing import routed, suits
from mpt.telemetry.matmul import ceiling_tflops
from mpt.telemetry.memory import Memory
from mpt.train.compiler import not_compiled
from mpt.types import Unmeasured

TURN_MS = 30.0
"""A turn lasts at least this long: steps are put together until it does."""
NOT_ASKED = "not asked for"
_CEILING_S = 0.2
Figure = float | Unmeasured


@dataclass(frozen=True)
class Result:
    """What one configuration reached. `ceiling_share` is of what large products reach on this device."""

    label: str
    cfg: RunConfig
    emulated: bool
    effective: str
    samples: int
    step_ms: Spread
    expert_ms: Spread | Unmeasured
    memory: Memory
    work: Work
    mfu: Figure
    peak_tflops: Figure
    ceiling_share: Figure
    compile_s: Figure
    largest: tuple[int, str] | None

    @property
    def samples_per_s(self) -> float:
        return 1e3 * self.samples / self.step_ms.median


def measure(
    wanted: Sequence[tuple[str, RunConfig]], effort: Effort, *, against_expert: bool, find_batch: bool
) -> list[Result]:
    """Figures of each labelled configuration; they take turns, the order alternates, the first round is warm-up."""
    cells, found, batches = [], {}, {}
    for label, cfg in wanted:
        with _named(label, len(wanted) > 1):
            cell = Cell(label, cfg)
            if find_batch:
                fitted, size, how = cell.fitted()
                batches[label] = size, how
                cell.close()
                del cell
                gc.collect()
                cell = Cell(label, fitted)
            found[label] = cell.observe()
            cells.append(cell)
    programs, refused = _programs(cells, against_expert)
    times = interleaved(programs, effort)
    ceilings = _ceilings(cells, found)
    results = []
    for cell in cells:
        theirs = f"expert {cell.label}"
        peer = spread(times[theirs]) if theirs in times else refused.get(cell.label, Unmeasured(NOT_ASKED))
        memory, work = found[cell.label]
        results.append(_result(cell, spread(times[cell.label]), peer, memory, work, ceilings, batches.get(cell.label)))
        cell.close()
    return results


@contextmanager
def _named(label: str, among_others: bool) -> Iterator[None]:
    """What can't be done says for which of several configurations."""
    try:
        try:
            yield
        except RuntimeError as error:
            problem = not_compiled(error)
            if problem is None:
                raise
            raise ModelError(problem) from error
    except MptError as error:
        if not among_others:
            raise
        raise type(error)(*(replace(p, what=f"{p.what} (with {label})") for p in error.problems)) from error


def _programs(
    cells: Sequence[Cell], against_expert: bool
) -> tuple[dict[str, Callable[[], float]], dict[str, Unmeasured]]:
    """What takes turns, and why the expert does not for some."""
    programs: dict[str, Callable[[], float]] = {}
    refused: dict[str, Unmeasured] = {}
    for cell in cells:
        steps = _steps_in_a_turn(cell)
        programs[cell.label] = partial(cell.step_ms, steps)
        peer = cell.expert_ms() if against_expert else None
        if isinstance(peer, Unmeasured):
            refused[cell.label] = peer
        elif peer is not None:
            programs[f"expert {cell.label}"] = partial(peer, steps)
    return programs, refused


def _steps_in_a_turn(cell: Cell) -> int:
    cell.step_ms(1)  # compiles again what was forgotten when the next cell was made
    return max(1, round(TURN_MS / max(cell.step_ms(2), 1e-3)))


def _ceilings(cells: Sequence[Cell], found: dict[str, tuple[Memory, Work]]) -> dict[str, float | None]:
    """TFLOP/s that large products reach here, by format, with the faster of the libraries that a run may take."""
    facts = cells[0].run.plan.device
    forms = {form for _, work in found.values() for form in work.flops}
    with routed(suits(facts, math.inf)):
        return {form: ceiling_tflops(form, facts, _CEILING_S) for form in sorted(forms)}


def _result(
    cell: Cell,
    step_ms: Spread,
    peer: Spread | Unmeasured,
    memory: Memory,
    work: Work,
    ceilings: dict[str, float | None],
    largest: tuple[int, str] | None,
) -> Result:
    plan, cfg = cell.run.plan, cell.cfg
    emulated = f"{plan.mechanism.effective} is emulated here: no speed is claimed" if cell.emulated else ""
    peak = peak_tflops(work, plan.device, cfg.trainer.peak_tflops)
    ceiling = blended(work, ceilings.get, lambda form: f"products in {form} were not timed on {plan.device.name}")
    step_s = step_ms.median / 1e3
    compile_s: Figure = Unmeasured("trainer.compile is off")
    if cfg.trainer.compile:
        compile_s = max(0.0, cell.first_step_s - step_s)
    return Result(
        cell.label, cfg, cell.emulated, plan.mechanism.effective, cell.samples, step_ms, peer, memory, work,
        mfu(work, peak, step_s, emulated), peak, mfu(work, ceiling, step_s, emulated),
        compile_s, largest,
    )  # fmt: skip
