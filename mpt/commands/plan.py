"""`mpt plan`: what a run would do, per module; trains nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpt.commands import _flags

if TYPE_CHECKING:
    from mpt.plan.plan import Plan

SUMMARY = "what would run, per module: format, native or emulated, and why; trains nothing"
ORDER = 3
USAGE = """mpt plan [group=choice] [key=value] … [--json] [--config-dir DIR]

Takes what `mpt train` takes. --json prints one document to stdout."""


def run(args: list[str]) -> int:
    """Prints the plan."""
    flags = _flags.read("mpt plan", args, json=True)
    if flags.help:
        print(USAGE)
        return 0
    from mpt.config.check import require
    from mpt.config.compose import compose, refuse_hydra_words

    refuse_hydra_words(flags.words)
    cfg = require(compose(flags.words, flags.config_dir))
    from mpt.commands._console import print_json
    from mpt.train.run import plan

    made = plan(cfg)
    if flags.json:
        print_json(made.to_json())
    else:
        _print(made)
    return 0


def _print(plan: Plan) -> None:
    from mpt.commands._console import console, table

    out = console()
    for line in plan.lines():
        out.print(line, markup=False)
    shown = table("module", "type", "weights", "stored", "computes in", "how", "reason")
    for row in plan.rows:
        shown.add_row(row.name, row.type, f"{row.params:,}", row.param, row.compute, row.how, row.reason)
    out.print()
    out.print(shown)
