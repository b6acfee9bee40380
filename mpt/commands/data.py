"""`mpt data check`: reads every sample of a data set and lists what is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpt.commands import _flags
from mpt.errors import ConfigError, DataError, ExitCode, Problem, printable

if TYPE_CHECKING:
    from mpt.config.schema import DataConfig
    from mpt.data._context import DataSource, Look

SUMMARY = "`data check` decodes every sample and lists what is wrong"
ORDER = 6
USAGE = """mpt data check [data=…] [data.key=value] … [--json] [--config-dir DIR]

Reads both parts in full, on all CPUs (data.workers=N on N). Exit code 0: every sample can be trained on;
5: some can't, each is named; 2: there are no such data. --json lists every one of them."""
SHOWN = 20
"""Samples named in the terminal; --json has all."""
SCHEMA = "mpt.data-check/1"


@dataclass
class Report:
    """What was found: samples that can't be used, how many are odd in which way, notes on the whole."""

    samples: Counter[str] = field(default_factory=Counter)
    wrong: list[Look] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, look: Look) -> None:
        """Take one sample into account."""
        self.samples[look.part] += 1
        if look.wrong is not None:
            self.wrong.append(look)
        for how in look.odd:
            self.odd[how] += 1
            self.example.setdefault(how, look.name)


def run(args: list[str]) -> int:
    """Prints what was found; the exit code says whether anything is wrong."""
    flags = _flags.read("mpt data", args, json=True)
    if flags.help:
        print(USAGE)
        return 0
    if not flags.words or flags.words[0] != "check":
        got = f"got `{flags.words[0]}`" if flags.words else "wants a verb"
        raise ConfigError(Problem("mpt data", got, "mpt data check data=…"))
    from mpt.config.compose import compose, refuse_hydra_words

    words = flags.words[1:]
    refuse_hydra_words(words)
    cfg = compose(words, flags.config_dir).data
    report = examined(cfg)
    if flags.json:
        from mpt.commands._console import print_json

        print_json(document(cfg.name, report))
    else:
        for line in lines(cfg.name, report):
            print(printable(line))
    return ExitCode.FAULT if report.wrong else ExitCode.FINISHED


def examined(cfg: DataConfig) -> Report:
    """Every sample of both parts, looked at. Raises: DataError where the data can't be opened."""
    from mpt import registry
    from mpt.config.data import data_problems, idle_places

    problems = data_problems(cfg)
    if problems:
        raise DataError(*problems)
    module = registry.load("data", cfg.name)
    cfg.workers = cfg.workers or os.cpu_count() or 1
    report = Report()
    source = opened(module, cfg)
    try:
        report.notes += [*idle_places(cfg), *source.notes]
        for look in source.examine():
            report.add(look)
        report.notes += batch_notes(cfg, source)
    finally:
        source.close()
    return report


def opened(module: Any, cfg: DataConfig) -> DataSource:
    """The data as they are, adapted to no model."""
    from mpt.data._context import DataContext
    from mpt.types import InputSpec

    source: DataSource = module.open_data(cfg, InputSpec(None), DataContext(seed=0, device="cpu"))
    return source


def batch_notes(cfg: DataConfig, source: DataSource) -> Iterator[str]:
    """What batches of data.batch_size do to these numbers of samples."""
    n, size = source.spec.n_train, cfg.batch_size
    if n < size:
        yield f"{n:,} training samples are fewer than data.batch_size={size}: a batch is all of them"
    elif n % size:
        yield f"{n % size:,} of {n:,} training samples are left out of each epoch, others each time (no short batch)"


def lines(name: str, report: Report) -> Iterator[str]:
    """For people."""
    yield from report.notes
    for how, count in report.odd.most_common():
        yield f"{count:,} {how}, e.g. {report.example[how]}"
    for look in report.wrong[:SHOWN]:
        yield f"{look.name}: {look.wrong}"
    if len(report.wrong) > SHOWN:
        yield f"… and {len(report.wrong) - SHOWN:,} more; --json lists all"
    read = " and ".join(f"{n:,} {_PARTS[part]}" for part, n in report.samples.items())
    if report.wrong:
        yield f"{name}: {len(report.wrong):,} of {read} samples can't be used; remove them, or data.on_error=skip"
    else:
        yield f"{name}: {read} samples were read in full, nothing is wrong"


_PARTS = {"train": "training", "eval": "evaluation"}


def document(name: str, report: Report) -> dict[str, Any]:
    """For programs; names that are no text are escaped."""
    return {
        "schema": SCHEMA,
        "data": name,
        "samples": dict(report.samples),
        "wrong": [
            {"part": look.part, "name": _text(look.name), "why": _text(look.wrong or "")} for look in report.wrong
        ],
        "odd": [
            {"what": how, "count": n, "example": _text(report.example[how])} for how, n in report.odd.most_common()
        ],
        "notes": list(map(_text, report.notes)),
    }


def _text(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")
