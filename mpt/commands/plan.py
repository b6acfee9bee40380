"""`mpt plan`: what a run would do and take, per module; trains nothing."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt.commands import _flags

if TYPE_CHECKING:
    from mpt.config.schema import RunConfig
    from mpt.predict.prediction import Prediction
    from mpt.report.section import Section

SUMMARY = "what would run, per module: format and why, predicted memory and time; trains nothing"
ORDER = 3
USAGE = """mpt plan [group=choice] [key=value] … [--price N] [--html FILE] [--json] [--config-dir DIR]

Takes what `mpt train` takes. device=h100 (mpt list gpus) plans for a GPU that is not here.
precision=fp32,bf16,fp8 sets several side by side. --price is what an hour of the device costs.
--html writes one page. --json prints one document to stdout."""

_SMALLER = (
    ("precision=bf16",),
    ("precision=bf16_split",),
    ("precision=bf16_true",),
    ("precision=bf16_split", "precision.moment=int8"),
    ("optimizer=sgd", "optimizer.momentum=0"),
)
"""What may make a model fit of which one sample does not: the first of them changes least."""


def run(args: list[str]) -> int:
    """Prints the plan and what is predicted of it."""
    known, words = _flags.parse("mpt plan", args, _add_flags)
    if known.help:
        print(USAGE)
        return 0
    from mpt.config.compose import refuse_hydra_words

    price = _price(known.price)
    several = _several(words)
    for one in several:
        refuse_hydra_words(one)
    made = [_predicted(_composed(one, known.config_dir)) for one in several]
    speed = _speed(words, known.config_dir, made)
    sections = list(_sections(made, speed, words, known.config_dir, price)) if known.html or not known.json else []
    if known.html:
        _write(sections, Path(known.html))
    if known.json:
        from mpt.commands._console import print_json

        print_json(_document(made, speed, price))
        return 0
    from mpt.commands._console import console
    from mpt.report.text import render

    console().print(render(sections))
    return 0


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


def _several(words: list[str]) -> list[list[str]]:
    """One command line for each of the precisions in `precision=a,b`."""
    at = next((i for i, word in enumerate(words) if word.startswith("precision=") and "," in word), None)
    if at is None:
        return [words]
    choices = words[at].partition("=")[2].split(",")
    return [[*words[:at], f"precision={choice}", *words[at + 1 :]] for choice in choices]


def _composed(words: list[str], config_dir: str | None) -> RunConfig:
    from mpt.config.check import require
    from mpt.config.compose import compose

    return require(compose(words, config_dir))


def _predicted(cfg: RunConfig) -> Prediction:
    from mpt.predict.prediction import predict
    from mpt.train.run import plan

    return predict(cfg, plan(cfg))


def _speed(words: list[str], config_dir: str | None, made: list[Prediction]) -> dict[str, Any]:
    """Seconds of the step in fp32 and TF32; reasons where no time is predicted."""
    from mpt.types import Unmeasured

    if all(isinstance(p.time, Unmeasured) for p in made):
        return dict.fromkeys(("fp32", "tf32"), Unmeasured("no time is predicted"))
    from mpt.predict.prediction import compared
    from mpt.train.run import plan

    cfg = _composed([*_others(words), "precision=fp32"], config_dir)
    return compared(cfg, plan(cfg), made)


def _others(words: list[str]) -> list[str]:
    """Without what is said of precision and scaling."""
    return [w for w in words if not w.lstrip("+~").startswith(("precision", "scaling"))]


def _sections(
    made: list[Prediction], speed: dict[str, Any], words: list[str], config_dir: str | None, price: float | None
) -> Iterator[Section]:
    from mpt.predict import sections

    if len(made) > 1:
        yield sections.side_by_side(made, speed, price)
        return
    one = made[0]
    yield sections.plan_section(one)
    yield sections.memory_section(one, _ways(one, words, config_dir))
    yield sections.time_section(one, speed, price)


def _ways(made: Prediction, words: list[str], config_dir: str | None) -> list[str]:
    """Words with which one sample would fit, tried one by one where it does not."""
    limit = made.limit_bytes
    if made.largest_batch != 0 or not isinstance(limit, int):
        return []
    from mpt.errors import MptError
    from mpt.predict.prediction import fits
    from mpt.train.run import plan
    from mpt.units import bytes_text

    found = []
    for way in _SMALLER:
        try:
            cfg = _composed([*words, *way], config_dir)
            peak = fits(cfg, plan(cfg), 1)
        except MptError:
            continue
        if peak <= limit:
            found.append(f"{' '.join(way)} ({bytes_text(peak)})")
    return found


def _document(made: list[Prediction], speed: dict[str, Any], price: float | None) -> dict[str, Any]:
    from mpt.predict.document import predicted

    plans = [{**p.plan.to_json(), "predicted": predicted(p, speed, price)} for p in made]
    return plans[0] if len(plans) == 1 else {"schema": "mpt.plans/1", "plans": plans}


def _write(sections: list[Section], path: Path) -> None:
    from mpt.report.files import write_reports
    from mpt.report.page import Page, Part, to_html

    page = Page("mpt plan: " + sections[0].title, tuple(Part(section) for section in sections), ())
    write_reports(path.parent, {path.name: to_html(page)})
