"""From Hydra's merged YAML to the dataclasses of the schema, each leaf checked on its own."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from mpt.config.compose.faults import lacking
from mpt.config.compose.items import wrong_items
from mpt.config.compose.words import is_text
from mpt.config.ranges import reckoned
from mpt.config.schema import RunConfig
from mpt.errors import Problem
from mpt.registry import did_you_mean

NOT_YAML = frozenset({"choice", "options", "recipe", "uses"})
"""Fields that composition fills in."""

_WANT = {int: "an integer", float: "a number", bool: "true or false", str: "text"}

_ELSEWHERE = {
    ("data.batch_size", "auto"): "`mpt bench … data.batch_size=auto` alone finds it, for all of its configurations; "
    "`mpt plan` tells the largest micro-batch without being asked"
}
"""Values that one command takes, by key."""


class Leaves:
    """Typed values by dotted key, and what was wrong with the others."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def read(self, cfg: DictConfig, skeleton: DictConfig) -> None:
        """Takes every key of `cfg`; `skeleton` is cfg before the command line, and gives options their types."""
        hints = hints_of(RunConfig)
        for name in hints.keys() - NOT_YAML:
            if is_dataclass(hints[name]):
                self._group(name, hints[name], cfg[name], skeleton[name])
            else:
                self._field(RunConfig, name, cfg, name)

    def _group(self, group: str, cls: Any, cfg: DictConfig, skeleton: DictConfig) -> None:
        own = {field.name for field in fields(cls)} - NOT_YAML
        takes_options = "options" in {field.name for field in fields(cls)}
        for key in own:
            self._field(cls, f"{group}.{key}", cfg, key)
        for key in sorted(names(cfg) - own):
            if takes_options and key in names(skeleton):
                self._option(f"{group}.{key}", cfg, skeleton, key)
            else:
                known = sorted(own | (names(skeleton) if takes_options else set()))
                what = "no such key, and a YAML of yours sets it"
                self.problems.append(Problem(f"{group}.{key}", what, did_you_mean(key, known)))

    def _field(self, cls: Any, where: str, cfg: DictConfig, key: str) -> None:
        value = self._resolved(where, cfg, key)
        if value is _BAD:
            return
        hint = hints_of(cls)[key]
        try:
            self.values[where] = convert(cls, key, hint, value)
        except (OmegaConfBaseException, TypeError):
            move = _ELSEWHERE.get((where, str(value)), _move(hint, value))
            whole = Problem(where, f"got {shown(value)}, want {wanted(hint)}", move)
            self.problems += wrong_items(where, hint, value) or [whole]

    def _option(self, where: str, cfg: DictConfig, skeleton: DictConfig, key: str) -> None:
        value = self._resolved(where, cfg, key)
        if value is _BAD:
            return
        default = None if OmegaConf.is_missing(skeleton, key) else skeleton[key]
        if fits(default, value):
            self.values[where] = float(value) if type(default) is float else value
        else:
            what = f"got {shown(value)}, want {like(default)}"
            self.problems.append(Problem(where, what, _move(type(default), value)))

    def _resolved(self, where: str, cfg: DictConfig, key: str) -> Any:
        """The value without interpolations; _BAD after noting a problem."""
        if key not in names(cfg):
            self.problems.append(lacking(where.partition(".")[0], key, cfg))
            return _BAD
        try:
            value = cfg[key]
            if isinstance(value, (DictConfig, ListConfig)):
                return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
            return value
        except MissingMandatoryValue:
            self.problems.append(Problem(where, "has no value", f"it must be given: {where}=…"))
        except (InterpolationResolutionError, OmegaConfBaseException) as error:
            node = OmegaConf.to_container(cfg, resolve=False)
            text = node.get(key) if isinstance(node, dict) else None
            self.problems.append(Problem(where, f"`{text}` can't be resolved", str(error).splitlines()[0]))
        return _BAD


_BAD = object()


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Types of a dataclass's fields."""
    return get_type_hints(cls)


def names(cfg: DictConfig) -> set[str]:
    """Its keys, those without a value (`???`) too: `in` says no to them."""
    return {str(key) for key in cfg}


def convert(cls: Any, key: str, hint: Any, value: Any) -> Any:
    """`value` as the field's type. Raises: OmegaConf's error or TypeError when it has another."""
    if is_text(hint):
        return _text(hint, value)
    if isinstance(value, str) and list[str] in _members(hint):
        value = [value]
    if type(value) in (int, float) and list[float] in _members(hint):
        value = [value]
    members = _members(hint)
    if isinstance(value, list) and list[str] in members and all(type(item) in (str, int) for item in value):
        return [str(item) for item in value]
    if type(value) in members:
        return value
    if type(value) is int and float in members:
        return float(value)
    if isinstance(value, list) and any(_holds(member, value) for member in members):
        return value
    node = OmegaConf.structured(make_dataclass("Alone", [(key, hint)]))  # the class may have unions it does not know
    OmegaConf.update(node, key, value)
    result = node[key]
    return OmegaConf.to_object(result) if OmegaConf.is_config(result) else result


def _holds(hint: Any, value: list[Any]) -> bool:
    """Whether the list is of that type as it stands; one that has to be converted is left to OmegaConf."""
    return get_origin(hint) is list and all(type(item) is get_args(hint)[0] for item in value)


def _text(hint: Any, value: Any) -> str | None:
    """Text stays text; YAML's true and false are words too, but a number has lost its spelling (007, 1e5)."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or (value is None and type(None) in _members(hint)):
        return value
    raise TypeError("not text")


def fits(default: Any, value: Any) -> bool:
    """Whether an option's value has the type of its YAML default; a null default takes any scalar."""
    if default is None or value is None:
        return not isinstance(value, (list, dict))
    if isinstance(default, bool) or isinstance(value, bool):
        return type(default) is type(value)
    if isinstance(default, float):
        return isinstance(value, (int, float))
    if isinstance(default, ListConfig):
        return isinstance(value, list) and all(fits(next(iter(default), None), item) for item in value)
    return isinstance(value, dict) if isinstance(default, DictConfig) else type(default) is type(value)


def shown(value: Any) -> str:
    """A value as people type it."""
    if value is None:
        return "null"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def wanted(hint: Any) -> str:
    """A type in words."""
    return " or ".join(_name(member) for member in _members(hint))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is UnionType else (hint,)


def _name(member: Any) -> str:
    if member is type(None):
        return "null"
    if get_origin(member) is list:
        inner = get_args(member)[0]
        if is_dataclass(inner):
            return "a list of {" + ", ".join(f"{f.name}: …" for f in fields(inner)) + "}"
        return f"a list [{_WANT.get(inner, 'value')}, …]"
    return _WANT.get(member, "a mapping")


def like(default: Any) -> str:
    """The type of an option's default in words."""
    if isinstance(default, ListConfig):
        return f"a list like {list(default)}"
    return "a mapping {key: value}" if isinstance(default, DictConfig) else _WANT.get(type(default), "one value")


def _move(hint: Any, value: Any) -> str:
    """A next move where the value only was spelled in another type."""
    members = _members(hint)
    if int in members and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return f"write {int(value)}"
    if isinstance(value, str) and (int in members or float in members):
        return reckoned(value)
    if str in members and isinstance(value, (int, float)):
        return "put it in quotes in the YAML"
    return ""
