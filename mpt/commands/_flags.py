"""Flags of commands that compose a configuration; every other word is a `key=value`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from mpt.errors import ConfigError, Problem
from mpt.registry import closest

REFUSED = {
    "--config-name": "whole runs of your own: DIR/recipe/NAME.yaml, then --config-dir DIR recipe=NAME",
    "--config-path": "your own YAML: --config-dir DIR",
    "--experimental-rerun": "config.yaml in the run folder holds everything; run the same command again",
}


@dataclass(frozen=True)
class Flags:
    """A command line, read."""

    words: list[str]
    config_dir: str | None = None
    help: bool = False
    hydra_help: bool = False
    cfg: str | None = None
    resolve: bool = False
    package: str | None = None
    info: str | None = None
    multirun: bool = False
    json: bool = False
    going_on: bool = False
    fail_fast: bool = False
    in_process: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(Problem(f"{self.prog}", message, f"`{self.prog} --help` shows the flags"))


def read(prog: str, args: list[str], json: bool = False) -> Flags:
    """The flags of `mpt train` (Hydra's own) or, with `json`, those of a command that prints.

    Raises: ConfigError for a flag that there is not.
    """
    known, words = parse(prog, args, _add_json if json else _add_hydras)
    return Flags(words, **vars(known))


def refuse_idle(flags: Flags) -> None:
    """Raises: ConfigError for flags of `mpt train` that act only beside another one, which is not given."""
    views = bool(flags.cfg or flags.info or flags.hydra_help or flags.help)
    swept = "acts in a sweep: add -m (--multirun)"
    goes_on = "a run goes on with run_dir=… resume=auto; a sweep with `mpt sweep --continue DIR`"
    idle = {
        "--continue": (flags.going_on and not flags.multirun, goes_on),
        "--fail-fast": (flags.fail_fast and not flags.multirun, swept),
        "--in-process": (flags.in_process and not flags.multirun, swept),
        "--resolve": (flags.resolve and not views, "it goes with --cfg job, which shows the configuration"),
        "--package": (flags.package is not None and not views, "it goes with --cfg job, of which it shows one part"),
    }
    found = [Problem(flag, "does nothing here", hint) for flag, (given, hint) in idle.items() if given]
    if found:
        raise ConfigError(*found)


def parse(
    prog: str, args: list[str], add: Callable[[argparse.ArgumentParser], None]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags that `add` names, with `help`, and all other words.

    Raises: ConfigError for a flag that there is not, or one without its value.
    """
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    parser.add_argument("--help", "-h", action="store_true")
    add(parser)
    _refuse([word for word in args if _runs_on(word, parser)], parser)
    known, words = parser.parse_known_args(args)
    _refuse([word for word in words if word.startswith("-")], parser)
    return known, words


def _runs_on(word: str, parser: argparse.ArgumentParser) -> bool:
    """Whether argparse would take a word with one dash apart: `-precision=fp16` for `-p recision=fp16`."""
    if word.startswith("--") or not word.startswith("-"):
        return False
    action = parser._option_string_actions.get(word.split("=")[0])
    return len(word) > 2 and (action is None or ("=" in word and action.nargs == 0))


def _refuse(flags: list[str], parser: argparse.ArgumentParser) -> None:
    if flags:
        raise ConfigError(*(_unknown(word, parser) for word in flags))


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--json", action="store_true")


def _add_hydras(parser: argparse.ArgumentParser) -> None:
    """Hydra's flags, by Hydra's names."""
    parser.add_argument("--config-dir", "-cd")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--package", "-p")
    parser.add_argument("--multirun", "-m", action="store_true")
    views = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=views)
    _add_sweeps(parser)


def _add_sweeps(parser: argparse.ArgumentParser) -> None:
    """What a sweep has beyond Hydra's."""
    parser.add_argument("--continue", dest="going_on", action="store_true")
    parser.add_argument("--fail-fast", action="store_true")
    parser.add_argument("--in-process", action="store_true")


def _unknown(word: str, parser: argparse.ArgumentParser) -> Problem:
    flag, _, value = word.partition("=")
    if flag in REFUSED:
        return Problem(flag, "is not for mpt", REFUSED[flag])
    near = closest(flag, list(parser._option_string_actions), cutoff=0.7)
    if near:
        return Problem(flag, "no such flag", f"did you mean `{near[0]}`?")
    typed = f"{flag.lstrip('-').replace('-', '_')}={value or '…'}"
    return Problem(flag, "no such flag", f"settings are typed without dashes: {typed}")
