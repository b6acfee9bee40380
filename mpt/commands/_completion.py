"""Tab completion: Hydra's own, below a subcommand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from mpt.commands.list import KINDS
from mpt.config.catalog import recipes
from mpt.errors import ConfigError, Problem

CONFIGURED = ("train", "sweep", "plan")
"""Subcommands whose words are overrides."""

_ASKED = re.compile(r"(install|uninstall|query)=(bash|fish|zsh)")


def complete(args: list[str], commands: list[str]) -> int:
    """Installs, removes or answers a shell's completion (`-sc install=bash`, `-sc query=bash`)."""
    if len(args) != 1 or not _ASKED.fullmatch(args[0]):
        what = f"got `{' '.join(args)}`, want install=SHELL or uninstall=SHELL"
        raise ConfigError(Problem("--shell-completion", what, "SHELL is bash, fish or zsh"))
    line = os.environ.get("COMP_LINE", "")
    if args[0].startswith("query="):
        words, last = line.split(), "" if line.endswith(" ") else line.rpartition(" ")[2]
        if len(words) - bool(last) < 2:
            return _print(name for name in commands if name.startswith(last))
        if words[1] not in CONFIGURED:
            return _print(kind for kind in sorted(KINDS) if words[1] == "list" and kind.startswith(last))
        if last.startswith("recipe="):  # a nested group, which Hydra's completion does not look into
            return _print(choice for name in recipes() if (choice := f"recipe={name}").startswith(last))
        # Hydra takes off one word, the program's name, and completes what follows.
        os.environ["COMP_LINE"] = re.sub(r"^(\s*\S+)\s+\S+", r"\1", line)
    from mpt.config.compose.hydra_app import run_hydra

    run_hydra(["-sc", *args])
    return 0


def _print(names: Iterable[str]) -> int:
    print(" ".join(names))
    return 0
