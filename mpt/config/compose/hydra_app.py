"""Hydra's own application on conf/: its help, its views, its completion, its sweeper and launcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hydra

from mpt.config.catalog import recipes
from mpt.config.compose import words
from mpt.config.compose.session import store_recipe
from mpt.config.paths import conf_dir

Task = Callable[[Any], None]


def run_hydra(args: list[str], task: Task | None = None) -> None:
    """Hydra's main with `args` for its command line; `task` runs once for each job.

    Raises: SystemExit with a code other than 0 where Hydra gives up.
    """
    for name in recipes():
        store_recipe(name)
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    with _argv(["mpt", *args]):
        try:
            main(task or _no_task)()
        except SystemExit as end:
            if end.code:  # Hydra's help ends the program with 0, which is for the caller to do
                raise


def requoted(args: list[str], multirun: bool) -> list[str]:
    """The arguments with text values quoted for Hydra's grammar; flags as they are."""
    return [arg if arg.startswith("-") else _requote(arg, multirun) for arg in args]


def _requote(arg: str, multirun: bool) -> str:
    word = words.split(arg)
    return words.quote_word(word, word.key in words.text_keys(), multirun)


def _no_task(cfg: Any) -> None:
    raise AssertionError("Hydra was asked to show something, not to run")


@contextmanager
def _argv(argv: list[str]) -> Iterator[None]:
    # hydra.main reads sys.argv, and completion scripts name the program by sys.argv[0].
    before, sys.argv = sys.argv, argv
    try:
        yield
    finally:
        sys.argv = before
