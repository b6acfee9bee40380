"""Feeds loggers from a run folder while it is written: the numbers are the record's own."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from mpt.loggers import Logger, RunInfo
from mpt.record.folder import EVALS, MARKERS, STEPS
from mpt.record.strict import loads, restored
from mpt.registry import load

_EVERY_S = 0.5
_LAST_S = 60.0
"""Longest wait for loggers after the run's end; what they have not sent by then is theirs to lose."""

_TOLD = ("loss", "lr", "grad_norm", "scale")
_NOT_METRICS = ("step", "update", "best", "precision", "weights", "n")


@contextmanager
def following(folder: Path, names: Sequence[str], name: str, every: int) -> Iterator[None]:
    """Loggers get each `every`-th step, every skipped or non-finite one, and all evaluations, from here on."""
    if not names:
        yield
        return
    follower = Follower(folder, names, name, every)
    thread = threading.Thread(target=follower.run, name="mpt-loggers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.over.set()
        thread.join(_LAST_S)
        if thread.is_alive():
            print(f"loggers {', '.join(names)} did not end within {_LAST_S:g} s and were left", file=sys.stderr)


class Follower:
    """Reads what was appended since the last look, from the end of what was there at the beginning."""

    def __init__(self, folder: Path, names: Sequence[str], name: str, every: int) -> None:
        self.over = threading.Event()
        self._folder, self._names, self._name, self._every = folder, names, name, every
        self._at = {file: _size(folder / file) for file in (STEPS, EVALS)}
        self._loggers: dict[str, Logger] | None = None
        self._nonfinite = self._skipped = 0

    def run(self) -> None:
        """Until the run is over, and once more."""
        while not self.over.wait(_EVERY_S):
            self.look()
        self.look()
        for name in list(self._loggers or {}):
            self._guarded(name, "finish", _status(self._folder))

    def look(self) -> None:
        """Hands on what is new."""
        rows = [(row, self._of_step(row)) for row in self._new(STEPS)]
        rows += [(row, _of_eval(row)) for row in self._new(EVALS)]
        for row, values in sorted(rows, key=lambda pair: int(pair[0]["step"])):
            if values:
                self._log(int(row["step"]), values)

    def _new(self, file: str) -> list[dict[str, Any]]:
        """Whole lines appended since the last look; a file that was cut back is read on from its end."""
        try:
            with (self._folder / file).open("rb") as opened:
                self._at[file] = min(self._at[file], _size(self._folder / file))
                opened.seek(self._at[file])
                data = opened.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at[file] += len(whole)
        return [row for line in whole.splitlines() if "step" in (row := _row(line))]

    def _of_step(self, row: Mapping[str, Any]) -> dict[str, float]:
        bad = not math.isfinite(row["loss"])
        self._skipped += not row["applied"]
        self._nonfinite += bad
        if row["step"] % self._every and row["applied"] and not bad:
            return {}
        values = {f"train/{name}": float(row[name]) for name in _TOLD}
        values |= {"train/skipped": float(self._skipped), "train/nonfinite_losses": float(self._nonfinite)}
        if row["time_s"] > 0:
            values["train/samples_per_s"] = row["samples"] / row["time_s"]
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        if self._loggers is None:
            self._loggers = {}
            for name in self._names:
                self._open(name)
        for name in list(self._loggers):
            self._guarded(name, "log", step, values)

    def _open(self, name: str) -> None:
        assert self._loggers is not None
        try:
            self._loggers[name] = load("loggers", name).open_logger(_info(self._folder, self._name))
        except Exception as error:  # another's code: whatever it raises must not reach the run
            _lost(name, error)

    def _guarded(self, name: str, method: str, *args: Any) -> None:
        assert self._loggers is not None
        try:
            getattr(self._loggers[name], method)(*args)
        except Exception as error:  # as above
            del self._loggers[name]
            _lost(name, error)


def _lost(name: str, error: Exception) -> None:
    what = str(error).strip().splitlines()
    told = f"{type(error).__name__}: {what[0]}" if what else type(error).__name__
    print(f"logger {name} is out ({told}); the run goes on, steps.jsonl has every number", file=sys.stderr)


def _of_eval(row: Mapping[str, Any]) -> dict[str, float]:
    numbers = {k: v for k, v in row.items() if k not in _NOT_METRICS and isinstance(v, (int, float))}
    return {f"eval/{k}": float(v) for k, v in numbers.items() if not isinstance(v, bool) and math.isfinite(v)}


def _info(folder: Path, name: str) -> RunInfo:
    key = hashlib.sha256(str(folder.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    config = yaml.safe_load((folder / "config.yaml").read_bytes())
    return RunInfo(folder, name, key, dict(_flat(config)))


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = loads(line)
    except ValueError:
        return {}
    return restored(row) if isinstance(row, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _status(folder: Path) -> str:
    return next((marker.lower() for marker in MARKERS if (folder / marker).exists()), "failed")
