"""`mpt eval`: a checkpoint's metrics on the evaluation data."""

from __future__ import annotations

import argparse

from mpt.commands import _flags
from mpt.errors import ConfigError, Problem

SUMMARY = "evaluates a run's checkpoint"
ORDER = 4
USAGE = """mpt eval RUN_DIR [key=value] … [--checkpoint PATH]

Evaluates the newest valid checkpoint of the run, or the one that --checkpoint names, as the run's own
configuration says; key=value changes that, e.g. trainer.eval_precision=fp32 or device=cpu."""


def run(args: list[str]) -> int:
    """Prints the metrics."""
    known, words = _flags.parse("mpt eval", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    strays = [word for word in words[1:] if "=" not in word]
    if not words or strays:
        what = f"`{strays[0]}` is no key=value" if strays else "wants the folder of a run"
        raise ConfigError(Problem("mpt eval", what, USAGE.splitlines()[0]))
    from mpt.train.eval_run import evaluate

    return evaluate(words[0], words[1:], known.checkpoint)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint")
