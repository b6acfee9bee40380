"""`mpt eval`: a checkpoint's metrics on the evaluation data."""

from __future__ import annotations

import argparse

from mpt.errors import ConfigError, Problem

SUMMARY = "evaluates a run's checkpoint"
ORDER = 4
USAGE = """mpt eval RUN_DIR [key=value] … [--checkpoint PATH]

Evaluates the newest valid checkpoint of the run, or the one that --checkpoint names, as the run's own
configuration says; key=value changes that, e.g. trainer.eval_precision=fp32 or device=cpu."""


def run(args: list[str]) -> int:
    """Prints the metrics."""
    parser = argparse.ArgumentParser(prog="mpt eval", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--checkpoint")
    known, words = parser.parse_known_args(args)
    if known.help:
        print(USAGE)
        return 0
    strays = [word for word in words[1:] if "=" not in word]
    if not words or words[0].startswith("-") or strays:
        what = f"`{strays[0]}` is no key=value" if strays else "wants the folder of a run"
        raise ConfigError(Problem("mpt eval", what, USAGE.splitlines()[0]))
    from mpt.train.eval_run import evaluate

    return evaluate(words[0], words[1:], known.checkpoint)
