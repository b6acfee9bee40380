"""compare.json: the comparison for scripts, and for a later `--against`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.configs import Config
from mpt.report.compare.judge import Judged, seeds_text
from mpt.report.compare.sections import sections
from mpt.report.compare.sections.scaling import scale_range, skipped_share
from mpt.report.compare.sections.speed import document as speed_document
from mpt.stats.ratio import Ratio

SCHEMA = "mpt.compare/1"


def to_json(made: Comparison) -> dict[str, Any]:
    """Plain containers; a figure that is not known is null."""
    parts = {s.key: dict(s.data) for s in sections(made) if s.data}
    return {
        "schema": SCHEMA,
        **parts["verdict"],
        "differences": parts["differences"]["keys"],
        "common_loss": parts["speed"]["common_loss"],
        "configs": [_config(config, made) for config in made.configs],
        "comparisons": [_judged(made, i) for i in range(len(made.judged))],
        "skipped": [{"path": p.where, "reason": p.what} for p in made.skipped],
    }


def _config(config: Config, made: Comparison) -> dict[str, Any]:
    i = made.configs.index(config)
    least, largest, last = scale_range(config.runs)
    return {
        "label": config.label,
        "key": config.key,
        "precision": config.precision,
        "device": list(config.device()),
        "runs": [
            {
                "path": str(run.data.path),
                "seed": run.seed,
                "status": run.data.status,
                "reason": run.data.reason,
                "steps": len(run.loss),
                "value": made.metric.of(run),
                "config_fingerprint": run.data.summary.get("config_fingerprint"),
                "data_fingerprint": run.data.summary.get("data_fingerprint"),
            }
            for run in config.runs
        ],
        **speed_document(config, made),
        "scaling": {"skipped_share": skipped_share(config.runs), "min": least, "max": largest, "final": last},
        "to_common_loss": {"steps": made.reached[i].steps, "seconds": made.reached[i].seconds},
    }


def _judged(made: Comparison, i: int) -> dict[str, Any]:
    judged, parting = made.judged[i], made.partings[i]
    return {
        "config": judged.pairing.candidate.label,
        "baseline": judged.pairing.baseline.label,
        **verdict_document(judged),
        "speed_ratio": _ratio(judged.speed),
        "speed_ratio_reason": judged.speed_reason or None,
        "memory_ratio": _ratio(judged.memory),
        "parts": None
        if parting is None
        else {
            "first_other_number": parting.first_bit,
            "leaves_noise_band": parting.first_step,
            "band": parting.noise,
            "layers": None if parting.layers is None else [asdict(layer) for layer in parting.layers],
        },
    }


def verdict_document(judged: Judged) -> dict[str, Any]:
    """Word and evidence of one comparison."""
    verdict = judged.verdict
    document: dict[str, Any] = {
        "verdict": judged.word,
        "verdict_text": seeds_text(judged),
        "sentence": judged.sentence,
        "refused_because": list(judged.pairing.refused),
        "differences_by_seed": {str(seed): value for seed, value in judged.differences.items()},
    }
    if verdict is not None:
        found = verdict.interval
        document |= {
            "n": found.n, "mean_difference": found.mean, "sd": found.sd, "low": found.low, "high": found.high,
            "margin": verdict.margin, "alpha": verdict.alpha, "p": verdict.p, "more_seeds": verdict.more_seeds,
        }  # fmt: skip
    return document


def _ratio(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {"n": ratio.n, "value": ratio.value, "low": ratio.low, "high": ratio.high, "shown": ratio.shown}
