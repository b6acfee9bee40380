"""What a run came to, for summary.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from mpt.build import Run
from mpt.checkpoint.saver import SaveCosts
from mpt.plan.mfu import Work, mfu, peak_tflops
from mpt.record.provenance import versions
from mpt.telemetry.history import read
from mpt.telemetry.memory import Memory, MemoryMeter
from mpt.telemetry.summary import Extras, Identity, Outcome, PrecisionSummary, Quality, Summary
from mpt.train.engine import Engine
from mpt.train.predicted import predicted
from mpt.train.preflight import Preflight
from mpt.train.progress import Ending, Progress
from mpt.train.state import Course
from mpt.types import Unmeasured

NAMED = 100
"""Unreadable samples of which summary.json has the names; events.jsonl has all."""


def summarize(course: Course, ending: Ending, seen: Preflight, memory: MemoryMeter, saves: SaveCosts) -> dict[str, Any]:
    """summary.json's document; what was not measured says why."""
    run, totals, progress = course.run, course.history.totals, course.progress
    if run.scaler.active and totals.step:
        totals.see_scale(read(run.scaler.scale)[0])
    plan, cfg = run.plan, run.cfg
    return Summary(
        outcome=Outcome(ending.status, ending.reason, ending.exit_code),
        identity=Identity(plan.name, cfg.seed, plan.fingerprint, plan.data.fingerprint),
        totals=totals,
        epochs=plan.length.epochs_at(totals.step),
        quality=_quality(progress),
        precision=PrecisionSummary(
            requested=cfg.precision.name,
            effective=plan.mechanism.effective,
            backend=plan.mechanism.backend,
            mechanism=plan.mechanism.told,
            audit=seen.audit.verdict,
        ),
        scaling=run.scaler.strategy,
        speed=course.clock.speed(),
        memory=_memory(course, memory, saves.snapshot_bytes),
        split=course.clock.split(),
        device=plan.device,
        versions=versions(),
        extras=_extras(course, seen, saves),
    ).to_json()


def _quality(progress: Progress) -> Quality:
    unmeasured = Unmeasured("no evaluation was made")
    loss = progress.train_loss
    return Quality(
        train_loss=Unmeasured("no update was applied") if loss is None else loss,
        final=_renamed(progress.last_eval) if progress.last_eval else {"eval_loss": unmeasured},
        best=_renamed(progress.best) if progress.best else unmeasured,
    )


def _renamed(metrics: dict[str, float]) -> dict[str, float]:
    """An evaluation's `loss` stands beside the training loss as `eval_loss`."""
    return {"eval_loss" if key == "loss" else key: value for key, value in metrics.items()}


def _memory(course: Course, memory: MemoryMeter, snapshot_bytes: int) -> Memory:
    return memory.memory(lasting(course.run, course.engine), snapshot_bytes)


def lasting(run: Run, engine: Engine) -> dict[str, list[Tensor]]:
    """The tensors of a run between steps, in the groups of `telemetry.memory`."""
    policy, ema = run.policy, engine.ema
    weights = {id(w) for w in policy.weights}
    masters = [t for t in policy.held.stored() if id(t) not in weights]
    return {
        "params": list(run.model.parameters()),
        "buffers": list(run.model.buffers()),
        "grads": [t.grad for t in (*policy.weights, *masters) if t.grad is not None],
        "optimizer": [*masters, *run.optimizer.state_tensors()],
        "ema": ema.average if ema else [],
        "data": run.data.resident(),
    }


def _extras(course: Course, seen: Preflight, saves: SaveCosts) -> Extras:
    progress, cfg, run = course.progress, course.run.cfg, course.run
    more: dict[str, Any] = {
        "losses_of_precision": {
            "zero_grad_share": _mean(progress.zero_grad_share, _why_not(cfg.precision.compute != "float16", "float16")),
            "underflow_share": _or_why(
                course.underflow_share, "less than half of the gradients that were looked at were 0"
            ),
            "lost_update_share": _mean(
                progress.lost_update_share, _why_not(not run.policy.lost_updates.active, "half")
            ),
        },
        "evaluation": {"precision": cfg.trainer.eval_precision, "weights": "ema" if course.engine.ema else "current"},
        "idle_weights": list(seen.idle_weights),
        "scaler": run.scaler.facts(),
        "rollbacks": progress.rollbacks,
        "skipped_samples": progress.skipped_samples,
        "unreadable": run.data.skipped[:NAMED],
        "converted_samples": dict(run.data.converted),
        "resumed_at": progress.resumed_at,
        "micro_batch_parts": progress.parts,
        "energy": course.energy.summary(),
        "checkpoints": {"saved": saves.count, "stall_s": saves.stall_s, "write_s": saves.write_s},
    }
    told = predicted(course)
    extras = Extras(
        **_utilisation(course, seen),
        predicted_peak_bytes=told.peak_bytes,
        predicted_step_ms=told.step_ms,
        more=more,
    )
    return replace(extras, compile_s=course.clock.warmup_excess_s()) if cfg.trainer.compile else extras


def _utilisation(course: Course, seen: Preflight) -> dict[str, Any]:
    """FLOPs of the median step against the peak of their formats."""
    plan, step_ms = course.run.plan, course.clock.speed().step_p50_ms
    m, micro = plan.mechanism, plan.length.accumulate
    emulated = f"{m.effective} is emulated here: no speed is claimed" if m.backend == "emulated" else ""
    work = Work({form: flops * micro for form, flops in seen.work.flops.items()}, seen.work.uncounted)
    peak = peak_tflops(work, plan.device, course.run.cfg.trainer.peak_tflops)
    step_s = step_ms if isinstance(step_ms, Unmeasured) else step_ms / 1e3
    counted = Unmeasured(f"not counted: {', '.join(sorted(work.uncounted))}") if work.uncounted else work.total
    return {"flops_per_step": counted, "peak_tflops": peak, "mfu": mfu(work, peak, step_s, emulated)}


def _why_not(does_not_apply: bool, what: str) -> str:
    return f"nothing is stored or computed in {what}" if does_not_apply else "no step that was looked at was applied"


def _or_why(value: float | None, why_not: str) -> float | Unmeasured:
    return Unmeasured(why_not) if value is None else value


def _mean(shares: list[float], why_not: str) -> float | Unmeasured:
    return sum(shares) / len(shares) if shares else Unmeasured(why_not)
