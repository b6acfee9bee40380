"""Names to modules: each kind is a folder, each entry a file, found without importing it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from difflib import SequenceMatcher, get_close_matches
from types import ModuleType
from typing import Any

from mpt.errors import ConfigError, Problem

_plugins: dict[tuple[str, str], Any] = {}


def did_you_mean(word: str, known: list[str] | tuple[str, ...]) -> str:
    """A hint that names the nearest of `known`, or lists them where none is near."""
    near = closest(word, known)
    if near:
        return "did you mean " + " or ".join(f"`{n}`" for n in near) + "?"
    return "one of " + ", ".join(sorted(known)) if known else ""


def closest(word: str, known: list[str] | tuple[str, ...], cutoff: float = 0.55) -> list[str]:
    """Up to three of `known` that a typist may have meant, the nearest first; case does not count."""
    by_lower = {k.lower(): k for k in known}
    found = get_close_matches(word.lower(), list(by_lower), n=3, cutoff=cutoff)
    score = {k: SequenceMatcher(None, k, word.lower()).ratio() for k in found}
    # One clear winner stands alone: what is much farther than the nearest only distracts.
    return [by_lower[k] for k in found if score[k] >= score[found[0]] - 0.1]


def names(kind: str) -> list[str]:
    """The entries of `mpt/<kind>/` (files that do not start with `_`) and of plugins, sorted."""
    package = importlib.import_module(f"mpt.{kind}")
    found = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
    return sorted(found | {name for k, name in _plugins if k == kind})


def load(kind: str, name: str) -> ModuleType | Any:
    """The module `mpt.<kind>.<name>`, or what a plugin registered under that name.

    Raises: ConfigError with the nearest names when there is none.
    """
    if (kind, name) in _plugins:
        return _plugins[kind, name]
    known = names(kind)
    if name not in known:
        raise ConfigError(Problem(f"{kind}.name", f"got `{name}`", did_you_mean(name, known)))
    return importlib.import_module(f"mpt.{kind}.{name}")


def register(kind: str, name: str) -> Callable[[Any], Any]:
    """A decorator for plugins: `@register("models", "mine")` on an object with the kind's functions."""

    def keep(entry: Any) -> Any:
        _plugins[kind, name] = entry
        return entry

    return keep
