"""Every key that can be given, with its default and its meaning: from the schema's docstrings and conf/'s comments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mpt.config.paths import conf_dir
from mpt.errors import ConfigError, Problem

_ROOT, _SCHEMA = "RunConfig", Path(__file__).with_name("schema.py")
_FILLED_IN = ("name", "choice", "options", "uses")
"""Fields of a group that its choice fills in."""


@dataclass(frozen=True)
class Key:
    """A key as typed. `default` is YAML; `choices` are those that have the key, none where all of a group do.

    `default` is that of the group's own default choice; `differs` has the choices that bring another.
    """

    key: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    differs: Mapping[str, str] = field(default_factory=dict)


def reference() -> list[Key]:
    """The schema's keys in its order, and after each group those that only some of its choices have."""
    classes = _classes()
    first = _plain(conf_dir() / "config.yaml")
    chosen = {
        group: choice for entry in first["defaults"] if isinstance(entry, dict) for group, choice in entry.items()
    }
    found: list[Key] = []
    for name, (type_, meaning) in classes[_ROOT].items():
        if type_ in classes:
            given = {**first.get(name, {}), **_values(name, str(chosen[name]))}
            found += [
                Key(f"{name}.{key}", _text(given.get(key)), _typed(told), differs=_differs(name, key, given.get(key)))
                for key, (_, told) in classes[type_].items()
                if key not in _FILLED_IN
            ]
            found += _options(name, classes[type_])
        else:
            found.append(Key(name, _text(first.get(name)), _typed(meaning)))
    return found


def _differs(group: str, key: str, default: Any) -> dict[str, str]:
    """What choices of the group set the key to, where that is not the default."""
    values = {path.stem: _values(group, path.stem) for path in sorted((conf_dir() / group).glob("*.yaml"))}
    return {name: _text(own[key]) for name, own in values.items() if key in own and own[key] != default}


def _options(group: str, own: Mapping[str, object]) -> list[Key]:
    """Keys that some choices add; a default that differs between them is not told, and stands in each YAML."""
    found: dict[str, Key] = {}
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        comments = _comments(path)
        for option, value in _values(group, path.stem).items():
            if option in own or option == "defaults":
                continue
            key = Key(f"{group}.{option}", _text(value), comments.get(option, ""), (path.stem,))
            known = found.get(option, key)
            default = key.default if known.default == key.default else "…"
            choices = known.choices if known is key else (*known.choices, path.stem)
            found[option] = Key(key.key, default, known.meaning or key.meaning, choices)
    return list(found.values())


def _values(group: str, choice: str) -> dict[str, Any]:
    """What a choice sets in its own group."""
    document = _plain(conf_dir() / group / f"{choice}.yaml")
    whole = (conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8").startswith("# @package _global_")
    return dict(document.get(group, {})) if whole else document


def _classes() -> dict[str, dict[str, tuple[str, str]]]:
    """For each class of the schema: its fields' types and docstrings."""
    tree = ast.parse(_SCHEMA.read_text(encoding="utf-8"))
    return {node.name: dict(_fields(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    for i, statement in enumerate(node.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            after = node.body[i + 1] if i + 1 < len(node.body) else None
            told = after.value if isinstance(after, ast.Expr) else None
            text = str(told.value) if isinstance(told, ast.Constant) else ""
            yield statement.target.id, (ast.unparse(statement.annotation), " ".join(text.split()))


def _plain(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(Problem(str(path), f"can't be read: {error}", "reinstall mpt")) from error
    return document or {}


def _comments(path: Path) -> dict[str, str]:
    """What stands behind a key on its line, or on the lines above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in map(str.strip, path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("#"):
            above.append(line[1:].strip())
            continue
        found[line.partition(":")[0]] = line.partition(" # ")[2] or " ".join(above)
        above = []
    return found


def _typed(meaning: str) -> str:
    """With values as they are typed: the schema's None is YAML's null."""
    return re.sub(r"\bNone\b", "null", meaning)


def as_typed(value: Any) -> str:
    """A value on one line as people type it: `null`, `true`, and 1 for 1.0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else _text(value)


def _text(value: Any) -> str:
    """On one line, as YAML has it."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()
