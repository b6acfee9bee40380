"""Tab completion: Hydra's own, below a subcommand."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mpt.commands.list import KINDS

CONFIGURED = ("train", "plan")
"""Subcommands whose words are overrides."""


def complete(args: list[str], commands: list[str]) -> int:
    """Installs, removes or answers a shell's completion (`-sc install=bash`, `-sc query=bash`)."""
    asked = args[0] if args else ""
    line = os.environ.get("COMP_LINE", "")
    if asked.startswith("query="):
        words = line.split()
        if len(words) < 2 or (len(words) == 2 and not line.endswith(" ")):
            return _print(name for name in commands if name.startswith(words[1] if len(words) == 2 else ""))
        if words[1] not in CONFIGURED:
            return _print(sorted(KINDS) if words[1] == "list" else [])
        # Hydra takes off one word, the program's name, and completes what follows.
        os.environ["COMP_LINE"] = line.replace(words[1], "", 1) if words[1] != words[0] else line
    from mpt.config.compose.hydra_app import run_hydra

    run_hydra(["-sc", *args])
    return 0


def _print(names: Iterable[str]) -> int:
    print(" ".join(names))
    return 0
