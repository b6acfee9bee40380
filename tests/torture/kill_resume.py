"""Kills runs at random moments and resumes them: `python -m tests.torture.kill_resume --seed 1 --kills 200`.

Each precision in turn: one run goes on unbroken; another, of the same configuration, is killed (SIGKILL, now and then
SIGTERM) after random times and started again by the same words, until it is done. Then both records, evaluations and
last states must be equal, bit for bit. After every kill: no process is left over, and the newest valid checkpoint is
not older than before. Runs are forked from one process that has imported everything, so that a kill costs a second.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from mpt.checkpoint import CheckpointStore, load
from mpt.config.catalog import choices
from mpt.config.check import require
from mpt.config.compose import compose
from mpt.train.run import train
from tests.e2e.test_resume import assert_equal_runs

STREAMED = """
import torch
from torch.utils.data import Dataset

class Noise(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return torch.randn(1, 8, 8) + i % 10, i % 10

def make():
    return {"train": Noise(200), "eval": Noise(60), "classes": 10}
"""
"""Samples that draw random numbers in worker processes."""

BASE = (
    *("device=cpu", "model.width=8", "model.dropout=0.2", "trainer.max_steps=40", "trainer.log_every=7"),
    *("trainer.eval_every=10", "schedule=cosine", "schedule.warmup=5"),
)


def words(precision: str, draw: random.Random, folder: Path) -> list[str]:
    """A configuration of that precision; what a resume has to carry on differs from one to the next."""
    chosen = [
        draw.choice(["data.limit=200", "data.limit=200", f"data=custom data.path={folder}/noise.py:make"]),
        f"data.batch_size={draw.choice([16, 20, 24])}",
        f"trainer.accumulate={draw.choice([1, 2, 3])}",
        f"checkpoint.every={draw.choice([1, 3, 5, 'null'])}",
        f"checkpoint.keep={draw.choice([1, 2, 3])}",
        f"checkpoint.background={draw.choice(['true', 'true', 'false'])}",
        draw.choice(["trainer.ema_decay=0.95", "trainer.clip_norm=1.0", "optimizer=sgd optimizer.momentum=0.9"]),
        f"seed={draw.randrange(1000)}",
    ]
    if chosen[0].startswith("data=custom"):
        chosen.append(f"data.workers={draw.choice([0, 2])}")
    cfg = compose(["precision=" + precision])
    if cfg.precision.scaling == "dynamic":  # starts too high, so that skipped steps lie on both sides of kills
        chosen += ["scaling.init_scale=16777216", "scaling.growth_interval=9"]
    return ["precision=" + precision, *BASE, *" ".join(chosen).split()]


def start(asked: list[str], run_dir: Path) -> int:
    """The pid of a process of its own group that trains, as `mpt train … resume=auto` does."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    with open(run_dir.parent / f"{run_dir.name}.log", "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        code = train(require(compose([*asked, f"run_dir={run_dir}", "resume=auto"])), ["mpt", "train", *asked])
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def ended(pid: int, within_s: float) -> int | None:
    """The process's exit code (negative: its signal), or None where it still runs after that time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def no_orphans(group: int) -> None:
    """Worker processes notice that their parent is gone."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process group {group} still lives 20 s after its leader was killed")


def newest(run_dir: Path) -> int:
    """The step of the newest valid checkpoint; -1 without one. None may have been rejected."""
    path, rejected = CheckpointStore(run_dir / "checkpoints", keep=1).newest_valid()
    assert not rejected, f"damaged by a kill: {rejected}"
    return -1 if path is None else int(load(path)["history"]["step"])


def broken_run(asked: list[str], run_dir: Path, whole_s: float, draw: random.Random, tally: Counter[str]) -> None:
    """Kills until a try gets through; each is given a random time of up to a little more than the unbroken run took."""
    saved = -1
    while True:
        pid = start(asked, run_dir)
        code = ended(pid, draw.uniform(0.0, 1.1) * whole_s)
        if code is None:
            how = draw.choice([signal.SIGKILL] * 4 + [signal.SIGTERM])
            os.kill(pid, how)
            code = ended(pid, 60)
            tally[how.name] += 1
            right = (-signal.SIGKILL, 0) if how is signal.SIGKILL else (143, 0, -signal.SIGTERM)
            assert code in right, f"{how.name} ended the run with {code}"
        no_orphans(pid)
        now = newest(run_dir)
        assert now >= saved, f"the newest checkpoint was after step {saved}, is after step {now}"
        saved = now
        if code == 0:
            return


def round_of(precision: str, draw: random.Random, folder: Path, tally: Counter[str]) -> None:
    """One unbroken run, one that is killed, and their comparison."""
    asked = words(precision, draw, folder)
    whole, broken = folder / "whole", folder / "broken"
    since_s = time.monotonic()
    code = ended(start(asked, whole), 300)
    whole_s = time.monotonic() - since_s
    assert code == 0, f"the unbroken run of {asked} ended with {code}: {(folder / 'whole.log').read_text()[-2000:]}"
    before = sum(tally.values())
    try:
        broken_run(asked, broken, whole_s, draw, tally)
        assert_equal_runs(broken, whole)
    except AssertionError:
        print(f"FAILED: {' '.join(asked)}\n{(folder / 'broken.log').read_text()[-3000:]}", file=sys.stderr, flush=True)
        raise
    kills = sum(tally.values()) - before
    print(
        f"{precision}: {kills} kills, equal ({whole_s:.1f} s unbroken; {' '.join(asked[len(BASE) + 1 :])})", flush=True
    )
    for run in (whole, broken):
        shutil.rmtree(run)
        (folder / f"{run.name}.log").unlink()


def torture(seed: int, kills: int, precisions: list[str]) -> Counter[str]:
    """At least that many kills over the precisions in turn; by signal, how many there were."""
    torch.set_num_threads(1)  # a process that has started torch's threads can't fork one that trains
    draw, tally = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "noise.py").write_text(STREAMED)
        while sum(tally.values()) < kills:
            for precision in precisions:
                round_of(precision, draw, Path(folder), tally)
    return tally


def main(args: list[str] | None = None) -> int:
    """Runs the torture and tells the tally."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--precisions", help="comma list; default: every one that there is")
    asked = parser.parse_args(args)
    known: list[Any] = list(choices("precision", None))
    tally = torture(asked.seed, asked.kills, asked.precisions.split(",") if asked.precisions else known)
    told = ", ".join(f"{count} by {name}" for name, count in sorted(tally.items()))
    print(f"seed {asked.seed}: {sum(tally.values())} kills ({told}), every resumed run equal to the unbroken one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
