"""One use of Hydra: where it looks, what it finds there, and its composition of the groups."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf, open_dict

from mpt.config.catalog import recipes
from mpt.config.paths import conf_dir, recipes_dir
from mpt.errors import ConfigError, Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Composed:
    """A composition to take copies of, and the choice of each group in it."""

    packed: bytes
    choices: dict[str, str]

    @staticmethod
    def of(cfg: DictConfig) -> Composed:
        found = {str(group): str(value) for group, value in cfg.hydra.runtime.choices.items() if "/" not in str(group)}
        with open_dict(cfg):
            del cfg["hydra"]
        return Composed(pickle.dumps(cfg), found)

    def config(self) -> DictConfig:
        """A new copy, in half the time of a deepcopy."""
        cfg: DictConfig = pickle.loads(self.packed)
        return cfg


@dataclass(frozen=True)
class Session:
    """Hydra, opened on conf/ and on the user's own folder."""

    loader: ConfigLoader
    search: tuple[str, ...]
    folders: tuple[Path, ...]
    memo: dict[object, Any] | None = None
    """What was asked before, while many compositions share the session; the YAML is read once then."""

    def groups(self) -> list[str]:
        """Names of groups (`model`, `precision`, …)."""
        return self._remembered("groups", self._groups)

    def _groups(self) -> list[str]:
        found = self.loader.get_group_options("", ObjectType.GROUP, None, list(self.search))
        return sorted((set(found) | {"recipe"}) - {"hydra"})

    def _remembered(self, key: object, found: Callable[[], T]) -> T:
        if self.memo is None:
            return found()
        if key not in self.memo:
            self.memo[key] = found()
        known: T = self.memo[key]
        return known

    def choices(self, group: str) -> list[str]:
        """What `group=` takes."""
        return self._remembered(("choices", group), lambda: self._choices(group))

    def _choices(self, group: str) -> list[str]:
        shipped = list(recipes()) if group == "recipe" else []
        return sorted({*shipped, *self._below(group)})

    def _below(self, group: str) -> list[str]:
        """Choices in a group's own folders; `family/name` in those inside them."""
        files = self.loader.get_group_options(group, ObjectType.CONFIG, None, list(self.search))
        inner = self.loader.get_group_options(group, ObjectType.GROUP, None, list(self.search))
        return [*files, *(f"{name}/{choice}" for name in inner for choice in self._below(f"{group}/{name}"))]

    def compose(self, overrides: list[str]) -> DictConfig:
        """Hydra's composition, with its `hydra` node."""
        return compose("config", overrides=[*self.search, *overrides], return_hydra_config=True)

    def composed(self, overrides: list[str]) -> Composed:
        """The same, without that node, which is the larger part of it."""
        return self._remembered(("composed", *overrides), lambda: Composed.of(self.compose(overrides)))

    def entry(self, group: str, choice: str) -> DictConfig:
        """One choice by itself."""
        path = next((p for folder in self.folders if (p := folder / group / f"{choice}.yaml").is_file()), None)
        loaded = OmegaConf.load(path) if path else None
        if isinstance(loaded, DictConfig) and "defaults" not in loaded:
            return loaded
        # A choice that is made of others, or comes from elsewhere: Hydra's work, ten times as slow.
        return DictConfig(self.composed([f"{group}={choice}"]).config()[group])


_shared: ContextVar[tuple[str | None, Session] | None] = ContextVar("shared_session", default=None)


@contextmanager
def session(config_dir: str | None = None) -> Iterator[Session]:
    """Hydra looks in conf/ and then in `config_dir`.

    Raises: ConfigError when config_dir is no folder.
    """
    shared = _shared.get()
    if shared is not None and shared[0] == config_dir:
        yield shared[1]
        return
    search = search_path(config_dir)
    folders = (conf_dir(), *([Path(config_dir)] if config_dir else []))
    with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="mpt"):
        yield Session(GlobalHydra.instance().config_loader(), search, folders)


@contextmanager
def shared_session(config_dir: str | None) -> Iterator[Session]:
    """As `session`; inside, every `session` of the same folder is this one, and remembers what it was asked.

    Raises: ConfigError when config_dir is no folder.
    """
    with session(config_dir) as hydra:
        remembering = replace(hydra, memo={})
        token = _shared.set((config_dir, remembering))
        try:
            yield remembering
        finally:
            _shared.reset(token)


def search_path(config_dir: str | None) -> tuple[str, ...]:
    """The override that makes Hydra look in `config_dir` too; none for None."""
    if config_dir is None:
        return ()
    folder = Path(config_dir).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(Problem("--config-dir", f"`{config_dir}` is no folder", "give a folder of YAML by group"))
    escaped = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return (f"hydra.searchpath=['file://{escaped}']",)


def store_recipe(name: str) -> None:
    """Makes `recipe=<name>` known to Hydra as an overlay over the whole configuration."""
    family, _, leaf = name.rpartition("/")
    node = OmegaConf.load(recipes_dir() / f"{name}.yaml")
    group = f"recipe/{family}" if family else "recipe"
    ConfigStore.instance().store(name=leaf, node=node, group=group, package="_global_", provider="mpt")


def unplaced_recipe(hydra: Session, name: str) -> Problem | None:
    """A user's own recipe has to say that it is about the whole configuration: else nothing reads what it sets."""
    for folder in hydra.folders[1:]:
        path = folder / "recipe" / f"{name}.yaml"
        if path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith("# @package _global_"):
            return Problem(
                f"recipe={name}",
                f"{path} does not set the whole configuration",
                "begin it with the line `# @package _global_`",
            )
    return None
