"""Runs that differ only in their seed are one configuration; what differs between configurations names them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpt.report.compare.brief import Brief
from mpt.report.section import clean, get

_NAMES = ("precision.name", "scaling.name", "model.choice", "data.name", "task.name", "optimizer.name", "schedule.name")
"""Keys that say the most; they name configurations where they can."""

_IMPLIED = ("precision.name", "model.choice")
"""Keys that stand without `key=` in a label."""


@dataclass(frozen=True)
class Config:
    """`key` holds the dotted keys that differ between the configurations compared, with this one's values."""

    label: str
    key: dict[str, Any]
    runs: tuple[Brief, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs if run.seed is not None}))

    @property
    def precision(self) -> str:
        return self.runs[0].precision

    @property
    def emulated(self) -> bool:
        return any(run.emulated for run in self.runs)

    @property
    def done(self) -> tuple[Brief, ...]:
        """Runs that reached their end."""
        return tuple(run for run in self.runs if run.done)

    @property
    def diverged(self) -> tuple[Brief, ...]:
        return tuple(run for run in self.runs if run.diverged)

    def of(self, seed: int) -> tuple[Brief, ...]:
        return tuple(run for run in self.runs if run.seed == seed)

    def device(self) -> tuple[str, ...]:
        """Types and names of the devices that the runs used."""
        return tuple(sorted({f"{_device(run, 'type')}: {_device(run, 'name')}" for run in self.runs}))


def configs(runs: Sequence[Brief]) -> list[Config]:
    """Configurations in the order of their first runs."""
    groups: dict[str, list[Brief]] = {}
    for run in runs:
        groups.setdefault(_text({**run.config, "precision": run.precision}), []).append(run)
    differing = differing_keys([group[0] for group in groups.values()])
    keys = [{key: group[0].config.get(key) for key in differing} for group in groups.values()]
    fallback = [group[0].precision for group in groups.values()]
    return [
        Config(label, key, tuple(group))
        for label, key, group in zip(_labels(keys, fallback), keys, groups.values(), strict=True)
    ]


def differing_keys(runs: Sequence[Brief]) -> list[str]:
    """Dotted keys whose values are not the same in all runs."""
    known = {key: None for run in runs for key in run.config}
    return [key for key in known if len({_text(run.config.get(key)) for run in runs}) > 1]


def _labels(keys: list[dict[str, Any]], fallback: list[str]) -> list[str]:
    """As few keys as tell the configurations apart, the telling ones first."""
    order = [*(n for n in _NAMES if n in keys[0]), *(k for k in keys[0] if k not in _NAMES)]
    chosen: list[str] = []
    count = 1
    for name in order:
        told = len({_text([key[n] for n in (*chosen, name)]) for key in keys})
        if told > count:
            chosen.append(name)
            count = told
    if not chosen:
        return fallback
    return [" ".join(_part(name, key[name]) for name in chosen) for key in keys]


def _part(name: str, value: Any) -> str:
    text = clean(value if isinstance(value, str) else json.dumps(value, default=str))
    return text if name in _IMPLIED else f"{name.removesuffix('.name')}={text}"


def _device(run: Brief, member: str) -> str:
    for document in (run.data.env, run.data.plan, run.data.summary):
        value = get(document, "device", member)
        if value:
            return clean(value)
    return "unknown"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
