"""`--cfg`, `--info` and `--help` of `mpt train`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from hydra.core.override_parser.types import Override
from omegaconf import Container, DictConfig, OmegaConf

from mpt.config.compose import words
from mpt.config.compose._run import composition
from mpt.config.compose.hydra_app import requoted, run_hydra
from mpt.errors import ConfigError, Problem


def show(
    typed: list[str], args: list[str], config_dir: str | None, *, cfg: str | None, package: str | None, resolve: bool
) -> int:
    """Prints what is asked for; the exit code.

    Raises: ConfigError for anything that would stop a run's composition.
    """
    made = composition(typed, config_dir)
    if cfg == "job":
        print(as_yaml(made.yaml, package, resolve), end="")
    else:
        # In one piece: Hydra prints through logging, which shows a traceback for each line that nobody reads any more.
        with redirect_stdout(io.StringIO()) as shown:
            run_hydra(requoted(args, multirun=False))
        print(shown.getvalue(), end="")
    return 0


def refuse_lists(typed: list[str]) -> None:
    """Raises: ConfigError for comma lists, which would be several configurations where one is shown."""
    lists = []
    for word in map(words.split, typed):
        override = words.parse(word.raw, word)
        if isinstance(override, Override) and override.is_sweep_override():
            lists.append(Problem(word.key, f"got `{word.text}`: that is several jobs, and one can be shown", _ONE))
    if lists:
        raise ConfigError(*lists)


_ONE = "leave --multirun away and give one value"


def as_yaml(cfg: DictConfig, package: str | None = None, resolve: bool = False) -> str:
    """The composed configuration, or one part of it, in Hydra's form.

    Raises: ConfigError when there is no such part.
    """
    if package in (None, "_global_"):
        return OmegaConf.to_yaml(cfg, resolve=resolve)
    part = OmegaConf.select(cfg, str(package))
    if part is None:
        known = ", ".join(str(key) for key in cfg)
        raise ConfigError(Problem("--package", f"no `{package}` in the configuration", f"one of {known}"))
    if not isinstance(part, Container):
        return f"{part}\n"
    return f"# @package {package}\n{OmegaConf.to_yaml(part, resolve=resolve)}"
