"""config.yaml of a run folder: written from a RunConfig, read back as one."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mpt.config.compose import words
from mpt.config.schema import LayerRule, RunConfig
from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean


def dump(cfg: RunConfig) -> str:
    """The configuration as YAML; a group's own options stand beside its other keys."""
    whole = asdict(cfg)
    for group in whole.values():
        if isinstance(group, dict) and "options" in group:
            group.update(group.pop("options"))
    return OmegaConf.to_yaml(OmegaConf.create(whole))


def load(path: Path, overrides: list[str] = ()) -> RunConfig:  # type: ignore[assignment]
    """The configuration in `path` with `key=value` words laid over keys that it has.

    Raises: ConfigError for a file that is no run's configuration, and for words that do not fit it.
    """
    try:
        saved = OmegaConf.load(path)
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(Problem(str(path), f"can't be read: {error}", "give the folder of an mpt run")) from error
    known = {f.name for f in fields(RunConfig)}
    if not isinstance(saved, DictConfig) or not known - {"recipe"} <= {str(k) for k in saved}:
        raise ConfigError(Problem(str(path), "is not the configuration of an mpt run", "give the folder of an mpt run"))
    problems = [p for p in (_lay(saved, word) for word in overrides) if p is not None]
    if problems:
        raise ConfigError(*problems)
    plain: Any = OmegaConf.to_container(saved, resolve=True)
    return RunConfig(**{name: _value(hint, plain[name]) for name, hint in get_type_hints(RunConfig).items()})


def _lay(saved: DictConfig, raw: str) -> Problem | None:
    key, equals, text = raw.partition("=")
    leaves = _leaves(saved)
    if not equals or key not in leaves:
        return Problem(raw, "no such key in this run's configuration", did_you_mean(key, leaves))
    old = OmegaConf.select(saved, key)
    value = text if isinstance(old, str) or key in words.text_keys() else OmegaConf.create(f"x: {text}").x
    if old is not None and value is not None and not _alike(old, value):
        return Problem(key, f"got `{text}`, want a {type(old).__name__}", f"the run had `{old}`")
    OmegaConf.update(saved, key, None if text == "null" else value)
    return None


def _leaves(saved: DictConfig) -> list[str]:
    found = []
    for name in map(str, saved):
        group = saved[name]
        found += [f"{name}.{key!s}" for key in group] if isinstance(group, DictConfig) else [name]
    return found


def _alike(old: Any, new: Any) -> bool:
    numbers = (int, float)
    if isinstance(old, bool) or isinstance(new, bool):
        return type(old) is type(new)
    return type(old) is type(new) or (isinstance(old, numbers) and isinstance(new, numbers))


def _value(hint: Any, value: Any) -> Any:
    """A field's value: a dataclass from its mapping, keys that are no field of it going to `options`."""
    if not is_dataclass(hint):
        return value
    own = {f.name for f in fields(hint)}
    given = {k: v for k, v in value.items() if k in own}
    if "options" in own:
        given["options"] = {k: v for k, v in value.items() if k not in own}
    if "layers" in given:
        given["layers"] = [LayerRule(**rule) for rule in given["layers"]]
    return hint(**given)  # type: ignore[operator]
