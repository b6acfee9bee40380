"""YAML of run folders: written as OmegaConf writes and reads it, and looked through before anything is built of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_BYTES = 1 << 20
"""A run's configuration has some 3 kB."""
_DEPTH = 32


def vetted(path: Path) -> str:
    """The text of a configuration that mpt may have written: no aliases, which could stand for any size; not deep.

    Raises: OSError, UnicodeDecodeError, yaml.YAMLError, ValueError.
    """
    if not path.is_file():
        raise OSError("no such file" if not path.exists() else "no regular file")
    if path.stat().st_size > _BYTES:
        raise ValueError(f"it has {path.stat().st_size:,} bytes")
    text, depth = path.read_bytes().decode(), 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _DEPTH:
            raise ValueError("it refers to itself" if depth <= _DEPTH else f"it is more than {_DEPTH} levels deep")
        if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
            raise ValueError(f"`{event.value}` is computed, and a run's configuration holds values")
    return text


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """libyaml's, ten times as fast as the one in Python, where it was built in."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # `vetted` takes none


def _text(dumper: Any, text: str) -> Any:
    """In quotes where OmegaConf would read a number that PyYAML takes for text (1e5)."""
    style = "'" if _is_number(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_Dumper.add_representer(str, _text)


def dump(plain: dict[str, Any]) -> str:
    """Plain containers as YAML, keys in their order."""
    text: str = yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)
    return text
