"""What a checkpoint holds, and how a run becomes what it was."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from mpt import rng
from mpt.build import Run
from mpt.checkpoint import half_weights, model_mismatch
from mpt.config.fingerprint import differences, essence
from mpt.errors import CheckpointError, Problem
from mpt.train.engine import Engine


@dataclass
class Progress:
    """Counters of a run that is under way; all of it is in every checkpoint.

    `best` holds the metrics and update of the best evaluation; `stale` evaluations since then.
    """

    step: int = 0
    update: int = 0
    streak: int = 0
    samples: int = 0
    nonfinite_losses: int = 0
    growths: int = 0
    min_scale: float | None = None
    max_scale: float | None = None
    last_scale: float | None = None
    last_loss: float | None = None
    evaluated_update: int = -1
    best: dict[str, float] = field(default_factory=dict)
    last_eval: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    zero_grad_shares: list[float] = field(default_factory=list)
    lost_update_shares: list[float] = field(default_factory=list)
    resumed_from: list[int] = field(default_factory=list)
    earlier_s: dict[str, float] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        return self.step - self.update


def capture(run: Run, engine: Engine, progress: Progress, offset: dict[str, int]) -> dict[str, Any]:
    """Plain containers and tensors, from which `restore` continues bit for bit."""
    return {
        "model": run.model.state_dict(),
        "policy": run.policy.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": {"strategy": run.scaler.strategy, "state": run.scaler.state_dict()},
        "stepper": engine.stepper.state_dict(),
        "ema": engine.ema.state_dict() if engine.ema else {},
        "rng": rng.capture(run.device),
        "progress": json.dumps(asdict(progress)),
        "offset": dict(offset),
        "essence": json.dumps(essence(run.cfg), default=str),
        "data_fingerprint": run.plan.data.fingerprint,
        "classes": list(run.plan.data.classes),
    }


def restore(run: Run, engine: Engine, state: dict[str, Any], *, allow_changes: bool) -> tuple[Progress, list[str]]:
    """The run continues after the state's step; also what was reset because the configuration changed.

    Raises: CheckpointError for another model, or another configuration unless changes are allowed.
    """
    load_weights(run, state)
    changed = _changes(run, state)
    if changed and not allow_changes:
        raise CheckpointError(*changed)
    reset = [str(problem) for problem in changed]
    progress = Progress(**json.loads(state["progress"]))
    reset += _restore_parts(run, engine, state)
    engine.stepper.load_state_dict(state["stepper"])
    rng.restore(state["rng"], run.device)
    progress.resumed_from.append(progress.step)
    return progress, reset


def load_weights(run: Run, state: dict[str, Any]) -> None:
    """Weights and buffers alone, into the run's own formats; masters follow the weights.

    Raises: CheckpointError where the tensors are another model's.
    """
    problems = model_mismatch(state["model"], run.model)
    if problems:
        raise CheckpointError(*problems)
    run.model.load_state_dict(state["model"])
    if state.get("policy"):
        run.policy.load_state_dict(state["policy"])
    else:
        run.policy.reset_masters()


def _restore_parts(run: Run, engine: Engine, state: dict[str, Any]) -> list[str]:
    """Optimizer, scaler and average, or a sentence for each that does not fit the new configuration."""
    reset = []
    try:
        run.optimizer.load_state_dict(state["optimizer"])
    except (AssertionError, KeyError, RuntimeError, ValueError):
        reset.append(f"optimizer state starts anew: the checkpoint's is not of {run.cfg.optimizer.name}")
    if state["scaler"]["strategy"] == run.scaler.strategy:
        run.scaler.load_state_dict(state["scaler"]["state"])
    else:
        reset.append(f"the loss scale starts anew: {state['scaler']['strategy']} became {run.scaler.strategy}")
    if engine.ema and state["ema"]:
        engine.ema.load_state_dict(state["ema"])
    elif engine.ema or state["ema"]:
        reset.append("the average of weights starts anew" if engine.ema else "the average of weights is dropped")
    return reset


def _changes(run: Run, state: dict[str, Any]) -> list[Problem]:
    old, new = json.loads(state["essence"]), json.loads(json.dumps(essence(run.cfg), default=str))
    hint = "give the run's own value, or checkpoint.allow_changes=true to go on with the new one"
    found = [
        Problem(key, f"the checkpoint was made with `{was}`, this run has `{now}`", hint)
        for key, was, now in differences(old, new)
    ]
    if state["data_fingerprint"] != run.plan.data.fingerprint and not found:
        found.append(Problem("data", "the samples are not those that the checkpoint was trained on", hint))
    return found


def half_precision_weights(state: dict[str, Any]) -> list[str]:
    """Names of weights that the checkpoint holds in 16 bits."""
    return half_weights(state["model"])


def to_cpu(value: Any) -> Any:
    """The same containers with every tensor copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: to_cpu(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_cpu(v) for v in value]
    return value
