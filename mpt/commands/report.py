"""`mpt report`: what one run did; reads files only."""

from __future__ import annotations

from mpt.errors import ConfigError, Problem

SUMMARY = "what a run did: result, precision asked for and measured, speed, memory, skips"
ORDER = 5
USAGE = """mpt report RUN_DIR [--json]

Reads the run folder; needs no torch. --json prints one document to stdout."""


def run(args: list[str]) -> int:
    """Prints the report."""
    if "--help" in args or "-h" in args:
        print(USAGE)
        return 0
    folders = [word for word in args if word != "--json"]
    if len(folders) != 1 or folders[0].startswith("-"):
        raise ConfigError(Problem("mpt report", "wants the folder of one run", USAGE.splitlines()[0]))
    from mpt.report.command import report

    return report(folders[0], as_json="--json" in args)
