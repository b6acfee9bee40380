"""The dataclasses of the schema, from typed leaves by dotted key."""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from mpt.config.compose.typed import NOT_YAML
from mpt.config.compose.words import PATH_KEYS
from mpt.config.schema import RunConfig


def assemble(values: dict[str, Any], choices: dict[str, str], scaling_keys: list[str]) -> RunConfig:
    """A RunConfig; `choices` are the YAMLs that were chosen, by group; `scaling_keys` what that of scaling lists."""
    top: dict[str, Any] = {}
    values = {key: _home(value) if key in PATH_KEYS else value for key, value in values.items()}
    for name, hint in get_type_hints(RunConfig).items():
        if is_dataclass(hint):
            top[name] = _group(name, hint, values)
        elif name not in NOT_YAML:
            top[name] = values[name]
    top["model"].choice = choices["model"]
    top["scaling"].uses = scaling_keys
    recipe = choices.get("recipe")
    return RunConfig(**top, recipe=None if recipe in (None, "None") else recipe)


def _home(path: str | None) -> str | None:
    # Shells leave `~` alone when it follows `key=`.
    return os.path.expanduser(path) if path else path


def _group(group: str, cls: Any, values: dict[str, Any]) -> Any:
    own = {field.name for field in fields(cls)}
    inside = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{group}.")}
    given = {key: value for key, value in inside.items() if key in own}
    options = {key: value for key, value in inside.items() if key not in own}
    return cls(**given, options=options) if "options" in own else cls(**given)
