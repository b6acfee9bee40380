"""What conf/ and recipes/ offer, with the line that describes each; no Hydra."""

from __future__ import annotations

from pathlib import Path

from mpt.config.paths import conf_dir, recipes_dir


def first_comment(path: Path) -> str:
    """The line that describes a YAML: its first after Hydra's header (`# @package …`), without `#`."""
    with path.open(encoding="utf-8") as file:
        line = next((line for line in file if not line.startswith("# @")), "")
    return line[1:].strip() if line.startswith("#") else ""


def choices(group: str, config_dir: str | None = None) -> dict[str, str]:
    """Descriptions of a group's choices; those of the user's own folder come beside mpt's."""
    folders = [conf_dir() / group, *([Path(config_dir) / group] if config_dir else [])]
    found = {path.stem: path for folder in reversed(folders) for path in folder.glob("*.yaml")}
    return {name: first_comment(found[name]) for name in sorted(found)}


def recipes() -> dict[str, str]:
    """Descriptions of whole runs by `family/name`."""
    root = recipes_dir()
    found = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.glob("*/*.yaml")}
    return {name: first_comment(found[name]) for name in sorted(found)}
