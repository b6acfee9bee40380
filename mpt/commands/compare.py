"""`mpt compare`: several runs side by side, with a verdict; reads files only."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

from mpt.errors import ConfigError, Problem

SUMMARY = "which precision to take: runs side by side, with a verdict against the baseline"
ORDER = 6
USAGE = """mpt compare RUN_OR_SWEEP_DIR … [flags]

Shows a table, writes compare.html, compare.md and compare.json (into the folder given, or here); needs no torch.

  --baseline NAME      what the others are held to (default: fp32)
  --metric NAME        accuracy, perplexity, eval_loss, train_loss (default: the first of these that all have)
  --at final|best      which evaluation counts (default: final)
  --margin X or X%     the largest difference that does not matter, in the metric's unit or of the baseline
                       (default: 0.005 of accuracy, 1% of others)
  --axis KEY[,KEY]     what is compared (default: precision and scaling where they differ)
  --force              conclude although runs differ in batch, data, seeds, device or TF32
  --price X            price of an hour of this machine, for the cost of each run
  --against FILE       hold each configuration to itself in a compare.json that was kept
  --fail-if WORDS      exit 4 when a verdict is one of them (worse,inconclusive,…), or is refused
  --out DIR            where the files go
  --json               compare.json to stdout, no table"""

WORDS = ("equivalent", "worse", "better", "inconclusive", "refused")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(Problem("mpt compare", message, "`mpt compare --help` shows the flags"))


def run(args: list[str]) -> int:
    """Prints the comparison."""
    if "--help" in args or "-h" in args:
        print(USAGE)
        return 0
    known = _parser().parse_args(args)
    fail_if = _words(known.fail_if)
    from mpt.report.command import compared
    from mpt.report.compare.comparison import Options

    options = Options(
        baseline=known.baseline,
        axis=tuple(filter(None, known.axis.split(","))),
        metric=known.metric,
        at=known.at,
        margin=_margin(known.margin),
        force=known.force,
        price_per_h=_price(known.price),
    )
    return compared(
        known.folders, options, as_json=known.json, out=known.out, against=known.against, fail_if=fail_if
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mpt compare", add_help=False, allow_abbrev=False)
    parser.add_argument("folders", nargs="+", metavar="RUN_OR_SWEEP_DIR")
    for flag in ("--baseline", "--metric", "--margin", "--price", "--against", "--out", "--fail-if"):
        parser.add_argument(flag)
    parser.add_argument("--axis", default="")
    parser.add_argument("--at", choices=("final", "best"), default="final")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser


def _words(text: str | None) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    wrong = [word for word in words if word not in WORDS]
    if wrong:
        raise ConfigError(Problem("--fail-if", f"got `{wrong[0]}`, want some of {', '.join(WORDS)}"))
    return words


def _margin(text: str | None) -> tuple[float, bool] | None:
    if text is None:
        return None
    relative = text.endswith("%")
    value = _number("--margin", text.removesuffix("%"))
    if value <= 0:
        raise ConfigError(Problem("--margin", f"got {text}, want a number > 0", "e.g. 0.005, or 1%"))
    return (value / 100 if relative else value, relative)


def _price(text: str | None) -> float | None:
    if text is None:
        return None
    value = _number("--price", text)
    if value < 0:
        raise ConfigError(Problem("--price", f"got {text}, want a number ≥ 0"))
    return value


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(Problem(flag, f"got `{text}`, want a number"))
    return value
