"""`mpt train`: one run, or with --multirun a sweep; Hydra's own flags."""

from __future__ import annotations

import shlex
import sys

from mpt.commands import _flags
from mpt.errors import ExitCode

SUMMARY = "one run; with --multirun a sweep over comma lists"
ORDER = 1
USAGE = """mpt train [group=choice] [key=value] … [--cfg job] [--config-dir DIR] [--help]
mpt train --multirun … [--continue] [--fail-fast] [--in-process]"""


def run(args: list[str]) -> int:
    """Trains, or shows what the flags ask for."""
    flags = _flags.read("mpt train", args)
    _flags.refuse_idle(flags)
    if flags.help or flags.hydra_help or flags.cfg or flags.info:
        from mpt.config.compose.show import refuse_lists, show

        if flags.multirun:
            refuse_lists(flags.words)
        return show(flags.words, args, flags.config_dir, cfg=flags.cfg, package=flags.package, resolve=flags.resolve)
    argv = ["mpt", "train", *args]
    if flags.multirun:
        from mpt.commands.sweep import start

        code, folder = start(flags, argv)
        if code not in (ExitCode.SIGINT, ExitCode.SIGTERM):
            print(f"next: {shlex.join(['mpt', 'compare', folder])}", file=sys.stderr)
        return code
    from mpt.config.check import require
    from mpt.config.compose import compose, refuse_hydra_words

    refuse_hydra_words(flags.words)
    cfg = require(compose(flags.words, flags.config_dir))
    from mpt.train.run import train

    sys.stderr.flush()
    return train(cfg, argv)
