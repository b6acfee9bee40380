"""One job of a sweep, in a fresh process of this interpreter or in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import mpt
from mpt.commands._sweep.folder import RUNNING, State, SweepFolder, ended, is_done, last_words
from mpt.config.compose.sweep import Job
from mpt.errors import ExitCode, MptError

_START = "import sys; sys.path.append(sys.argv.pop(1)); from mpt.cli import entry; entry()"
"""The installed program, also from a checkout; its folder comes last, so that it hides nothing."""

_STOPS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A job was interrupted: the sweep ends with it. Hydra lets this class pass."""


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of one sweep; plain data, so that launchers can send it to other processes."""

    folder: Path
    labels: tuple[str, ...]
    argv: tuple[str, ...]
    config_dir: str | None
    in_process: bool = False
    fail_fast: bool = False
    going_on: bool = False

    def __call__(self, job: Job, folder: Path) -> None:
        """Runs the job unless it is done or an earlier one ended everything. Raises: Stopped."""
        sweep = SweepFolder(self.folder)
        if (self.going_on and is_done(folder)) or (self.fail_fast and self._failed(sweep)):
            return
        state = State(job.number, self.labels[job.number], RUNNING, folder=str(folder), started=time.time())
        sweep.put(state)
        if self.in_process:
            code, words = self._here(job, folder)
        else:
            code, words = self._fresh(job, folder, sweep.log(job.number))
        sweep.put(ended(state, code, words))
        if code in (ExitCode.SIGINT, ExitCode.SIGTERM):
            raise Stopped(code)

    def _failed(self, sweep: SweepFolder) -> bool:
        """Whether a job of this sweep failed; of one that goes on, since it went on."""
        return any(state.failed for state in sweep.states(self.labels))

    def _here(self, job: Job, folder: Path) -> tuple[int, str]:
        from mpt.train.run import train

        print(f"\njob {job.number}: {self.labels[job.number]}", file=sys.stderr)
        resume = "auto" if self.going_on and job.config.resume is None else job.config.resume
        try:
            return train(replace(job.config, run_dir=str(folder), resume=resume), list(self.argv)), ""
        except MptError as error:
            print(error, file=sys.stderr)
            return int(error.exit_code), last_words(str(error))
        except KeyboardInterrupt:
            return int(ExitCode.SIGINT), "interrupted"
        except Exception as error:  # a bug in one job must not take the others' results away
            traceback.print_exc()
            return int(ExitCode.BUG), f"{type(error).__name__}: {error}"

    def _fresh(self, job: Job, folder: Path, log: Path) -> tuple[int, str]:
        words = [*job.words, f"run_dir={folder}"]
        if self.going_on and job.config.resume is None:
            words.append("resume=auto")
        place = [] if self.config_dir is None else ["--config-dir", self.config_dir]
        with log.open("ab") as file:
            code = run_child(["train", *place, *words], file.fileno())
        return code, last_words(log.read_text(encoding="utf-8", errors="replace"))


def run_child(args: Sequence[str], output: int) -> int:
    """The exit code of `mpt …` in a fresh process whose output goes to the descriptor; signals are passed on to it.

    The child has its own session: a terminal's Ctrl-C would else reach it twice, which means stop at once.
    """
    command = [sys.executable, "-P", "-c", _START, str(Path(mpt.__file__).parents[1]), *args]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    with _passing_on(child) as got:
        code = child.wait()
    if got:  # even if it finished all the same: whoever asked wants the sweep to stop
        return int(ExitCode.SIGINT if got[0] == signal.SIGINT else ExitCode.SIGTERM)
    return code if code >= 0 else 128 - code


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """SIGINT and SIGTERM go to the child; those that came are listed. Threads can't do that, and need not."""
    got: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        got.append(number)
        if child.poll() is None:
            os.kill(child.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield got
        return
    before = {number: signal.signal(number, pass_on) for number in _STOPS}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
