"""One job of a sweep, in a fresh process of this interpreter or in this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import mpt
from mpt.commands._sweep.folder import RUNNING, State, SweepFolder, ended, is_done, last_words
from mpt.config.compose.sweep import Job
from mpt.errors import ExitCode, MptError

_START = "import sys; sys.path.append(sys.argv.pop(1)); from mpt.cli import entry; entry()"
"""The installed program, also from a checkout; its folder comes last, so that it hides nothing."""

_GRACE_S = 60.0
"""Longest wait for interrupted jobs to save."""


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
    owner: int = field(default_factory=os.getpid)
    """The process that the sweep was started in; a launcher's others leave a terminal's Ctrl-C to it."""

    def __call__(self, job: Job, folder: Path) -> None:
        """Runs the job unless it is done or an earlier one ended everything. Raises: Stopped."""
        sweep = SweepFolder(self.folder)
        if sweep.stopping or (self.going_on and is_done(folder)) or (self.fail_fast and self._failed(sweep)):
            return
        state = State(job.number, self.labels[job.number], RUNNING, folder=str(folder), started=time.time())
        sweep.put(state)
        if self.in_process:
            code, words = self._here(job, folder)
        else:
            code, words = self._fresh(job, state, sweep)
        stopped = code in (ExitCode.SIGINT, ExitCode.SIGTERM)
        done = stopped and is_done(folder)  # it finished all the same: the sweep stops, the job is done
        sweep.put(ended(state, ExitCode.FINISHED if done else code, words))
        if stopped:
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

    def _fresh(self, job: Job, state: State, sweep: SweepFolder) -> tuple[int, str]:
        words, log = [*job.words, f"run_dir={state.folder}"], sweep.log(job.number)
        if self.going_on and job.config.resume is None:
            words.append("resume=auto")
        place = [] if self.config_dir is None else ["--config-dir", self.config_dir]
        alone = os.getpid() == self.owner
        with log.open("ab") as file, child_of(["train", *place, *words], file.fileno()) as child:
            sweep.put(replace(state, pid=child.pid, host=socket.gethostname()))
            code = wait(child, alone=alone)
        return code, last_words(log.read_text(encoding="utf-8", errors="replace"))


def child_of(args: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """`mpt …` in a fresh process whose output goes to the descriptor.

    It has its own session: a terminal's Ctrl-C would else reach it twice, which means stop at once.
    """
    command = [sys.executable, "-P", "-c", _START, str(Path(mpt.__file__).parents[1]), *args]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def wait(child: subprocess.Popen[bytes], *, alone: bool) -> int:
    """The child's exit code; SIGTERM and (where this is the sweep's own process) SIGINT are passed on to it."""
    with _passing_on(child, alone) as got:
        code = child.wait()
    if got:  # even if it finished all the same: whoever asked wants the sweep to stop
        return int(ExitCode.SIGINT if got[0] == signal.SIGINT else ExitCode.SIGTERM)
    return code if code >= 0 else 128 - code


@contextmanager
def _passing_on(child: subprocess.Popen[bytes], alone: bool) -> Iterator[list[int]]:
    """Signals go to the child; those that came are listed. Threads can't do that, and need not."""
    got: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        got.append(number)
        if child.poll() is None:
            os.kill(child.pid, number)

    if threading.current_thread() is not threading.main_thread():
        yield got
        return
    handlers = {signal.SIGTERM: pass_on, signal.SIGINT: pass_on if alone else signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping_all(sweep: SweepFolder, labels: Sequence[str]) -> Iterator[None]:
    """SIGINT and SIGTERM go once to every job of a launcher's processes on this machine, which get time to save.

    Raises: Stopped once they have ended. Without it a launcher kills its processes, and they save nothing.
    """

    def stop(number: int, frame: object) -> None:
        sweep.stop(True)
        _signal_jobs(sweep, labels, number)
        raise Stopped(int(ExitCode.SIGINT if number == signal.SIGINT else ExitCode.SIGTERM))

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_jobs(sweep: SweepFolder, labels: Sequence[str], number: int) -> None:
    deadline = time.monotonic() + _GRACE_S
    going = [s for s in sweep.states(labels) if s.status == RUNNING and s.pid and s.host == socket.gethostname()]
    for state in going:
        with suppress(ProcessLookupError):
            os.kill(state.pid or 0, number)
    waited = {state.number for state in going}
    while time.monotonic() < deadline and any(s.number in waited and s.status == RUNNING for s in sweep.states(labels)):
        time.sleep(0.1)
