"""Weights & Biases: WANDB_MODE says online or offline; without a key it is offline, and nothing is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mpt.loggers import PROJECT, Logger, RunInfo

PACKAGE = "wandb"


def open_logger(run: RunInfo) -> Logger:
    import wandb

    mode: Any = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        id=run.key,
        dir=str(run.folder),
        config=dict(run.config),
        mode=mode,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    return _WandB(opened)


def _has_key() -> bool:
    """Whether wandb would find credentials without asking for them."""
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


class _WandB:
    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("*", step_metric="step")  # an evaluation may arrive after later steps

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def finish(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("done", "interrupted") else 1)
