"""The folder of a sweep: what was asked (sweep.json), and how each job stands (jobs/N.json, jobs/N.log)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpt.errors import ConfigError, ExitCode, Problem
from mpt.record.folder import MARKERS, STEPS
from mpt.record.strict import dumps, loads

SWEEP, JOBS, SCHEMA = "sweep.json", "jobs", "mpt.sweep/1"
WAITING, RUNNING, FINISHED = "waiting", "running", "finished"
_STOP = "STOP"

_WORDS: dict[int, str] = {
    ExitCode.FINISHED: FINISHED,
    ExitCode.BUG: "bug in mpt",
    ExitCode.REFUSED: "refused",
    ExitCode.DIVERGED: "diverged",
    ExitCode.FAULT: "fault",
    ExitCode.SIGINT: "interrupted",
    ExitCode.SIGTERM: "terminated",
}


@dataclass(frozen=True)
class State:
    """How a job stands; `folder` is its run folder, `elapsed_s` its own time, `pid` that of its process
    on `host`."""

    number: int
    label: str
    status: str
    exit_code: int | None = None
    reason: str = ""
    folder: str = ""
    started: float | None = None
    elapsed_s: float | None = None
    pid: int | None = None
    host: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by finishing."""
        return self.exit_code not in (None, ExitCode.FINISHED)


@dataclass(frozen=True)
class SweepFolder:
    """Reads and writes one sweep's state; several processes may each write their own job's."""

    path: Path

    def create(self, words: Sequence[str], config_dir: str | None, jobs: Sequence[str], axis: Sequence[str]) -> None:
        """Write down what was asked; `jobs` are the words of each, `axis` the keys that differ but the seed.

        Raises: ConfigError where the folder can't be made or written to.
        """
        document = {
            "schema": SCHEMA,
            "words": list(words),
            "config_dir": config_dir,
            "cwd": str(Path.cwd()),
            "axis": list(axis),
            "jobs": list(jobs),
        }
        try:
            (self.path / JOBS).mkdir(parents=True, exist_ok=True)
            self._write(self.path / SWEEP, document)
        except OSError as error:
            what = f"`{self.path}` can't be written to: {error.strerror or error}"
            raise ConfigError(Problem("hydra.sweep.dir", what, "name another place: hydra.sweep.dir=…")) from error

    def asked(self) -> dict[str, Any]:
        """sweep.json. Raises: ConfigError where there is none that this version reads."""
        hint = "give the folder of a sweep (hydra.sweep.dir), or start one without --continue"
        try:
            document = loads((self.path / SWEEP).read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(Problem(str(self.path), f"is no sweep that can go on: {error}", hint)) from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ConfigError(Problem(str(self.path), f"{SWEEP} is not of schema {SCHEMA}", hint))
        return document

    def log(self, number: int) -> Path:
        return self.path / JOBS / f"{number}.log"

    @property
    def stopping(self) -> bool:
        """Whether no further job is to start."""
        return (self.path / JOBS / _STOP).exists()

    def stop(self, on: bool) -> None:
        """Let no further job start, or let them again."""
        mark = self.path / JOBS / _STOP
        if on:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def put(self, state: State) -> None:
        self._write(self.path / JOBS / f"{state.number}.json", asdict(state))

    def states(self, labels: Sequence[str]) -> list[State]:
        """Every job's state; `waiting` where nothing was written."""
        return [self._state(number, label) for number, label in enumerate(labels)]

    def _state(self, number: int, label: str) -> State:
        try:
            return State(**loads((self.path / JOBS / f"{number}.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return State(number, label, WAITING)

    @staticmethod
    def _write(path: Path, document: dict[str, Any]) -> None:
        temp = path.with_name(f".{path.name}.tmp")
        temp.write_text(dumps(document, indent=2) + "\n", encoding="utf-8")
        temp.replace(path)  # not synced to the disk: what a power loss takes of this, the run folders know


def is_done(folder: Path) -> bool:
    """Whether a run folder holds a finished run."""
    return (folder / "DONE").is_file()


def ended(state: State, code: int, last_words: str) -> State:
    """The state after the job ended with that code; the reason is its run folder's, else its last words."""
    status = _WORDS.get(code, f"killed (exit {code})")
    # What was refused wrote nothing: a marker in its folder is of another run.
    marked = "" if code == ExitCode.REFUSED else _marked(Path(state.folder))
    reason = "" if code == ExitCode.FINISHED else (marked or last_words or "no reason was left")
    elapsed = None if state.started is None else round(max(0.0, time.time() - state.started), 3)  # the clock may jump
    return State(state.number, state.label, status, code, reason, state.folder, state.started, elapsed)


def last_words(text: str) -> str:
    """The error in the end of a log: its last line that is neither a hint nor the plea to report a bug."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("hint:", "This is a bug in mpt"))]
    return told[-1][:500] if told else ""


def progress(folder: Path) -> str:
    """`120 of 220 steps, loss 0.31` of a run that is going; empty before its first line."""
    try:
        total = loads((folder / "plan.json").read_bytes())["length"]["steps"]
        row = loads(_tail(folder / STEPS))
        loss = row["loss"]
        return f"{row['step']:,} of {total:,} steps, loss {'nan' if loss is None else f'{loss:.4g}'}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def result(folder: Path) -> str:
    """The final metrics of a finished run."""
    try:
        final = loads((folder / "summary.json").read_bytes())["final"]
        return ", ".join(f"{name} {value:.4g}" for name, value in final.items() if isinstance(value, (int, float)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def newest(root: Path) -> Path | None:
    """The sweep that was begun last below outputs/sweeps."""
    return max(_sweeps(root), key=lambda path: (path / SWEEP).stat().st_mtime, default=None)


def _sweeps(root: Path) -> Iterator[Path]:
    return (path.parent for path in root.glob(f"*/*/{SWEEP}"))


def _marked(folder: Path) -> str:
    """The reason in the marker of an ending."""
    for marker in MARKERS:
        try:
            return (folder / marker).read_text(encoding="utf-8", errors="replace").strip().splitlines()[0]
        except (OSError, IndexError):
            continue
    return ""


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 4096))
        return file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
