"""What identifies a run's result: the part of its configuration that can alter a number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mpt.config.schema import RunConfig

_OUTSIDE = (
    *("name", "run_dir", "resume", "init_from", "logger", "plugins", "recipe", "checkpoint", "debug", "guard"),
    *("numerics", "numerics_every"),
)
_RECOMPUTED = "checkpoint_activations"
"""Alters no number of a model that is not compiled; a compiler makes other kernels for it, which round elsewhere."""
_OUTSIDE_OF = {
    "trainer": ("log_every", "max_time_s", "peak_tflops", "predict", "profile", _RECOMPUTED),
    "data": ("workers", "threads", "download", "root"),
    "distributed": ("nproc", "link_gb_s"),
    "scaling": ("uses",),
}


def essence(cfg: RunConfig) -> dict[str, Any]:
    """The configuration as plain containers, without what only names, places or watches the run."""
    return essential(asdict(cfg))


def essential(document: dict[str, Any]) -> dict[str, Any]:
    """The same of a configuration in containers, as a run's config.yaml is; missing groups stay missing."""
    whole = {k: v for k, v in document.items() if k not in _OUTSIDE}
    for group, keys in _OUTSIDE_OF.items():
        if isinstance(whole.get(group), dict):
            whole[group] = {k: v for k, v in whole[group].items() if k not in keys}
    trainer = document.get("trainer")
    if isinstance(trainer, dict) and trainer.get("compile") and trainer.get(_RECOMPUTED):
        whole["trainer"][_RECOMPUTED] = trainer[_RECOMPUTED]
    return whole


def fingerprint(cfg: RunConfig) -> str:
    """Sixteen hexadecimal digits of the essence's SHA-256."""
    text = json.dumps(essence(cfg), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def told_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Keys as they are typed at which two essences differ, with both values.

    Of a group whose choice differs, what only one of the choices has is left out: it follows from the choice.
    """
    found = differences(old, new)
    keys = {key for key, _, _ in found}
    for key, was, now in found:
        group, _, leaf = key.partition(".")
        if leaf in ("name", "choice"):
            if leaf == "choice" or f"{group}.choice" not in keys:
                yield group, was, now
        elif not (keys & {f"{group}.name", f"{group}.choice"} and (was is None or now is None)):
            yield key.replace(".options.", ".", 1), was, now


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Dotted keys at which two essences differ, with both values."""
    found: list[tuple[str, Any, Any]] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append((prefix + key, a, b))
    return found
