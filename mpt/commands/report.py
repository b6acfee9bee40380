"""`mpt report`: what one run did, or a live page of runs that are going; reads files only."""

from __future__ import annotations

import argparse
from typing import NoReturn

from mpt.errors import ConfigError, Problem

SUMMARY = "what a run did: result, precision asked for and measured, speed, memory, skips"
ORDER = 5
USAGE = """mpt report RUN_DIR [--json] [--advise-scaling]
mpt report --watch RUN_OR_SWEEP_DIR … [--port N]

Shows the report and writes report.html and report.md into the run folder; needs no torch.

  --json            one document to stdout
  --advise-scaling  only what other loss scalings and formats would have done (of a run with numerics=light or full)
  --watch           serve the page on 127.0.0.1 while the runs go on, updating by itself; Ctrl-C stops
  --port N          the port of --watch (default: any free one)"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(Problem("mpt report", message, "`mpt report --help` shows the flags"))


def run(args: list[str]) -> int:
    """Prints or serves the report."""
    if "--help" in args or "-h" in args:
        print(USAGE)
        return 0
    parser = _Parser(prog="mpt report", add_help=False, allow_abbrev=False)
    parser.add_argument("folders", nargs="*", metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--advise-scaling", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--port", type=int)
    known = parser.parse_args(args)
    if known.port is not None and not 1 <= known.port <= 65535:
        raise ConfigError(Problem("--port", f"got {known.port}, want a number from 1 to 65535"))
    if known.watch and known.folders:
        from mpt.report.live import watch

        return watch(known.folders, known.port)
    if len(known.folders) != 1:
        raise ConfigError(Problem("mpt report", "wants the folder of one run", USAGE.splitlines()[0]))
    from mpt.report.command import advised, report

    if known.advise_scaling:
        return advised(known.folders[0], known.json)
    return report(known.folders[0], as_json=known.json)
