"""Every choice in conf/ and every recipe: composes, says what it is, and names code and keys that exist."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from mpt import registry
from mpt.config import catalog
from mpt.config.check import check
from mpt.config.compose import compose
from mpt.config.compose.typed import NOT_YAML
from mpt.config.paths import conf_dir, recipes_dir
from mpt.config.ranges import RANGES, WORDS
from mpt.config.schema import RunConfig

CHOICES = [(path.parent.name, path.stem) for path in sorted(conf_dir().glob("*/*.yaml"))]
GROUPS = sorted({group for group, _ in CHOICES})
RECIPES = sorted(catalog.recipes())
CODE = {
    "model": "models",
    "data": "data",
    "task": "tasks",
    "scaling": "scaling",
    "optimizer": "optim",
    "schedule": "schedules",
}
NEEDED = {
    ("model", "torchvision"): ["model.arch=resnet18"],
    ("model", "timm"): ["model.arch=resnet18"],
    ("model", "custom"): ["model.path=package.module:make"],
    ("data", "custom"): ["data.path=package.module:make"],
}
"""What a choice can't do without."""


def composed(group: str, choice: str) -> RunConfig:
    return compose([f"{group}={choice}", *NEEDED.get((group, choice), [])])


def raw(group: str, choice: str) -> dict[str, Any]:
    """What a choice says of its own group; one with settings for others too (`@package _global_`) names the group."""
    found: dict[str, Any] = yaml.safe_load((conf_dir() / group / f"{choice}.yaml").read_text(encoding="utf-8"))
    own: dict[str, Any] = found.get(group, found)
    return own


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_composes_and_names_code_that_exists(group: str, choice: str) -> None:
    cfg = composed(group, choice)
    if group in CODE and choice != "auto":
        entry = getattr(cfg, group)
        assert (getattr(entry, "rule", None) or entry.name) in registry.names(CODE[group])


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_opens_with_a_line_that_says_what_it_is(group: str, choice: str) -> None:
    line = catalog.choices(group)[choice]
    assert line.endswith((".", "!", "}", "]")) or "=" in line, line
    assert 10 <= len(line) <= 118


@pytest.mark.parametrize("group", sorted(CODE))
def test_code_that_can_be_chosen_has_a_yaml(group: str) -> None:
    named = {raw(group, choice).get("name") for g, choice in CHOICES if g == group}
    assert set(registry.names(CODE[group])) <= named


@pytest.mark.parametrize("choice", [choice for group, choice in CHOICES if group == "precision"])
def test_a_precision_passes_every_rule_with_its_own_scaling(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check(composed("precision", choice)) == []


def in_yaml(group: str) -> set[str]:
    """Keys of a group in any YAML."""
    shared = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8")).get(group, {})
    return set(shared).union(*(raw(group, choice) for g, choice in CHOICES if g == group)) - {"defaults"}


def test_every_field_of_the_schema_has_a_default_in_yaml() -> None:
    top = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    for name, hint in get_type_hints(RunConfig).items():
        if is_dataclass(hint):
            assert {f.name for f in fields(hint)} - NOT_YAML <= in_yaml(name), name
        elif name not in NOT_YAML:
            assert name in top


@pytest.mark.parametrize("group", GROUPS)
def test_every_key_of_a_yaml_is_a_field_or_an_option(group: str) -> None:
    hint = get_type_hints(RunConfig)[group]
    own = {f.name for f in fields(hint)}
    extra = in_yaml(group) - own
    assert not extra or "options" in own


def test_ranges_and_words_are_about_keys_that_exist() -> None:
    keys = {f"{group}.{key}" for group in GROUPS for key in in_yaml(group)}
    top = {f.name for f in fields(RunConfig)}
    assert {*RANGES, *WORDS} <= keys | top


@pytest.mark.parametrize("group", ["model", "data", "task"])
def test_options_have_the_same_defaults_in_yaml_and_in_code(group: str) -> None:
    compared = 0
    for name in registry.names(CODE[group]):
        defaults = getattr(registry.load(CODE[group], name), "DEFAULTS", None)
        if defaults is None or (group, name) not in CHOICES:
            continue
        compared += 1
        own = {f.name for f in fields(get_type_hints(RunConfig)[group])}
        in_file = {key: value for key, value in raw(group, name).items() if key not in own}
        assert {k: None if v == "???" else v for k, v in in_file.items()} == defaults, name
    assert compared


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_composes_and_passes_every_rule(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = compose([f"recipe={recipe}"])
    assert cfg.recipe == recipe
    assert check(cfg) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_opens_with_what_to_expect(recipe: str) -> None:
    text = (recipes_dir() / f"{recipe}.yaml").read_text(encoding="utf-8")
    header = text.split("\ndefaults:")[0]
    assert f"mpt train recipe={recipe}" in header
    for word in ("hardware:", "minutes:", "expected:", "±", "n =", "source:"):
        assert word in header, word
