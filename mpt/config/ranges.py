"""What each single key may be, as data: ranges of numbers and lists of words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpt.errors import Problem
from mpt.formats.table import COMPUTE, FORMATS
from mpt.registry import did_you_mean


@dataclass(frozen=True)
class Range:
    """An interval; `above` and `below` exclude their ends."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        """Whether value lies inside."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = ("≥", self.least), (">", self.above), ("≤", self.most), ("<", self.below)
        return " and ".join(f"{sign} {_bound(bound)}" for sign, bound in bounds if bound is not None)


def _bound(bound: float) -> str:
    """Powers of two that decimals would hide as such."""
    return f"2^{math.log2(bound):g}" if bound > 2.0**53 and math.log2(bound).is_integer() else f"{bound:.15g}"


COUNT, COUNT_OR_ZERO, POSITIVE, NOT_NEGATIVE = Range(least=1), Range(least=0), Range(above=0), Range(least=0)
SHARE, OPEN_SHARE, BELOW_ONE = Range(least=0, most=1), Range(above=0, below=1), Range(least=0, below=1)
SCALE = Range(above=0, most=2.0**127)  # a power of 2 that float32, which holds the scale, can be

_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # of float32's normal numbers
_ON_THE_HOST = frozenset({"trainer.max_epochs", "trainer.max_time_s", "trainer.target", "trainer.peak_tflops"})
"""Numbers that no device computes with."""

RANGES: dict[str, Range] = {
    "seed": Range(least=0, below=2**63),
    **dict.fromkeys(("data.batch_size", "data.eval_batch_size", "data.image_size", "data.limit"), COUNT),
    "data.workers": COUNT_OR_ZERO,
    "data.std": POSITIVE,
    **dict.fromkeys(("scaling.init_scale", "scaling.min_scale", "scaling.max_scale"), SCALE),
    "scaling.growth_factor": Range(above=1),
    "scaling.backoff_factor": OPEN_SHARE,
    **dict.fromkeys(("scaling.growth_interval", "scaling.hysteresis", "scaling.max_consecutive_skips"), COUNT),
    "scaling.log_max": Range(above=0, most=127),
    **dict.fromkeys(("scaling.beta1", "scaling.beta2"), BELOW_ONE),
    "scaling.overflow_std_dev": NOT_NEGATIVE,
    "scaling.headroom_bits": Range(least=0, most=15),
    "scaling.max_exponent": Range(least=1, most=14),
    "optimizer.lr": POSITIVE,
    **dict.fromkeys(("optimizer.weight_decay", "optimizer.eps"), NOT_NEGATIVE),
    **dict.fromkeys(("optimizer.momentum", "optimizer.betas", "optimizer.alpha"), BELOW_ONE),
    **dict.fromkeys(("optimizer.max_iter", "optimizer.history_size"), COUNT),
    "schedule.warmup": COUNT_OR_ZERO,
    **dict.fromkeys(("schedule.final_frac", "schedule.pct_start", "schedule.start_frac"), SHARE),
    "schedule.gamma": POSITIVE,
    "schedule.every": COUNT,
    **dict.fromkeys(("trainer.max_epochs", "trainer.max_time_s", "trainer.clip_norm", "trainer.peak_tflops"), POSITIVE),
    "distributed.link_gb_s": POSITIVE,
    **dict.fromkeys(("trainer.max_steps", "trainer.patience", "trainer.accumulate", "trainer.log_every"), COUNT),
    **dict.fromkeys(("trainer.threads", "trainer.profile", "numerics_every"), COUNT),
    "trainer.eval_every": COUNT_OR_ZERO,
    "trainer.ema_decay": OPEN_SHARE,
    **dict.fromkeys(
        ("guard.floor_skips", "guard.falling_window", "guard.sawtooth_teeth", "guard.ceiling_steps"), COUNT
    ),
    **dict.fromkeys(("guard.nonfinite_steps", "guard.rollback_attempts", "guard.rollback_steps"), COUNT),
    "guard.spike_score": POSITIVE,
    "guard.spike_window": Range(least=20),
    "guard.rollback_margin": COUNT_OR_ZERO,
    "guard.rollback_scale": POSITIVE,
    "guard.rollback_lr": Range(above=0, most=1),
    "distributed.nproc": COUNT,
    "checkpoint.every": COUNT_OR_ZERO,
    "checkpoint.keep": COUNT,
    **dict.fromkeys(("model.width", "model.depth", "model.layers", "model.heads", "model.context"), COUNT),
    "model.dropout": BELOW_ONE,
    "task.label_smoothing": BELOW_ONE,
}
"""By dotted key; of a list, each number. Every other number need only be finite."""

_EXAMPLES = {
    **{"optimizer.lr": "1e-3", "optimizer.betas": "[0.9,0.999]", "data.std": "[0.5]", "data.mean": "[0.5]"},
    **{"schedule.gamma": "0.999", "scaling.init_scale": "65536", "scaling.growth_factor": "2"},
    **{"trainer.clip_norm": "1", "scaling.backoff_factor": "0.5", "trainer.ema_decay": "0.999"},
    **{"trainer.max_epochs": "10", "trainer.max_time_s": "3600", "scaling.max_scale": "16777216"},
    **{"task.loss_weight": "1", "trainer.peak_tflops": "989", "distributed.link_gb_s": "50"},
}
"""A sensible value where the least of the range is none."""

STORED = tuple(name for name in COMPUTE if FORMATS[name].storage == name)
"""Formats that tensors have; TF32 is a way to multiply."""

WORDS: dict[str, tuple[str, ...]] = {
    "data.on_error": ("error", "skip"),
    "precision.backend": ("auto", "native", "emulated"),
    "precision.compute": COMPUTE,
    "precision.param": STORED,
    "precision.master": ("float32", "split"),
    "precision.moment": (*STORED, "int8"),
    "precision.update_rounding": ("nearest", "stochastic"),
    "optimizer.fused": ("auto", "true", "false"),
    "trainer.eval_precision": ("same", "fp32"),
    **dict.fromkeys(("trainer.channels_last", "trainer.predict", "data.threads"), ("auto", "true", "false")),
    "trainer.onednn": ("auto", "false"),
    **dict.fromkeys(("guard.nonfinite", "guard.spike"), ("stop", "skip", "rollback", "warn", "off")),
    **dict.fromkeys(
        ("guard.skips", "guard.floor", "guard.falling", "guard.sawtooth", "guard.ceiling"),
        ("stop", "rollback", "warn", "off"),
    ),
    "guard.rollback_precision": ("same", "fp32"),
    "numerics": ("off", "light", "full"),
    "logger": ("tensorboard", "wandb", "mlflow", "trackio"),
}
"""By dotted key; of a list, each word."""


def range_problems(values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with single values, by dotted key; None is always right."""
    return [problem for key, value in values.items() for problem in _of(key, value)]


def _of(key: str, value: Any) -> Iterator[Problem]:
    for item in value if isinstance(value, list) else [value]:
        if key in WORDS and item is not None and item not in WORDS[key]:
            known = WORDS[key]
            yield Problem(key, f"got `{item}`, want one of {', '.join(known)}", _nearest(str(item), known))
        elif isinstance(item, float) and not math.isfinite(item):
            yield Problem(key, f"got {item}, want a finite number{_range_of(key, ' ')}", _example(key))
        elif key in RANGES and isinstance(item, str):
            yield Problem(key, f"got `{item}`, want a number{_range_of(key, ' ')}", reckoned(item) or _example(key))
        elif key in RANGES and item is not None and not RANGES[key].holds(item):
            yield Problem(key, f"got {_short(item)}, want a number{_range_of(key, ' ')}", _example(key))
        elif isinstance(item, float) and key not in _ON_THE_HOST and not _in_float32(item):
            what = f"got {item}, which float32 does not hold: want {_SMALLEST:.2g} to {_LARGEST:.2g} in size"
            yield Problem(key, what, _example(key))


def _short(item: Any) -> Any:
    """0 for 0.0, which nobody typed."""
    return int(item) if isinstance(item, float) and item.is_integer() and abs(item) < 1e15 else item


def _in_float32(value: float) -> bool:
    return value == 0 or _SMALLEST <= abs(value) <= _LARGEST


def _range_of(key: str, before: str) -> str:
    return f"{before}{RANGES[key]}" if key in RANGES else ""


def _example(key: str) -> str:
    """A value that would do."""
    least = RANGES[key].least if key in RANGES else None
    known = _EXAMPLES.get(key, None if least is None else f"{least:g}")
    return f"e.g. {key}={known}" if known else "leave it away for its default"


def reckoned(text: str) -> str:
    """What a power or a quotient that was typed as text comes to, as a next move; empty for other text."""
    match = _SUM.fullmatch(text)
    if not match:
        return ""
    left, sign, right = float(match[1]), match[2], float(match[3])
    try:
        result = left / right if sign == "/" else left**right
    except (OverflowError, ZeroDivisionError):
        return ""
    return f"write {result:.15g}" if math.isfinite(result) else ""


_SUM = re.compile(r"\s*(\d+\.?\d*)\s*(\*\*|/)\s*(-?\d+\.?\d*)\s*")


def _nearest(word: str, known: tuple[str, ...]) -> str:
    hint = did_you_mean(word, known)
    return hint if hint.startswith("did") else ""
