"""The steps of composition, in order; each collects its problems and goes on with what is left."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mpt.config.catalog import recipes
from mpt.config.compose import groups, keys, words
from mpt.config.compose.assemble import assemble
from mpt.config.compose.auto_scaling import scaling_keys, strategy
from mpt.config.compose.faults import uncomposable
from mpt.config.compose.session import Composed, Session, session, store_recipe, unplaced_recipe
from mpt.config.compose.typed import Leaves
from mpt.config.plugins import import_plugins
from mpt.config.ranges import range_problems
from mpt.config.schema import RunConfig
from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean


@dataclass(frozen=True)
class Composition:
    """A configuration in both forms: Hydra's merged YAML, and the dataclasses made from it."""

    yaml: DictConfig
    config: RunConfig


def compose(overrides: list[str], config_dir: str | None = None) -> RunConfig:
    """The configuration that the words ask for; changes no directory and writes nothing.

    Raises: ConfigError with every problem of words, keys, choices, types and interpolations.
    """
    return composition(overrides, config_dir).config


def composition(overrides: list[str], config_dir: str | None = None) -> Composition:
    """As compose, with the merged YAML beside it."""
    words.refuse_torn(overrides)
    with session(config_dir) as hydra:
        return _Composer(hydra).run([words.split(raw) for raw in overrides])


class _Composer:
    """Collects problems over the steps of one composition."""

    def __init__(self, hydra: Session) -> None:
        self.hydra = hydra
        self.problems: list[Problem] = []
        self.order: dict[str, int] = {}
        self.given: set[str] = set()
        self.groups = hydra.groups()

    def run(self, typed: list[words.Word]) -> Composition:
        self.order = {name: i for i, word in enumerate(typed) for name in (word.raw, word.key)}
        good = [word for word in typed if self._shaped(word)]
        self._plugins_of(good)
        group_lines = [self._group_line(word) for word in good if self._is_group(word)]
        base = self._composed(
            [line for line in group_lines if line]
            + [words.quote_word(w, w.key in words.PATH_KEYS, False) for w in good if w.hydra]
        )
        if base is None:
            raise self._error(self.problems)
        choices = dict(base.choices)
        cfg, skeleton = base.config(), self._skeleton(base, choices)
        for word in good:
            if not word.hydra and not self._is_group(word):
                self._set(cfg, skeleton, word, choices)
        self._overlay_auto(cfg, skeleton, choices)
        return self._finish(cfg, skeleton, choices)

    def _shaped(self, word: words.Word) -> bool:
        problem = words.misshapen(word, self._owner_of)
        if problem:
            self.problems.append(problem)
        return problem is None

    def _owner_of(self, choice: str) -> str | None:
        return next((group for group in self.groups if choice in self.hydra.choices(group)), None)

    def _is_group(self, word: words.Word) -> bool:
        return word.key in self.groups

    def _plugins_of(self, good: list[words.Word]) -> None:
        """Plugins come first: they may bring choices."""
        for word in good:
            if word.key == "plugins":
                override = words.parse(word.raw, word)
                if isinstance(override, Override):
                    value = override.value()
                    self.problems += import_plugins([str(v) for v in (value if isinstance(value, list) else [value])])

    def _group_line(self, word: words.Word) -> str | None:
        """`group=choice` for Hydra, or None after noting what is wrong."""
        override = words.parse(word.raw, word)
        value = override if isinstance(override, Problem) else groups.choice(override)
        if isinstance(value, Problem):
            self.problems.append(value)
            return None
        problem = groups.check_choice(word.key, value, self.hydra.choices(word.key))
        if problem:
            self.problems.append(problem)
            return None
        problem = unplaced_recipe(self.hydra, value) if word.key == "recipe" else None
        if problem:
            self.problems.append(problem)
            return None
        if word.key == "recipe" and value in recipes():
            store_recipe(value)
        return f"{word.key}={value}"

    def _composed(self, lines: list[str]) -> Composed | None:
        try:
            return self.hydra.composed(lines)
        except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
            self.problems.append(uncomposable(error, self.hydra.folders))
            return None

    def _skeleton(self, base: Composed, choices: dict[str, str]) -> DictConfig:
        """The chosen YAMLs without a recipe's own values: what keys there are, and of what type."""
        if choices.get("recipe") in (None, "None"):
            return base.config()
        lines = [f"{group}={choice}" for group, choice in choices.items() if group != "recipe"]
        return (self._composed(lines) or base).config()

    def _set(self, cfg: DictConfig, skeleton: DictConfig, word: words.Word, choices: dict[str, str]) -> None:
        """Puts one `key=value` in, or notes what is wrong with it."""
        if not keys.exists(skeleton, word.key):
            self.problems.append(self._unknown(word, skeleton, choices))
            return
        group, _, leaf = word.key.partition(".")
        if leaf in ("name", "rule") and group in self.groups:
            self.problems.append(Problem(word.key, "is set by the choice", f"write {group}={word.text}"))
            return
        line = words.quote_word(word, self._is_text(skeleton, word.key), multirun=False)
        override = words.parse(line, word)
        if isinstance(override, Problem):
            self.problems.append(override)
        elif override.is_sweep_override():
            self.problems.append(Problem(word.key, f"got `{word.text}`", f"{groups.SWEEP_HINT}; a list is [a,b]"))
        else:
            self._update(cfg, word, override.value())

    def _update(self, cfg: DictConfig, word: words.Word, value: Any) -> None:
        # Keys inside a mapping are the user's own (model.kwargs={width: 3}, model.kwargs.width=3).
        mapping = isinstance(value, dict) and OmegaConf.is_dict(OmegaConf.select(cfg, word.key))
        try:
            OmegaConf.update(cfg, word.key, value, merge=True, force_add=mapping or word.key.count(".") > 1)
            self.given.add(word.key)
        except OmegaConfBaseException as error:
            self.problems.append(keys.mismatch(error, cfg, word.key, word.text))

    def _unknown(self, word: words.Word, skeleton: DictConfig, choices: dict[str, str]) -> Problem:
        known = keys.dotted(skeleton)
        if "/" in word.key:
            what = "no such group: a slash is for groups, a key has dots"
            return Problem(word.key, what, keys.hint(word.key.replace("/", "."), known))
        if "." not in word.key and keys.elsewhere_called(word.key, known):
            return Problem(word.key, "no such key", keys.hint(word.key, known))
        if "." not in word.key and not any(k.rsplit(".", 1)[-1] == word.key for k in known):
            names = [*self.groups, *(k for k in known if "." not in k)]
            hint = groups.unknown_group(word.key, word.text or "", names, self._choices_of)
            return Problem(word.key, "no such key or group", hint)
        return keys.unknown(word.key, known, choices, self._owners(word.key))

    def _owners(self, key: str) -> list[str]:
        """Choices of the key's group that have it as an option."""
        group, _, leaf = key.partition(".")
        if group not in self.groups or group == "recipe":
            return []
        return [choice for choice in self.hydra.choices(group) if leaf in self.hydra.entry(group, choice)]

    def _choices_of(self, group: str) -> list[str]:
        return self.hydra.choices(group) if group in self.groups else []

    @staticmethod
    def _is_text(skeleton: DictConfig, key: str) -> bool:
        """Whether the raw text is the value: by the schema, or by the YAML default of an option."""
        if key in words.text_keys():
            return True
        if OmegaConf.select(skeleton, key, throw_on_missing=False) is None:
            return _missing(skeleton, key)
        group, _, leaf = key.partition(".")
        is_option = bool(leaf) and leaf not in {f.name for f in fields(get_type_hints(RunConfig)[group])}
        return is_option and isinstance(OmegaConf.select(skeleton, key), str)

    def _overlay_auto(self, cfg: DictConfig, skeleton: DictConfig, choices: dict[str, str]) -> None:
        """scaling=auto becomes the policy's own strategy, under the values that were given."""
        if choices["scaling"] != "auto":
            return
        preset = strategy(cfg, self.given)
        known = [choice for choice in self.hydra.choices("scaling") if choice != "auto"]
        if preset not in known:
            self.problems.append(Problem("precision.scaling", f"got `{preset}`", did_you_mean(preset, known)))
            preset = "none"
        choices["scaling"] = preset
        values = dict(cfg.scaling.items_ex(resolve=False))
        given = {k: v for k, v in values.items() if v is not None or f"scaling.{k}" in self.given}
        entry = self.hydra.entry("scaling", preset)
        with open_dict(cfg), open_dict(skeleton):
            skeleton.scaling = OmegaConf.merge(skeleton.scaling, entry)
            cfg.scaling = OmegaConf.merge(cfg.scaling, entry, {**given, "name": preset})

    def _finish(self, cfg: DictConfig, skeleton: DictConfig, choices: dict[str, str]) -> Composition:
        leaves = Leaves()
        leaves.read(cfg, skeleton)
        problems = [*self.problems, *leaves.problems]
        if problems:
            raise self._error([*problems, *range_problems(leaves.values)])
        config = assemble(leaves.values, choices, scaling_keys(self.hydra, choices["scaling"]))
        late = import_plugins(config.plugins)
        if late:
            raise ConfigError(*late)
        return Composition(cfg, config)

    def _error(self, problems: list[Problem]) -> ConfigError:
        """All problems, in the order of the words that they are about."""
        return ConfigError(*sorted(problems, key=lambda p: self.order.get(p.where, len(self.order))))


def _missing(cfg: DictConfig, key: str) -> bool:
    group, _, leaf = key.rpartition(".")
    owner = OmegaConf.select(cfg, group) if group else cfg
    return isinstance(owner, DictConfig) and OmegaConf.is_missing(owner, leaf)
