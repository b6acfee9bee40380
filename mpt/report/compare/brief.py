"""What a comparison needs of one run: documents, short curves, and the loss of every step."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpt.config.fingerprint import essential
from mpt.errors import Problem, RecordError
from mpt.record.folder import STEPS
from mpt.record.reader import RunData, Steps, read_run
from mpt.report.curves import Array, Curves, curves
from mpt.report.section import get, number
from mpt.report.sections.precision import is_emulated

_PARALLEL_BYTES = 60_000_000
"""Records larger than this together are read by several processes: starting one costs as much as reading 20 MB."""


@dataclass(frozen=True)
class Brief:
    """`data` without its steps; `at`, `loss` and `elapsed_s` have one entry for each step."""

    data: RunData
    curves: Curves
    at: NDArray[np.int64]
    loss: Array
    elapsed_s: Array

    @cached_property
    def config(self) -> dict[str, Any]:
        """Dotted keys of what can alter a number, or memory and speed by design, without the seed and the device's
        spelling."""
        found = {k: v for k, v in _flat(essential(self.data.config)).items() if k not in ("seed", "device")}
        again = get(self.data.config, "trainer", "checkpoint_activations")
        return {**found, "trainer.checkpoint_activations": again} if again else found

    @property
    def seed(self) -> int | None:
        value = number(self.data.config, "seed")
        return None if value is None else int(value)

    @property
    def precision(self) -> str:
        return str(get(self.data.plan, "precision") or get(self.data.config, "precision", "name") or "unknown")

    @property
    def numerics(self) -> str:
        """How much was looked at, which alters no number and slows steps."""
        return str(get(self.data.config, "numerics") or "off")

    @property
    def emulated(self) -> bool:
        return is_emulated(self.data)

    @property
    def diverged(self) -> bool:
        return self.data.status == "diverged"

    @property
    def done(self) -> bool:
        return self.data.status == "done"

    def metric(self, name: str, at: str) -> float | None:
        """A figure of the last or best evaluation, if finite."""
        value = number(self.data.summary, at, name)
        return value if value is not None and math.isfinite(value) else None


def brief(path: Path) -> Brief:
    """The run in `path`. Raises: RecordError when there is none, or it never took a step."""
    run = read_run(path)
    if not len(run.steps):
        raise RecordError(Problem(str(path), f"took no step ({run.status}: {run.reason})"))
    return brief_of(run)


def brief_of(run: RunData) -> Brief:
    """A run that took steps, briefly."""
    time_s = np.asarray(run.steps.time_s, dtype=np.float64)
    return Brief(
        data=replace(run, steps=Steps()),
        curves=curves(run),
        at=np.asarray(run.steps.step, dtype=np.int64),
        loss=np.asarray(run.steps.loss, dtype=np.float64),
        elapsed_s=np.cumsum(np.where(np.isfinite(time_s), time_s, 0.0)),
    )


def briefs(paths: Sequence[Path]) -> tuple[list[Brief], list[Problem]]:
    """Every run that can be read, and why the others can't."""
    workers = min(len(paths), os.cpu_count() or 1)
    if workers > 1 and sum(map(_bytes, paths)) > _PARALLEL_BYTES:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            read = list(pool.map(_brief, paths))
    else:
        read = [_brief(path) for path in paths]
    good = [item for item in read if isinstance(item, Brief)]
    return good, [item for item in read if isinstance(item, Problem)]


def _brief(path: Path) -> Brief | Problem:
    try:
        return brief(path)
    except RecordError as error:
        return error.problems[0]
    except OSError as error:
        return Problem(str(path), f"can't be read: {error.strerror}")


def _bytes(path: Path) -> int:
    try:
        return (path / STEPS).stat().st_size
    except OSError:
        return 0


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
