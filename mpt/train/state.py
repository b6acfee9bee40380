"""What a checkpoint holds, and how a run becomes what it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

import mpt
from mpt import rng
from mpt.build import Run
from mpt.checkpoint import half_weights, model_mismatch, non_finite
from mpt.checkpoint.contents import taking, typed
from mpt.config.fingerprint import essence, told_differences
from mpt.config.reference import as_typed
from mpt.config.schema import RunConfig
from mpt.errors import CheckpointError, Problem
from mpt.telemetry.clock import Clock
from mpt.telemetry.energy import EnergyMeter
from mpt.telemetry.history import History, Totals
from mpt.train.engine import Engine
from mpt.train.progress import Progress
from mpt.units import counted, epochs_text


@dataclass
class Course:
    """Everything about a run that changes between steps."""

    run: Run
    engine: Engine
    history: History
    clock: Clock
    energy: EnergyMeter
    progress: Progress
    underflow_share: float | None = None
    """Of gradients that are not 0 at any scale; measured at the end where most were 0."""


def capture(course: Course, offset: dict[str, int]) -> dict[str, Any]:
    """Plain containers and tensors, from which `restore` continues bit for bit."""
    run, engine, totals = course.run, course.engine, course.history.totals
    return {
        "model": run.model.state_dict(),
        "policy": run.policy.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": {"strategy": run.scaler.strategy, "state": run.scaler.state_dict()},
        "buffers": engine.buffers.state_dict(),
        "ema": engine.ema.state_dict() if engine.ema else {},
        "rng": rng.capture(run.device),
        "history": course.history.state_dict(),
        "clock": course.clock.state_dict(),
        "energy": course.energy.state_dict(),
        "progress": asdict(course.progress),
        "offset": dict(offset),
        "essence": json.dumps(essence(run.cfg), default=str),
        "data_fingerprint": run.plan.data.fingerprint,
        "classes": list(run.plan.data.classes),
        "trained": list(run.policy.names),
        "place": {"epochs": run.plan.length.epochs_at(totals.step), "lr": run.lr(totals.update)},
        "versions": {"mpt": mpt.__version__, "torch": str(torch.__version__)},
    }


def restore(course: Course, state: dict[str, Any], where: str, *, allow_changes: bool) -> list[str]:
    """The run continues after the state's step; gives what was reset because the configuration changed.

    Raises: CheckpointError for another model, or another configuration unless changes are allowed.
    """
    run, engine = course.run, course.engine
    problems = changes(run.cfg, state) or _other_data(run, state)
    if problems and not allow_changes:
        raise CheckpointError(*problems)
    told = [f"{p.where}: {p.what}" for p in problems] + load_weights(run, engine, state, where)
    told += _restore_parts(run, engine, state, where, allow_changes)
    _restore_counts(course, state, where)
    totals = course.history.totals
    if totals.step > run.plan.length.steps:
        what = f"this run has {counted(run.plan.length.steps, 'step')}, the checkpoint is after step {totals.step}"
        raise CheckpointError(Problem(_length_key(run.cfg), what, "give at least that many steps"))
    course.progress.resumed_at.append(totals.step)
    engine.pace.factor, engine.pace.until = run.cfg.guard.rollback_lr, course.progress.slow_until
    with taking("place", where):
        told += _moved(run, totals, state["place"]) if problems else []
    engine.rates.start_at(totals.update)
    with taking("rng", where):
        rng.restore(state["rng"], run.device)
    return told


def _length_key(cfg: RunConfig) -> str:
    """The key that says how long the run is."""
    given = [f"trainer.{key}" for key in ("max_steps", "max_epochs") if getattr(cfg.trainer, key) is not None]
    return ", ".join(given) or "trainer.max_epochs"


def _restore_counts(course: Course, state: dict[str, Any], where: str) -> None:
    with taking("history", where):
        typed(Totals, state["history"])
        course.history.load_state_dict(state["history"])
        if min(course.history.totals.step, course.history.totals.update) < 0:
            raise ValueError("counts below 0")
    with taking("clock", where):
        course.clock.load_state_dict(state["clock"])
    with taking("energy", where):
        course.energy.load_state_dict(state["energy"])
    course.progress = _progress(state["progress"], where)


def rewind(course: Course, state: dict[str, Any], where: str) -> int:
    """All that was learned is as in a state of this run; steps, data and random draws go on. Gives the state's step."""
    run, engine, progress = course.run, course.engine, course.progress
    load_weights(run, engine, state, where)
    _restore_parts(run, engine, state, where, allow_changes=False)
    course.history.totals.back_to(state["history"]["update"])
    for name in ("best", "last_eval", "evaluated_step", "stale", "train_loss"):
        setattr(progress, name, state["progress"][name])
    progress.owes_evaluation = False
    engine.rates.start_at(course.history.totals.update)
    return int(state["history"]["step"])


def _progress(saved: dict[str, Any], where: str) -> Progress:
    """Raises: CheckpointError for counters that this version does not know."""
    unknown = sorted(saved.keys() - {f.name for f in fields(Progress)})
    if unknown:
        what = f"was saved by a newer version, which counts {', '.join(unknown)}"
        raise CheckpointError(Problem(where, what, "use that version, or start from its weights: init_from=…"))
    with taking("progress", where):
        typed(Progress, saved)
    return Progress(**saved)


def _moved(run: Run, totals: Totals, place: dict[str, float] | None) -> Iterator[str]:
    """What a step means now, where that differs from what it meant when it was saved."""
    if place is None:
        return
    epochs, rate = run.plan.length.epochs_at(totals.step), run.lr(totals.update)
    if epochs != place["epochs"]:
        was = f"it was {place['epochs']:.4g}: samples follow from there"
        yield f"step {totals.step} is after {epochs_text(epochs)} now, {was}"
    if rate != place["lr"]:
        length = run.plan.length.steps
        yield (
            f"schedule={run.cfg.schedule.name} is bent anew over {length} steps: "
            f"the rate of the next update is {rate:.4g}, it would have been {place['lr']:.4g}"
        )


def load_weights(run: Run, engine: Engine, state: dict[str, Any], where: str) -> list[str]:
    """Weights and buffers alone, each in the run's own formats; masters take the finest values there are.

    The average follows the weights. Gives a sentence where weights were saved in 16 bits.
    Raises: CheckpointError for another model's tensors.
    """
    values = {**state["model"], **state["policy"].get("masters", {})}
    told = take_weights(run, engine, values, where)
    with taking("buffers", where):
        engine.buffers.load_state_dict(state["buffers"])
    return told


def take_weights(run: Run, engine: Engine, values: dict[str, Any], where: str) -> list[str]:
    """The model has these values, each in the run's own format; the average follows the weights.

    Gives a sentence where weights were saved in 16 bits. Raises: CheckpointError for another model's tensors.
    """
    problems = model_mismatch(values, run.model, where) or non_finite(values, run.model, where)
    if problems:
        raise CheckpointError(*problems)
    with taking("model", where):
        run.policy.load_weights(values)
    if engine.ema:
        engine.ema.start_over()
    half = half_weights(values)
    if half and run.cfg.precision.param == "float32":
        return [f"{len(half)} tensors were saved in 16 bits and are float32 weights now ({half[0]}, …)"]
    return []


def changes(cfg: RunConfig, state: dict[str, Any]) -> list[Problem]:
    """A problem for each key that can alter a number and is not what the checkpoint was made with."""
    with taking("essence", "the checkpoint"):
        old, new = json.loads(state["essence"]), json.loads(json.dumps(essence(cfg), default=str))
        return [
            Problem(key, f"the checkpoint was made with `{as_typed(was)}`, this run has `{as_typed(now)}`", _ALLOW)
            for key, was, now in told_differences(old, new)
        ]


_ALLOW = "give the run's own value, or checkpoint.allow_changes=true to go on with the new one"


def _other_data(run: Run, state: dict[str, Any]) -> list[Problem]:
    if state["data_fingerprint"] == run.plan.data.fingerprint:
        return []
    return [Problem("data", "the samples are not those that the checkpoint was trained on", _ALLOW)]


def _restore_parts(run: Run, engine: Engine, state: dict[str, Any], where: str, allow_changes: bool) -> list[str]:
    """Optimizer, scaler and average, or a sentence for each that does not fit the new configuration."""
    reset = []
    try:
        run.optimizer.load_state_dict(state["optimizer"])
    except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        own = f"{run.cfg.optimizer.name} with moments in {run.cfg.precision.moment}"
        if not allow_changes:
            what = f"the checkpoint's state is not of {own}, as this device runs it"
            raise CheckpointError(Problem("optimizer", what, _ALLOW)) from error
        run.optimizer.reset()
        reset.append(f"optimizer state starts anew: the checkpoint's is not of {own}")
    with taking("policy", where):
        if not run.policy.load_scales(state["policy"]):
            reset.append("delayed scales start anew: the checkpoint's are not of these layers")
    with taking("scaler", where):
        if state["scaler"]["strategy"] == run.scaler.strategy:
            run.scaler.load_state_dict(state["scaler"]["state"])
        else:
            reset.append(f"the loss scale starts anew: {state['scaler']['strategy']} became {run.scaler.strategy}")
    if engine.ema and state["ema"]:
        with taking("ema", where):
            engine.ema.load_state_dict(state["ema"])
    elif engine.ema or state["ema"]:
        reset.append("the average of weights starts anew" if engine.ema else "the average of weights is dropped")
    return reset
