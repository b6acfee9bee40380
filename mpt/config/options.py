"""A group's own options (keys that only one choice has), over their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean


def merged(group: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`defaults` overlaid with `options`.

    Raises: ConfigError naming every option that is not among the defaults.
    """
    unknown = [key for key in options if key not in defaults]
    if unknown:
        known = list(defaults)
        raise ConfigError(*(Problem(f"{group}.{key}", "no such option", did_you_mean(key, known)) for key in unknown))
    return {**defaults, **options}
