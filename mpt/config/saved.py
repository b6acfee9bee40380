"""config.yaml of a run folder: written from a RunConfig, read back as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mpt.config import _yaml
from mpt.config.compose import words
from mpt.config.compose.typed import NOT_YAML, convert, fits, hints_of, like, shown, wanted
from mpt.config.flat import flatten
from mpt.config.ranges import range_problems
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean


def dump(cfg: RunConfig) -> str:
    """The configuration as YAML."""
    return _yaml.dump(merged(cfg))


def merged(cfg: RunConfig) -> dict[str, Any]:
    """The configuration as plain containers, paths absolute; a group's own options stand beside its other keys."""
    whole = asdict(cfg)
    for group in whole.values():
        if isinstance(group, dict) and "options" in group:
            group.update(group.pop("options"))
    _make_absolute(whole, ("run_dir", "resume", "init_from"))
    _make_absolute(whole["data"], ("root", "path"))
    _make_absolute(whole["model"], ("path",))
    _make_absolute(whole["checkpoint"], ("dir",))
    return whole


def _make_absolute(group: dict[str, Any], keys: Sequence[str]) -> None:
    """Paths of the group mean the same from any folder; `auto` and `package.module:name` are none."""
    for key in keys:
        value = group.get(key)
        is_path = key != "path" or ".py:" in str(value)
        if value and value != "auto" and is_path:
            group[key] = str(Path(value).absolute())


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in `path` with `key=value` words laid over keys that it has.

    Raises: ConfigError for a file that is no run's configuration, and for words or values that do not fit it.
    """
    if not path.parent.is_dir():
        raise ConfigError(Problem(str(path.parent), "there is no such folder", "give the folder of an mpt run"))
    try:
        saved = OmegaConf.create(_yaml.vetted(path))
    except (OSError, YAMLError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError(Problem(str(path), f"can't be read: {error}", "give the folder of an mpt run")) from error
    needed = {f.name for f in fields(RunConfig) if f.default is MISSING}
    if not isinstance(saved, DictConfig) or not needed <= {str(k) for k in saved}:
        raise ConfigError(Problem(str(path), "is not the configuration of an mpt run", "give the folder of an mpt run"))
    problems = [p for p in (_lay(saved, word) for word in overrides) if p is not None]
    if problems:
        raise ConfigError(*problems)
    cfg = _typed(OmegaConf.to_container(saved, resolve=True))
    problems = range_problems(flatten(cfg))
    if problems:
        raise ConfigError(*problems)
    return cfg


def _lay(saved: DictConfig, raw: str) -> Problem | None:
    key, equals, text = raw.partition("=")
    leaves = _leaves(saved)
    if not equals or key not in leaves:
        return Problem(raw, "no such key in this run's configuration", did_you_mean(key, leaves))
    old = OmegaConf.select(saved, key)
    try:
        value = _read(key, old, text)
    except (OmegaConfBaseException, YAMLError, TypeError):
        had = "null" if old is None else f"`{old}`"
        return Problem(key, f"got `{text}`, want {_wanted(key, old)}", f"the run had {had}")
    OmegaConf.update(saved, key, value, merge=False)
    return None


def _read(key: str, old: Any, text: str) -> Any:
    """The text as the key's type: the schema's, or for an option that of the run's own value.

    Raises: OmegaConf's and YAML's errors, or TypeError, when it has another.
    """
    owner, leaf = _field(key)
    if text == "null":
        value = None
    elif isinstance(old, str) or key in words.text_keys():
        value = text
    else:
        value = OmegaConf.to_container(OmegaConf.create(f"x: {text}"))["x"]  # type: ignore[call-overload, index]
    if owner is not None:
        return convert(owner, leaf, get_type_hints(owner)[leaf], value)
    if not fits(old, value):
        raise TypeError("of another type than the run's")
    return value


def _field(key: str) -> tuple[Any, str]:
    """The schema's class that has the key, None for an option, and the key's name in it."""
    group, _, leaf = key.rpartition(".")
    owner = get_type_hints(RunConfig)[group] if group else RunConfig
    return (owner if leaf in get_type_hints(owner) else None), leaf


def _wanted(key: str, old: Any) -> str:
    owner, leaf = _field(key)
    return like(old) if owner is None else wanted(get_type_hints(owner)[leaf])


def _leaves(saved: DictConfig) -> list[str]:
    found = []
    for name in map(str, saved):
        group = saved[name]
        found += [f"{name}.{key!s}" for key in group] if isinstance(group, DictConfig) else [name]
    return found


def _typed(plain: Any) -> RunConfig:
    """Raises: ConfigError with each value that is not of its key's type."""
    problems: list[Problem] = []
    hints = hints_of(RunConfig)
    values = {name: _value(name, hint, plain[name], problems) for name, hint in hints.items() if name in plain}
    if problems:
        raise ConfigError(*problems)
    return RunConfig(**values)


def _value(name: str, hint: Any, value: Any, problems: list[Problem]) -> Any:
    """A field's value: a dataclass from its mapping, keys that are no field of it going to `options`."""
    if not is_dataclass(hint):
        return _leaf(RunConfig, name, name, value, problems)
    if not isinstance(value, dict):
        problems.append(Problem(name, f"got {shown(value)}, want a mapping"))
        return None
    own = {f.name for f in fields(hint)}
    given = {k: _leaf(hint, k, f"{name}.{k}", v, problems) for k, v in value.items() if k in own}
    if "options" in own:
        given["options"] = {k: v for k, v in value.items() if k not in own}
    lacks = [f.name for f in fields(hint) if _is_needed(f) and f.name not in given]
    problems += [Problem(f"{name}.{key}", "is not there", "it must have a value") for key in lacks]
    return None if lacks else hint(**given)  # type: ignore[operator]


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _leaf(cls: Any, key: str, where: str, value: Any, problems: list[Problem]) -> Any:
    if key in NOT_YAML:
        return value
    try:
        return convert(cls, key, hints_of(cls)[key], value)
    except (OmegaConfBaseException, TypeError):
        problems.append(Problem(where, f"got {shown(value)}, want {wanted(hints_of(cls)[key])}"))
        return None
