"""`mpt plan`: what a run would do and take, per module; trains nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt.commands import _flags
from mpt.commands._fitting import ways
from mpt.errors import ExitCode

if TYPE_CHECKING:
    from mpt.config.compose.lists import Line
    from mpt.config.schema import RunConfig
    from mpt.predict.against import Against
    from mpt.predict.prediction import Prediction
    from mpt.predict.together import OneOf
    from mpt.report.section import Section

SUMMARY = "what would run, per module: format and why, predicted memory and time; trains nothing"
ORDER = 3
USAGE = """mpt plan [group=choice] [key=value] … [--price N] [--html FILE] [--json] [--config-dir DIR]

Takes what `mpt train` takes. device=h100 (mpt list gpus) plans for a GPU that is not here.
Lists stand side by side, in Hydra's grammar: precision=fp32,bf16 device=h100,a100 'data.batch_size=range(8,72,8)'.
--price is what an hour of the device costs, in any currency: costs are told in the same.
--html writes one page. --json prints one document to stdout."""


def run(args: list[str]) -> int:
    """Prints the plan and what is predicted of it."""
    known, words = _flags.parse("mpt plan", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    price = _price(known.price)
    page = None if known.html is None else _place(known.html)
    lines = _lines(words, known.config_dir)
    several = list(_predicted(lines, known.config_dir))
    sections = list(_sections(several, lines, known.config_dir, price)) if page or not known.json else []
    code = ExitCode.FINISHED if page is None or _write(sections, page) else ExitCode.FAULT
    if known.json:
        from mpt.commands._console import print_json

        print_json(_document(several, lines, price))
        return code
    from mpt.commands._console import console
    from mpt.report.text import render

    console().print(render(sections))
    return code


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--html")
    parser.add_argument("--price")


def _price(text: str | None) -> float | None:
    """Of an hour. Raises: ConfigError for what is no price."""
    if text is None:
        return None
    from mpt.errors import ConfigError, Problem

    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise ConfigError(Problem("--price", f"got `{text}`, want a number ≥ 0", "what an hour of the device costs"))
    return price


def _place(text: str) -> Path:
    """Raises: ConfigError where no page can be written to."""
    from mpt.report.files import require_writable

    require_writable("--html", Path(text), folder=False)
    return Path(text)


def _lines(words: list[str], config_dir: str | None) -> list[Line]:
    from mpt.config.check import check_plan
    from mpt.config.compose.lists import combinations

    return combinations(words, config_dir, check_plan)


def _composed(words: Sequence[str], config_dir: str | None) -> RunConfig:
    from mpt.config.check import check_plan
    from mpt.config.compose.lists import combinations

    return combinations(list(words), config_dir, check_plan)[0].config


def _predicted(lines: list[Line], config_dir: str | None) -> Iterator[OneOf]:
    """Each line's prediction, beside that of the same words in float32, which those that share them share."""
    from mpt.predict.together import OneOf

    made = [_named(line, len(lines) > 1) for line in lines]
    against: dict[tuple[str, ...], Against] = {}
    for line, one in zip(lines, made, strict=True):
        others = _others(line.words)
        if others not in against:
            peers = [p for peer, p in zip(lines, made, strict=True) if _others(peer.words) == others]
            against[others] = _against(others, config_dir, peers, len(lines) == 1)
        yield OneOf(line.listed, one, against[others])


def _named(line: Line, among_others: bool) -> Prediction:
    """Raises: MptError that names the line where there are others."""
    from mpt.build import make_plan
    from mpt.errors import MptError
    from mpt.predict.prediction import predict

    try:
        return predict(line.config, make_plan(line.config))
    except MptError as error:
        if not among_others:
            raise
        raise type(error)(*(replace(p, what=f"{p.what} (with {line.label})") for p in error.problems)) from error


def _against(others: tuple[str, ...], config_dir: str | None, made: list[Prediction], alone: bool) -> Against:
    """Reasons where no time is predicted; a plan `alone` shows nothing but time against another."""
    from mpt.build import make_plan
    from mpt.predict.against import compared, nothing_against
    from mpt.types import Unmeasured

    if alone and all(isinstance(p.time, Unmeasured) for p in made):
        return nothing_against("no time is predicted")
    cfg = _composed([*others, "precision=fp32"], config_dir)
    return compared(cfg, make_plan(cfg), made)


def _others(words: Sequence[str]) -> tuple[str, ...]:
    """Without what is said of precision and scaling."""
    return tuple(w for w in words if not w.lstrip("+~").startswith(("precision", "scaling")))


def _sections(
    several: list[OneOf], lines: list[Line], config_dir: str | None, price: float | None
) -> Iterator[Section]:
    from mpt.config.saved import merged
    from mpt.predict import sections
    from mpt.predict.configuration import configuration_section

    yield configuration_section([merged(line.config) for line in lines])
    if len(several) > 1:
        from mpt.predict.together import side_by_side

        yield side_by_side(several, price)
        return
    one = several[0]
    yield sections.plan_section(one.made)
    yield sections.memory_section(one.made, ways(one.made, lambda way: _composed([*lines[0].words, *way], config_dir)))
    yield sections.time_section(one.made, one.against.seconds, price)


def _document(several: list[OneOf], lines: list[Line], price: float | None) -> dict[str, Any]:
    from mpt.config.saved import merged
    from mpt.predict.document import predicted

    plans = [
        {
            **one.made.plan.to_json(),
            "config": merged(line.config),
            "predicted": predicted(one.made, one.against.seconds, price),
        }
        for one, line in zip(several, lines, strict=True)
    ]
    if len(plans) == 1:
        return plans[0]
    asked = [{"asked": dict(one.listed), **plan} for one, plan in zip(several, plans, strict=True)]
    return {"schema": "mpt.plans/1", "plans": asked}


def _write(sections: list[Section], path: Path) -> bool:
    """Whether it was written; why not is told."""
    from mpt.report.files import write_reports
    from mpt.report.page import Page, Part, to_html

    page = Page("mpt plan: " + sections[1].title, tuple(Part(section) for section in sections), ())
    return bool(write_reports(path.parent, {path.name: to_html(page)}))
