"""`mpt bench`: measured speed and memory of precisions and settings, in turns; trains to no end."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from mpt.commands import _flags
from mpt.errors import ConfigError, Problem

if TYPE_CHECKING:
    from mpt.config.schema import RunConfig

SUMMARY = "measured step time, throughput, memory and MFU here, for each of a list of precisions or settings"
ORDER = 6
USAGE = """mpt bench [group=choice] [key=value] … [--against expert] [--repeats N] [--budget-s S] [--json]
          [--config-dir DIR]

Takes what `mpt train` takes; lists are compared: precision=fp32,bf16 trainer.compile=false,true 'seed=range(3)'.
They take turns, the order alternates, the first round is dropped; figures whose noise passes 10 % are void.
data.batch_size=auto tells the largest micro-batch that fits; the usual batch of an update is measured, cut to fit.
--against expert lets a hand-written loop over the same batches take turns too."""

_AUTO = "data.batch_size=auto"


def run(args: list[str]) -> int:
    """Measures and prints."""
    known, words = _flags.parse("mpt bench", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    for flag, given in (("--repeats", known.repeats), ("--budget-s", known.budget_s)):
        if not 0 < given < math.inf:
            raise ConfigError(Problem(flag, f"got {given}, want a number > 0"))
    wanted = _wanted(words, known.config_dir)
    from mpt.bench.measure import measure
    from mpt.bench.spread import Effort
    from mpt.bench.tell import document, section
    from mpt.plan.facts import probe

    facts = probe(wanted[0][1].device)
    effort = Effort(known.repeats, known.budget_s)
    results = measure(wanted, effort, against_expert=known.against == "expert", find_batch=_AUTO in words)
    from mpt.commands._console import console, print_json
    from mpt.report.text import render

    if known.json:
        print_json(document(results, asdict(facts)))
    else:
        console().print(render([section(results, facts.name)]))
    return 0


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", choices=["expert"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget-s", type=float, default=60.0)


def _wanted(words: list[str], config_dir: str | None) -> list[tuple[str, RunConfig]]:
    """Each combination, checked, before anything is built."""
    from mpt.config.check import check
    from mpt.config.compose.lists import combinations

    sizes = [word for word in words if word.startswith("data.batch_size=")]
    if _AUTO in sizes and len(sizes) > 1:
        raise ConfigError(Problem("data.batch_size", f"got {' and '.join(sizes)}", f"leave {_AUTO} or the number away"))
    lines = combinations([word for word in words if word != _AUTO], config_dir, check)
    return [(label, line.config) for label, line in zip(_apart([line.label for line in lines]), lines, strict=True)]


def _apart(labels: list[str]) -> list[str]:
    """One that stands there again is numbered: the same twice tells what the machine's noise is."""
    again = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} ({n + 1})" if n else label for label, n in zip(labels, again, strict=True)]
