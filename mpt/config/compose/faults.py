"""What is wrong with a YAML that Hydra can't compose, told by its file or its choice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra.errors import MissingConfigException
from omegaconf import DictConfig

from mpt.config.catalog import choices
from mpt.errors import Problem
from mpt.registry import did_you_mean


def uncomposable(error: Exception, folders: Sequence[Path]) -> Problem:
    """The message for what Hydra raised; `folders` are those that it reads."""
    if isinstance(error, UnicodeDecodeError):
        bad = next((path for folder in folders for path in sorted(folder.rglob("*.yaml")) if not _is_text(path)), None)
        return Problem(str(bad or "configuration"), f"is no text in UTF-8: {error.reason}", "save it as UTF-8")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        what = f"got `{choice}` from the defaults of a YAML"
        return Problem(group.strip("/") or "defaults", what, did_you_mean(choice, list(error.options)))
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return Problem("configuration", " ".join(f"{error}{cause}".split()), "look at the YAML that it names")


def lacking(group: str, key: str, chosen: object) -> Problem:
    """The message for a key that no chosen YAML has: one of the user's own does not begin with one that has."""
    shipped = list(choices(group))
    name = chosen.get("name") if isinstance(chosen, DictConfig) else None
    base = str(name) if name in shipped else shipped[0] if shipped else None
    hint = f"let your {group} YAML begin with one that has it: `defaults: [{base}, _self_]`"
    return Problem(f"{group}.{key}", "is in no YAML", hint if base else "give it a default in conf/")


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    except OSError:  # Hydra says that itself
        return True
    return True
