"""Writes a run folder; each file is whole at any moment, whatever kills the process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpt.errors import Problem, RecordError
from mpt.record.faults import faults
from mpt.record.folder import (
    CHECKPOINTS,
    EVALS,
    EVENTS,
    MARKERS,
    NUMERICS,
    SCHEMAS,
    STEPS,
    holds_run,
    replace_file,
    sync_folder,
)
from mpt.record.lines import Lines, header, history
from mpt.record.lock import claim
from mpt.record.steps import step_lines
from mpt.record.strict import dumps
from mpt.types import StepRow

CUT = {"steps": STEPS, "evals": EVALS, "numerics": NUMERICS}
"""What is cut to a checkpoint's place in it, by the key of a checkpoint's offset."""


class RunWriter:
    """The one writer of a run folder, new at `dir`; `RunWriter.reopen` goes on with an older one.

    Raises: RecordError when `dir` holds another run or can't be made; RunFault when the disk fails later.
    """

    def __init__(self, dir: Path) -> None:
        held = holds_run(dir)
        if held:
            hint = "choose another run_dir=… , or go on with resume=auto"
            if STEPS not in held and CHECKPOINTS in held:
                hint = f"it has no {STEPS}: choose another run_dir=… , and resume={dir} to go on from its checkpoints"
            raise RecordError(Problem(str(dir), f"holds another run ({', '.join(held)})", hint))
        with faults(dir, RecordError):
            dir.mkdir(parents=True, exist_ok=True)
        self._open(dir, fresh=True)

    @classmethod
    def reopen(cls, dir: Path, offset: Mapping[str, int] | None = None) -> RunWriter:
        """The writer of an older run's folder, cut to a checkpoint's offset (None: all stays); its marker is gone.

        Raises: RecordError when `dir` holds no run, one of another schema, or one that is being written; the
        marker then stays.
        """
        if not (dir / STEPS).is_file():
            raise RecordError(Problem(str(dir), f"holds no {STEPS}", "give the folder of a run, or start a new one"))
        writer = cls.__new__(cls)
        writer._open(dir, fresh=False)
        try:
            torn = {lines.path.name: cut for lines in writer._files.values() if (cut := lines.repair())}
            if offset is not None:
                writer.truncate(offset)
            writer._last_step = writer._recorded_step()
            writer._unmark()
        except BaseException:
            writer.close()
            raise
        if torn:
            writer.event("repaired", torn_bytes=torn)
        return writer

    def _open(self, dir: Path, *, fresh: bool) -> None:
        self.dir = dir
        self._files = {name: Lines(dir / name, header(schema), fresh=fresh) for name, schema in SCHEMAS.items()}
        self._last_step = 0
        try:
            claim(self._files[STEPS].fd, dir)
        except RecordError:
            self.close()
            raise

    @property
    def last_step(self) -> int:
        """The step of the last line of steps.jsonl; 0 before the first."""
        return self._last_step

    def steps(self, rows: Iterable[StepRow]) -> None:
        """Append one line for each row, in one write.

        Raises: RecordError, and nothing is written, when steps do not strictly increase.
        """
        data, last = step_lines(rows, self._last_step)
        self._files[STEPS].append(data)
        self._last_step = last

    def event(self, kind: str, /, **fields: Any) -> None:
        """Append what happened, with the time of day; events are never cut."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._line(EVENTS, {"kind": kind, "time": now, **fields})

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of one evaluation (`step`, `update` and the rest)."""
        self._line(EVALS, row)

    def numerics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append one line for each step whose tensors were looked at (`step` and the rest), in one write."""
        self._files[NUMERICS].append(b"".join(dumps(row).encode() + b"\n" for row in rows))

    def json(self, name: str, value: Any) -> None:
        """`<name>.json` holds the value as strict JSON, whole or not at all."""
        self.text(f"{name.removesuffix('.json')}.json", dumps(value, indent=2) + "\n")

    def text(self, name: str, content: str) -> None:
        """The file `name` (`config.yaml`, `source.txt`) holds the text, whole or not at all."""
        path = self.dir / name
        with faults(path):
            replace_file(path, content.encode("utf-8", "surrogateescape"))

    def offset(self) -> dict[str, int]:
        """Bytes of the files of CUT so far: a checkpoint's place in the record, once `sync` was called."""
        return {key: self._files[name].size for key, name in CUT.items()}

    def sync(self) -> None:
        """Every line so far of the files of CUT survives a power loss; may be called from another thread."""
        for name in CUT.values():
            self._files[name].sync()

    def truncate(self, offset: Mapping[str, int]) -> None:
        """Cut the files of CUT to a checkpoint's offset; `{}` cuts them all. Events stay.

        A file that is shorter than its offset stays as it is, and an event `record_gap` says so.
        Raises: RecordError when the offset lies in the middle of a line.
        """
        for key, name in CUT.items():
            want = offset.get(key, 0)
            if not self._files[name].cut(want):
                self.event("record_gap", file=name, bytes=self._files[name].size, wanted_bytes=want)
        self._last_step = self._recorded_step()

    def lacks(self, offset: Mapping[str, int]) -> list[str]:
        """A sentence for each file that is shorter than it was when a checkpoint's `offset` was taken."""
        short = {name: (self._files[name].size, offset.get(key, 0)) for key, name in CUT.items()}
        return [
            f"{name} has {size:,} of the {want:,} bytes that it had at the checkpoint: lines of earlier steps are lost"
            for name, (size, want) in short.items()
            if size < want
        ]

    def begin_with(self, history: Mapping[str, bytes]) -> None:
        """Start with the lines of an older run, as `past` gives them."""
        assert self._last_step == 0, "history goes before the first step"
        for name, lines in history.items():
            self._files[name].append(lines)
        self._last_step = self._recorded_step()

    def finish(self, marker: str, reason: str) -> None:
        """The run is over: everything is synced, then the marker with the reason is written, last."""
        assert marker in MARKERS, f"{marker} is none of {MARKERS}"
        for lines in self._files.values():
            lines.sync()
        self._unmark()
        self.text(marker, reason.rstrip("\n") + "\n")
        self.close()

    def close(self) -> None:
        """Let go of the files; the folder stays without a marker unless `finish` wrote one."""
        for lines in self._files.values():
            lines.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _line(self, name: str, row: Mapping[str, Any]) -> None:
        self._files[name].append(dumps(row).encode() + b"\n")

    def _unmark(self) -> None:
        with faults(self.dir):
            for marker in MARKERS:
                (self.dir / marker).unlink(missing_ok=True)
            sync_folder(self.dir)

    def _recorded_step(self) -> int:
        lines = self._files[STEPS]
        line = lines.last()
        if not line:
            return 0
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError) as error:
            what = f"the last line is no step: `{line[:60].decode(errors='replace')}`"
            raise RecordError(Problem(str(lines.path), what, "start in a new run_dir=…")) from error


def past(source: Path, offset: Mapping[str, int]) -> dict[str, bytes]:
    """By file, the lines of an older run up to `offset`, and all its events.

    Raises: RecordError when `source` is no run folder of this schema.
    """
    files = {**CUT, "events": EVENTS}
    if not (source / NUMERICS).exists():  # a run of before there were any
        del files["numerics"]
    return {name: history(source / name, SCHEMAS[name], offset.get(key)) for key, name in files.items()}
