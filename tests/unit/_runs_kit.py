"""Run folders made by hand, with results that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpt.record.writer import RunWriter
from mpt.types import StepRow

FLAGS = {"cudnn.allow_tf32": False, "cuda.matmul.fp32_precision": "ieee"}


def write_run(
    folder: Path, precision: str = "fp32", seed: int = 0, accuracy: float = 0.9, *, n: int = 60,
    loss: Callable[[int], float] = lambda i: 2.0 / i**0.5, skips: Sequence[int] = (), how: str = "native",
    marker: str | None = "DONE", samples_per_s: float = 1000.0, peak_bytes: int = 10_000_000, batch: int = 64,
    device: str = "CPU of a test", flags: dict[str, Any] | None = None, data: str = "d0", lr: float = 1e-3,
    summary: dict[str, Any] | None = None, name: str | None = None, numerics: str = "off",
) -> Path:  # fmt: skip
    """One run; `marker` None leaves it unfinished, without a summary."""
    with RunWriter(folder) as writer:
        scaling = "dynamic" if precision == "fp16" else "none"
        writer.text(
            "config.yaml",
            f"model: {{name: small_cnn, choice: small_cnn, width: 32}}\ndata: {{name: digits, batch_size: {batch}}}\n"
            f"precision: {{name: {precision}, compute: {precision}}}\nscaling: {{name: {scaling}}}\n"
            f"optimizer: {{name: adamw, lr: {lr}}}\ntrainer: {{accumulate: 1, log_every: 5}}\n"
            f"device: cpu\nseed: {seed}\nname: {name or 'null'}\nnumerics: {numerics}\n",
        )
        facts = {"type": "cpu", "name": device}
        writer.json(
            "env", {"schema": "mpt.env/1", "device": facts, "flags": flags or FLAGS, "versions": {"torch": "2.14"}}
        )
        mechanism = {"compute": precision, "how": how, "reason": "a test", "device": "cpu"}
        writer.json("plan", {"schema": "mpt.plan/1", "name": name or precision, "precision": precision,
                             "mechanism": mechanism, "data": {"n_eval": 1000, "fingerprint": f"{data}-{seed}"},
                             "rows": []})  # fmt: skip
        writer.steps(_steps(n, loss, skips, scaling == "dynamic"))
        for step in skips:
            writer.event("skip", step=step, cause="gradient_overflow", scale=65536.0)
        for step in (n // 2, n):
            writer.evaluation({"step": step, "update": step, "accuracy": accuracy, "loss": 1.0, "best": step == n})
        if marker is not None:
            writer.json(
                "summary",
                {**_summary(accuracy, seed, how, samples_per_s, peak_bytes, data, precision), **(summary or {})},
            )
            writer.finish(marker, f"{n} steps")
    return folder


def _steps(n: int, loss: Callable[[int], float], skips: Sequence[int], scaled: bool) -> list[StepRow]:
    scale = 65536.0 if scaled else 1.0
    rows, update = [], 0
    for i in range(1, n + 1):
        skipped = i in skips
        update += not skipped
        norm = math.inf if skipped else 1.0
        rows.append(StepRow(i, update, not skipped, loss(i), 1e-3, norm, scale, 64, 0.064, 0.001))
        scale = scale / 2 if skipped else scale
    return rows


def _summary(
    accuracy: float, seed: int, how: str, samples_per_s: float, peak_bytes: int, data: str, precision: str
) -> dict[str, Any]:
    return {
        "schema": "mpt.summary/1", "status": "done", "seed": seed, "steps": 60, "skipped": 0,
        "data_fingerprint": f"{data}-{seed}", "config_fingerprint": f"{precision}-{seed}",
        "final": {"train_loss": 0.3, "accuracy": accuracy, "eval_loss": 1.0},
        "best": {"accuracy": accuracy, "step": 60, "update": 60},
        "precision": {"backend": how},
        "speed": {"samples_per_s": samples_per_s, "step_p50_ms": 64_000 / samples_per_s, "step_p95_ms": 70.0, "n": 50,
                  "data_wait_share": 0.01},
        "memory": {"peak_bytes": peak_bytes, "params_bytes": 1000, "activations_bytes": peak_bytes - 1000,
                   "method": "by hand"},
        "time_s": {"total": 36.0, "train": 30.0},
    }  # fmt: skip
