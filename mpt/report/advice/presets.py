"""Strategies with their constants, as conf/scaling/ has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from mpt.config.paths import conf_dir

Constants = Mapping[str, Any]


def presets() -> dict[str, Constants]:
    """Every strategy that can be chosen, by name, the simplest first."""
    found: dict[str, Constants] = {}
    for path in sorted((conf_dir() / "scaling").glob("*.yaml")):
        constants = yaml.safe_load(path.read_text(encoding="utf-8"))
        if constants["name"] != "auto":
            found[path.stem] = constants
    return dict(sorted(found.items(), key=lambda item: (item[0] not in ("none", "static"), item[0])))


def own(config: Mapping[str, Any]) -> Constants | None:
    """The run's own scaling; None where its configuration has none."""
    scaling = config.get("scaling")
    return scaling if isinstance(scaling, dict) and scaling.get("name") else None
