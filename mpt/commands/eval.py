"""`mpt eval`: a checkpoint's metrics on the evaluation data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_type_hints

from mpt.commands import _flags
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem

SUMMARY = "evaluates a run's checkpoint"
ORDER = 4
USAGE = """mpt eval RUN_DIR|CHECKPOINT [key=value] … [--checkpoint PATH]

Evaluates the newest valid checkpoint of the run, or the one that is named, as the run's own configuration
says; key=value changes that, e.g. trainer.eval_precision=fp32 or device=cpu."""

CONFIG = "config.yaml"
_GROUPS = frozenset(name for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint))


def run(args: list[str]) -> int:
    """Prints the metrics."""
    known, words = _flags.parse("mpt eval", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    strays = [word for word in words[1:] if "=" not in word]
    if not words or strays:
        what = f"`{strays[0]}` is no key=value" if strays else "wants the folder of a run, or a checkpoint in it"
        raise ConfigError(Problem("mpt eval", what, USAGE.splitlines()[0]))
    problems = [problem for word in words[1:] for problem in _choices(word.partition("=")[0])]
    if problems:
        raise ConfigError(*problems)
    from mpt.train.eval_run import evaluate

    run_dir, checkpoint = _run_and_checkpoint(Path(words[0]), known.checkpoint)
    return evaluate(run_dir, words[1:], checkpoint)


def _choices(key: str) -> Iterator[Problem]:
    """What can't be chosen anew: the run was trained with it."""
    group, _, leaf = key.partition(".")
    if group not in _GROUPS or leaf not in ("", "name", "choice"):
        return
    if group == "precision":
        hint = "trainer.eval_precision=fp32 (or same)"
        yield Problem(key, "a run is evaluated in the precision that it was trained in, or in fp32", hint)
    else:
        yield Problem(key, f"a run is evaluated with the {group} that it was trained with", _key_of(group))


def _key_of(group: str) -> str:
    """A next move."""
    if group == "data":
        return "data.root=… evaluates on other files of that kind"
    return "leave it away; single keys can be changed, e.g. device=cpu"


def _run_and_checkpoint(given: Path, checkpoint: str | None) -> tuple[str, str | None]:
    """The folder of the run, and a checkpoint where one is named; of a checkpoint in its run folder, both."""
    run_dir = next((p for p in given.absolute().parents[:3] if (p / CONFIG).is_file()), None)
    if given.is_file() and run_dir is None:
        raise ConfigError(
            Problem(str(given), "is a file that lies in no run", "give a run folder, or a checkpoint in it")
        )
    if (given / CONFIG).is_file() or run_dir is None:
        return str(given), checkpoint
    if checkpoint is not None:
        what = f"`{given}` and --checkpoint={checkpoint} name two checkpoints"
        raise ConfigError(Problem("mpt eval", what, f"mpt eval {run_dir} --checkpoint {checkpoint}"))
    return str(run_dir), str(given)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint")
