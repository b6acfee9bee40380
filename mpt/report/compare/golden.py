"""Today's runs against a compare.json that was kept: each configuration with itself, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt.errors import Problem, RecordError
from mpt.record.strict import loads
from mpt.report.compare.configs import Config
from mpt.report.compare.document import SCHEMA
from mpt.report.compare.judge import REFUSED, Metric, margin_of, sentence
from mpt.report.section import Section, Table, clean, objects
from mpt.stats.equivalence import INCONCLUSIVE, WORSE, Verdict, paired

_HINT = "give a compare.json that `mpt compare` wrote"


@dataclass(frozen=True)
class Held:
    """One configuration against its golden self."""

    label: str
    word: str
    sentence: str
    verdict: Verdict | None


def load(path: Path) -> dict[str, Any]:
    """The kept comparison. Raises: RecordError for anything else."""
    try:
        document = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(Problem(str(path), f"can't be read: {error}", _HINT)) from error
    got = document.get("schema") if isinstance(document, dict) else None
    if got != SCHEMA:
        raise RecordError(Problem(str(path), f"schema {got}, this version reads {SCHEMA}", _HINT))
    return dict(document)


def hold(golden: dict[str, Any], configs: Sequence[Config], metric: Metric, *, force: bool) -> list[Held]:
    """The verdict on each configuration of `golden`; one that is missing today is refused, not passed over."""
    assert golden["metric"] == metric.name, "the caller asks for the golden metric"
    return [_one(row, _today(row, configs), metric, force) for row in objects(golden, "configs")]


def _today(row: dict[str, Any], configs: Sequence[Config]) -> Config | None:
    """The configuration with the same runs by fingerprint, else by label."""
    marks = {_mark(run) for run in objects(row, "runs")} - {None}
    for config in configs:
        if marks & {(r.seed, r.data.summary.get("config_fingerprint")) for r in config.runs}:
            return config
    return next((config for config in configs if config.label == row.get("label")), None)


def _mark(run: dict[str, Any]) -> tuple[Any, Any] | None:
    return (run.get("seed"), run["config_fingerprint"]) if run.get("config_fingerprint") else None


def _one(row: dict[str, Any], config: Config | None, metric: Metric, force: bool) -> Held:
    label = str(row.get("label"))
    if config is None:
        return Held(label, REFUSED, "not among today's runs", None)
    refused = list(_refusals(row, config))
    if refused and not force:
        return Held(label, REFUSED, "; ".join(refused), None)
    if config.diverged and not any(run.get("status") == "diverged" for run in objects(row, "runs")):
        return Held(label, WORSE, f"diverged in {len(config.diverged)} of {len(config.runs)} runs, then in none", None)
    old = {run["seed"]: run["value"] for run in objects(row, "runs") if isinstance(run.get("value"), (int, float))}
    differences = list(_differences(old, config, metric))
    base = math.fsum(old.values()) / len(old) if old else math.nan
    margin = margin_of(metric, base)
    if not differences or not math.isfinite(margin) or margin <= 0:
        return Held(label, INCONCLUSIVE, f"{metric.name} is not known for a common seed", None)
    verdict = paired(differences, margin)
    if all(d == 0 for d in differences):
        return Held(label, "equivalent", f"{metric.name} is the same number for {len(differences)} seeds", verdict)
    return Held(label, verdict.word, sentence(verdict, metric), verdict)


def _differences(old: dict[Any, float], config: Config, metric: Metric) -> list[float]:
    sign = 1.0 if metric.more_is_better else -1.0
    found = []
    for seed in config.seeds:
        values = [v for run in config.of(seed) if run.done and (v := metric.of(run)) is not None]
        if values and seed in old:
            found.append(sign * (math.fsum(values) / len(values) - old[seed]))
    return found


def _refusals(row: dict[str, Any], config: Config) -> list[str]:
    """What forbids a conclusion."""
    found = []
    if row.get("device") != list(config.device()):
        found.append(f"device: {', '.join(config.device())} now, {', '.join(map(str, row.get('device') or []))} then")
    seeds = sorted({run["seed"] for run in objects(row, "runs") if isinstance(run.get("seed"), int)})
    if seeds != list(config.seeds):
        found.append(f"seeds: {list(config.seeds)} now, {seeds} then")
    for run in objects(row, "runs"):
        here = {r.data.summary.get("data_fingerprint") for r in config.of(run.get("seed") or 0)} - {None}
        if here and run.get("data_fingerprint") and run["data_fingerprint"] not in here:
            found.append(f"data: content, split or order differ for seed {run.get('seed')}")
            break
    return found


def section(held: Sequence[Held], path: Path) -> Section:
    """The verdicts as a part of the report."""
    rows = tuple((clean(h.label), h.word, clean(h.sentence)) for h in held)
    table = Table(("configuration", "verdict", "why"), rows)
    return Section("golden", f"Against {clean(path.name)}", tables=(table,), data={"verdicts": _data(held)})


def _data(held: Sequence[Held]) -> list[dict[str, Any]]:
    return [{"config": h.label, "verdict": h.word, "sentence": h.sentence} for h in held]
