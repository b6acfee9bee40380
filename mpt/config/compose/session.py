"""One use of Hydra: where it looks, what it finds there, and its composition of the groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, OmegaConf

from mpt.config.catalog import recipes
from mpt.config.paths import conf_dir, recipes_dir
from mpt.errors import ConfigError, Problem


@dataclass(frozen=True)
class Session:
    """Hydra, opened on conf/ and on the user's own folder."""

    loader: ConfigLoader
    search: tuple[str, ...]
    folders: tuple[Path, ...]

    def groups(self) -> list[str]:
        """Names of groups (`model`, `precision`, …)."""
        found = self.loader.get_group_options("", ObjectType.GROUP, None, list(self.search))
        return sorted((set(found) | {"recipe"}) - {"hydra"})

    def choices(self, group: str) -> list[str]:
        """What `group=` takes."""
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

    def entry(self, group: str, choice: str) -> DictConfig:
        """One choice by itself."""
        path = next((p for folder in self.folders if (p := folder / group / f"{choice}.yaml").is_file()), None)
        loaded = OmegaConf.load(path) if path else None
        if isinstance(loaded, DictConfig) and "defaults" not in loaded:
            return loaded
        # A choice that is made of others, or comes from elsewhere: Hydra's work, ten times as slow.
        return DictConfig(self.compose([f"{group}={choice}"])[group])


@contextmanager
def session(config_dir: str | None = None) -> Iterator[Session]:
    """Hydra looks in conf/ and then in `config_dir`.

    Raises: ConfigError when config_dir is no folder.
    """
    search = search_path(config_dir)
    folders = (conf_dir(), *([Path(config_dir)] if config_dir else []))
    with initialize_config_dir(str(conf_dir()), version_base="1.3", job_name="mpt"):
        yield Session(GlobalHydra.instance().config_loader(), search, folders)


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
