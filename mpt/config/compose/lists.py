"""Command lines with lists, as plans and benches take them: one configuration for each combination, all checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from mpt.config.compose import words
from mpt.config.compose._run import compose
from mpt.config.compose.hydra_app import requoted
from mpt.config.compose.session import shared_session
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem

MOST = 64
"""Combinations in one table: more is a sweep's work, or a script's."""


@dataclass(frozen=True)
class Line:
    """One combination: its words, and of those the ones that a list gave, by key."""

    words: tuple[str, ...]
    listed: dict[str, str]
    config: RunConfig

    @property
    def label(self) -> str:
        """What sets it apart, as it is typed."""
        return _label(self.listed) or "as asked"


def combinations(typed: list[str], config_dir: str | None, check: Callable[[RunConfig], list[Problem]]) -> list[Line]:
    """Every combination of the lists in `typed` (Hydra's grammar), the last list fastest.

    Raises: ConfigError with the problems of all of them, each once; for more than MOST before any is composed.
    """
    words.refuse_torn(typed)
    words.refuse_hydra_words(typed)
    with shared_session(config_dir) as hydra:
        parser = OverridesParser.create(hydra.loader)
        typed = _last(typed, _lists(typed, parser))
        overrides = _lists(typed, parser)
        if not overrides:
            config = compose(typed, config_dir)
            _refuse([(check(config), "")])
            return [Line(tuple(typed), {}, config)]
        _refuse_many(overrides)
        rows = _multiplied(typed, overrides)
        made = [_composed(row, config_dir, check) for row in rows]
    keys = [override.get_key_element() for override in overrides.values()]
    lists = [{key: _plain(row[i]) for key, i in zip(keys, overrides, strict=True)} for row in rows]
    found = [Line(row, listed, config) for row, listed, (config, _) in zip(rows, lists, made, strict=True) if config]
    _refuse([(problems, _label(listed)) for listed, (_, problems) in zip(lists, made, strict=True)])
    return found


def _label(listed: dict[str, str]) -> str:
    return " ".join(f"{key}={text}" for key, text in listed.items())


def _lists(typed: list[str], parser: OverridesParser) -> dict[int, Override]:
    """The words that are lists, by their place; what can't be read is told where it is composed."""
    parsed = {
        i: words.parse(line, words.split(raw), parser)
        for i, (raw, line) in enumerate(zip(typed, requoted(typed, multirun=True), strict=True))
        if words.misshapen(words.split(raw), lambda _: None) is None
    }
    return {i: found for i, found in parsed.items() if isinstance(found, Override) and found.is_sweep_override()}


def _last(typed: list[str], overrides: dict[int, Override]) -> list[str]:
    """Without lists whose key is said again: the last word of a key counts."""
    keys = [words.split(raw).key for raw in typed]
    return [raw for i, raw in enumerate(typed) if i not in overrides or keys[i] not in keys[i + 1 :]]


def _refuse_many(overrides: dict[int, Override]) -> None:
    """Ranges are counted no further than it takes."""
    count = math.prod(_length(override, MOST + 1) for override in overrides.values())
    if count > MOST:
        lists = ", ".join(override.get_key_element() for override in overrides.values())
        what = f"more than {MOST} combinations" if len(overrides) == 1 else f"{count:,} combinations or more"
        raise ConfigError(Problem(lists, f"got {what}, want at most {MOST}", "make the lists shorter"))


def _length(override: Override, most: int) -> int:
    try:
        return sum(1 for _ in islice(override.sweep_string_iterator(), most))
    except HydraException:  # interval(0,1): a sampler's, no list
        what = f"`{override.get_value_string()}` is no list"
        raise ConfigError(Problem(override.get_key_element(), what, "a list is key=a,b or 'key=range(0,5)'")) from None


def _multiplied(typed: list[str], overrides: dict[int, Override]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [()]
    for i, raw in enumerate(typed):
        choices = [raw]
        if i in overrides:
            key = overrides[i].get_key_element()
            choices = [f"{key}={value}" for value in overrides[i].sweep_string_iterator()]
        rows = [(*row, choice) for row in rows for choice in choices]
    return rows


def _composed(
    row: tuple[str, ...], config_dir: str | None, check: Callable[[RunConfig], list[Problem]]
) -> tuple[RunConfig | None, list[Problem]]:
    try:
        config = compose(list(row), config_dir)
    except ConfigError as error:
        return None, list(error.problems)
    return config, check(config)


def _plain(word: str) -> str:
    """The value without quotes, as YAML has it: Hydra lists Python's True."""
    text = words.split(word).text or ""
    text = text.lower() if text in ("True", "False") else text
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _refuse(found: list[tuple[list[Problem], str]]) -> None:
    """Raises: ConfigError with each problem once, and the combination where only some have it."""
    where: dict[Problem, list[str]] = {}
    for problems, label in found:
        for problem in problems:
            where.setdefault(problem, []).append(label)
    if where:
        raise ConfigError(
            *(
                problem if len(labels) == len(found) else replace(problem, what=f"{problem.what} (with {labels[0]})")
                for problem, labels in where.items()
            )
        )
