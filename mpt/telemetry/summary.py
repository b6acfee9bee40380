"""summary.json: what a run came to, in the names that outsiders rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpt.telemetry.clock import Speed
from mpt.telemetry.history import Totals
from mpt.telemetry.memory import Memory
from mpt.types import DeviceFacts, Unmeasured

SCHEMA = "mpt.summary/1"

Figure = float | Unmeasured


@dataclass(frozen=True)
class Outcome:
    """How the run ended. `status` is done, failed, diverged or interrupted."""

    status: str
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Identity:
    """What makes two runs comparable."""

    name: str
    seed: int
    config_fingerprint: str
    data_fingerprint: str


@dataclass(frozen=True)
class PrecisionSummary:
    """Asked, effective and observed. `audit` is match, differs or not taken."""

    requested: str
    effective: str
    backend: str
    mechanism: str
    audit: str | Unmeasured


@dataclass(frozen=True)
class Quality:
    """Last and best metrics; each is `{"eval_loss": …, "accuracy" | "perplexity": …}`, best with `update`."""

    train_loss: Figure
    final: Mapping[str, Any]
    best: Mapping[str, Any] | Unmeasured


_NO_PEAK = Unmeasured("no step was observed")
_NOT_COMPILED = Unmeasured("trainer.compile is off")
_NOT_PREDICTED = Unmeasured("no prediction was asked for")


@dataclass(frozen=True)
class Extras:
    """Figures that some runs have."""

    compile_s: Figure = _NOT_COMPILED
    mfu: Figure = _NO_PEAK
    peak_tflops: Figure = _NO_PEAK
    flops_per_step: int | Unmeasured = _NO_PEAK
    predicted_peak_bytes: int | Unmeasured = _NOT_PREDICTED
    predicted_step_ms: Figure = _NOT_PREDICTED
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further members of summary.json, by key."""


@dataclass(frozen=True)
class Summary:
    """A run's figures. `split` are its seconds by phase; `scaling` is the strategy."""

    outcome: Outcome
    identity: Identity
    totals: Totals
    epochs: float
    quality: Quality
    precision: PrecisionSummary
    scaling: str
    speed: Speed
    memory: Memory
    split: Mapping[str, float]
    device: DeviceFacts
    versions: Mapping[str, Any]
    extras: Extras = field(default_factory=Extras)

    def to_json(self) -> dict[str, Any]:
        """The document; `RunWriter.json` turns what was not measured into null with its reason."""
        return {
            "schema": SCHEMA,
            **vars(self.outcome),
            **vars(self.identity),
            "steps": self.totals.step,
            "updates": self.totals.update,
            "skipped": self.totals.skipped,
            "samples": self.totals.samples,
            "epochs": self.epochs,
            "final": {"train_loss": self.quality.train_loss, **self.quality.final},
            "best": self.quality.best if isinstance(self.quality.best, Unmeasured) else dict(self.quality.best),
            "precision": vars(self.precision),
            "scaling": scaling_summary(self.scaling, self.totals),
            "speed": {
                **vars(self.speed),
                "compile_s": self.extras.compile_s,
                "startup_s": self.split["startup"],
                "mfu": self.extras.mfu,
                "peak_tflops": self.extras.peak_tflops,
                "flops_per_step": self.extras.flops_per_step,
                "predicted_step_ms": self.extras.predicted_step_ms,
            },
            "memory": {**vars(self.memory), "predicted_peak_bytes": self.extras.predicted_peak_bytes},
            "time_s": {key: self.split[key] for key in ("total", "train", "eval", "checkpoint", "data")},
            "device": vars(self.device),
            "versions": dict(self.versions),
            "nonfinite_losses": self.totals.nonfinite_losses,
            "first_nonfinite_loss": self.totals.first_nonfinite_loss,
            **self.extras.more,
        }


def scaling_summary(strategy: str, totals: Totals) -> dict[str, Any]:
    """The range of scales that steps used, and how they moved."""
    none = Unmeasured("no step was taken")
    return {
        "strategy": strategy,
        "init": none if totals.scale_init is None else totals.scale_init,
        "min": none if totals.scale_min is None else totals.scale_min,
        "max": none if totals.scale_max is None else totals.scale_max,
        "final": none if totals.scale_last is None else totals.scale_last,
        "skipped": totals.skipped,
        "longest_streak": totals.longest_streak,
        "growths": totals.growths,
        "backoffs": totals.backoffs,
    }
