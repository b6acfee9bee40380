"""The Pareto front over quality, time and memory, and one recommendation with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpt.report.compare.configs import Config
from mpt.report.compare.judge import REFUSED, Judged, Metric, margin_of
from mpt.report.section import number
from mpt.stats.equivalence import BETTER, EQUIVALENT
from mpt.stats.ratio import Ratio
from mpt.units import listed, number_text


@dataclass(frozen=True)
class Point:
    """Means over finished runs; None: not known, or (`step_ms`) emulated and so without a claim."""

    label: str
    quality: float | None
    step_ms: float | None
    peak_bytes: float | None


@dataclass(frozen=True)
class Choice:
    """`front`: labels that no other beats; `dominated`: by label, which one beats it; `reason` is one sentence."""

    front: tuple[str, ...]
    dominated: dict[str, str]
    recommended: str | None
    reason: str


def point(config: Config, metric: Metric) -> Point:
    """Where the configuration lies."""
    runs = config.done
    return Point(
        config.label,
        _mean([metric.of(run) for run in runs]),
        None if config.emulated else _mean([number(run.data.summary, "speed", "step_p50_ms") for run in runs]),
        _mean([number(run.data.summary, "memory", "peak_bytes") for run in runs]),
    )


def choose(points: Sequence[Point], judged: Sequence[Judged], baselines: Sequence[Config], metric: Metric) -> Choice:
    """The front, and which configuration to take."""
    known = [p for p in points if p.quality is not None and p.step_ms is not None and p.peak_bytes is not None]
    beaten = {p.label: by for p in known if (by := _dominator(p, known, metric))}
    front = tuple(p.label for p in known if p.label not in beaten)
    if len(baselines) != 1:
        return Choice(
            front, beaten, None, "no single recommendation: there are several baselines, one for each setting"
        )
    label, reason = _recommended(judged, baselines[0], metric)
    return Choice(front, beaten, label, reason)


def _dominator(p: Point, others: Sequence[Point], metric: Metric) -> str | None:
    """One that is at least as good in all three and better in one."""
    mine = _costs(p, metric)
    for other in others:
        theirs = _costs(other, metric)
        if all(t <= m for t, m in zip(theirs, mine, strict=True)) and theirs != mine:
            return other.label
    return None


def _costs(p: Point, metric: Metric) -> tuple[float, float, float]:
    """Less is better in each."""
    assert p.quality is not None
    assert p.step_ms is not None
    assert p.peak_bytes is not None
    return (-p.quality if metric.more_is_better else p.quality, p.step_ms, p.peak_bytes)


def _recommended(judged: Sequence[Judged], baseline: Config, metric: Metric) -> tuple[str | None, str]:
    """The fastest of what is as good, else the smallest, else the baseline."""
    if not baseline.done:
        return None, f"no recommendation: no run of the baseline {baseline.label} finished"
    good = [j for j in judged if j.word in (EQUIVALENT, BETTER)]
    faster = [j for j in good if j.speed is not None and j.speed.shown and j.speed.value > 1]
    smaller = [j for j in good if j.speed is not None and j.memory is not None and j.memory.value < 1 - 1e-3]
    for found, figure in ((faster, _fastness), (smaller, _smallness)):
        if found:
            best = max(found, key=figure)
            return best.pairing.candidate.label, _reason(best, metric)
    return baseline.label, _baseline_reason(judged, good, baseline, metric)


def _fastness(j: Judged) -> float:
    return j.speed.value if j.speed else 0.0


def _smallness(j: Judged) -> float:
    return 1 / j.memory.value if j.memory else 0.0


def _reason(j: Judged, metric: Metric) -> str:
    pair, verdict = j.pairing, j.verdict
    assert verdict is not None
    head = f"{pair.candidate.label} is {j.word} to {pair.baseline.label}" if j.word == EQUIVALENT else (
        f"{pair.candidate.label} is better than {pair.baseline.label}"
    )  # fmt: skip
    within = f" in {metric.at} {metric.name} within ±{number_text(verdict.margin)} over {verdict.interval.n} seeds"
    speed = f", {_speed(j.speed)}" if j.speed else f", {j.speed_reason}"
    memory = f", with {times(j.memory)} the peak memory" if j.memory else ""
    return f"{head}{within}{speed}{memory}"


def _speed(ratio: Ratio) -> str:
    """A claim only where there is one."""
    return f"{times(ratio)} as fast" if ratio.shown else f"no difference in speed was shown: {times(ratio)}"


def times(ratio: Ratio) -> str:
    """`1.31 times (1.25 to 1.38)`; what one pair can't say is said."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3g} times (one pair, no spread)"
    if f"{ratio.low:.3g}" == f"{ratio.high:.3g}":
        return f"{ratio.value:.3g} times"
    return f"{ratio.value:.3g} times ({ratio.low:.3g} to {ratio.high:.3g})"


def _baseline_reason(judged: Sequence[Judged], good: Sequence[Judged], baseline: Config, metric: Metric) -> str:
    if good:
        names = [j.pairing.candidate.label for j in good]
        as_good = f"{listed(names)} {'are' if len(names) > 1 else 'is'} as good"
        if all(j.speed is None for j in good):
            return f"stay with {baseline.label} here: {as_good}, but {_no_claim(good, baseline)}"
        return f"stay with {baseline.label}: {as_good} but not shown to be faster or smaller"
    refused = all(j.word == REFUSED for j in judged)
    if judged and refused:
        return f"stay with {baseline.label}: no conclusion about the others may be drawn"
    values = [v for run in baseline.done if (v := metric.of(run)) is not None]
    mean = math.fsum(values) / len(values) if values else math.nan
    margin = f" within ±{number_text(margin_of(metric, mean))}" if values else ""
    return f"stay with {baseline.label}: nothing else was shown to be equivalent in {metric.name}{margin}"


def _no_claim(good: Sequence[Judged], baseline: Config) -> str:
    """Why none of them has a speed: all that were emulated by name, else every reason once."""
    emulated = [config.label for config in (*(j.pairing.candidate for j in good), baseline) if config.emulated]
    if emulated:
        return f"no speed claim: {listed(emulated)} {'were' if len(emulated) > 1 else 'was'} emulated"
    return "; ".join(dict.fromkeys(j.speed_reason for j in good))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known else None
