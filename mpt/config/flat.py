"""A RunConfig as dotted keys and values, in the schema's order."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from mpt.config.schema import RunConfig


def flatten(cfg: RunConfig) -> dict[str, Any]:
    """`{"trainer.max_steps": 3, …}`; options stand beside their group's fields."""
    found: dict[str, Any] = {}
    for field in fields(cfg):
        value = getattr(cfg, field.name)
        if not is_dataclass(value):
            found[field.name] = value
            continue
        for inner in fields(value):
            held = getattr(value, inner.name)
            if inner.name == "options":
                found |= {f"{field.name}.{key}": option for key, option in held.items()}
            else:
                found[f"{field.name}.{inner.name}"] = held
    return found
