"""Choices of groups (`model=gpt`): are they there, and what is near when they are not."""

from __future__ import annotations

from collections.abc import Callable

from hydra.core.override_parser.types import Override, QuotedString

from mpt.errors import Problem
from mpt.registry import did_you_mean

MEANT = {
    **dict.fromkeys(("16", "amp"), "fp16` or `bf16"),
    **dict.fromkeys(("half", "float16", "16-mixed"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("32", "single", "float32", "32-true"), "fp32"),
    **{"16-true": "fp16_true", "bf16-true": "bf16_true", "tfloat32": "tf32"},
}
"""Words that other tools use for precisions, and ours."""

SWEEP_HINT = "a comma list is a sweep: add -m (--multirun)"


def choice(override: Override) -> str | Problem:
    """The one choice that `group=…` names."""
    value = override._value
    if override.is_sweep_override():
        return Problem(override.key_or_group, f"got `{override.get_value_string()}`", SWEEP_HINT)
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, (list, dict)):
        group = override.key_or_group
        some = f"{group}={','.join(map(str, value))}" if isinstance(value, list) and value else f"{group}=a,b"
        hint = f"give one choice by its name; several are a sweep: -m {some}"
        return Problem(group, f"got `{override.get_value_string()}`", hint)
    return "null" if value is None else override.get_value_string().strip()


def check_choice(group: str, value: str, known: list[str]) -> Problem | None:
    """What is wrong with `group=value`, if anything."""
    if value in known:
        return None
    if value == "null" and group == "recipe":
        return None
    if group == "precision" and value.lower() in MEANT:
        return Problem(group, f"got `{value}`", f"did you mean `{MEANT[value.lower()]}`?")
    hint = did_you_mean(value, known) if known else f"there are no choices of {group} yet"
    return Problem(group, f"got `{value}`", hint)


def unknown_group(group: str, value: str, groups: list[str], choices: Callable[[str], list[str]]) -> str:
    """A hint for a misspelt `group=value`: the nearest group, and the nearest choice in it."""
    hint = did_you_mean(group, groups)
    if not hint.startswith("did you mean"):
        owners = [g for g in groups if value in choices(g)]
        return f"did you mean `{owners[0]}={value}`?" if owners else hint
    return hint
