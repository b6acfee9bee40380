"""`mpt sweep`: every job in a fresh process, then the comparison."""

from __future__ import annotations

import sys

from mpt.commands import _flags
from mpt.errors import ConfigError, Problem

SUMMARY = "runs over comma lists, each in a fresh process, then the comparison"
ORDER = 2
USAGE = """mpt sweep [group=a,b] [key=x,y] ['key=range(0,5)'] … [flags]

Runs every combination (Hydra's grammar), each in a fresh process with its own folder and log under
outputs/sweeps/ (hydra.sweep.dir=… names one), then compares what finished: see `mpt compare --help`.
A job that fails or diverges is recorded with its reason and the others go on; exit code 4.

  --continue [DIR]     only what is missing or failed, of the sweep in DIR (default: the newest)
  --fail-fast          start no job after one that failed
  --in-process         all jobs in this process: for many small ones
  --config-dir DIR     your own YAML by group

hydra/launcher=joblib hydra.launcher.n_jobs=4 runs several at once, hydra/launcher=submitit_slurm sends
them to SLURM: pip install hydra-joblib-launcher (or hydra-submitit-launcher) 'hydra-core>=1.3.8,<1.4'.
A precision's runs share data order and initial weights with the other precisions' of the same seed."""


def run(args: list[str]) -> int:
    """Runs the sweep and shows the comparison; the sweep's exit code."""
    flags = _flags.read("mpt sweep", args)
    if flags.help:
        print(USAGE)
        return 0
    if flags.cfg or flags.info or flags.hydra_help:
        raise ConfigError(Problem("mpt sweep", "shows no configuration", "mpt train --cfg job, mpt train --info"))
    code, folder = start(flags, ["mpt", "sweep", *args])
    if code not in (130, 143):
        _compare(folder)
    if code:
        print(f"goes on with: mpt sweep --continue {folder}", file=sys.stderr)
    return code


def start(flags: _flags.Flags, argv: list[str]) -> tuple[int, str]:
    """The sweep that the flags ask for; its exit code and folder."""
    from mpt.commands._sweep.run import Request, sweep

    request = Request(
        tuple(flags.words), flags.config_dir, tuple(argv), in_process=flags.in_process, fail_fast=flags.fail_fast,
        going_on=flags.going_on,
    )  # fmt: skip
    code, folder = sweep(request)
    return code, str(folder)


def _compare(folder: str) -> None:
    """What can be said of the runs that are there; that nothing can is no failure of the sweep."""
    from mpt.errors import MptError
    from mpt.report.command import compared
    from mpt.report.compare.comparison import Options

    try:
        compared([folder], Options(), as_json=False)
    except MptError as error:
        print(f"no comparison: {error}", file=sys.stderr)
