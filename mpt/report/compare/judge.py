"""The verdict on each configuration against its baseline: quality, speed and memory, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean
from mpt.report.compare.brief import Brief
from mpt.report.compare.configs import Config
from mpt.report.compare.pairing import Pairing
from mpt.report.section import get, number
from mpt.stats.equivalence import INCONCLUSIVE, WORSE, Verdict, interval_of, paired
from mpt.stats.ratio import Ratio, ratio_of
from mpt.units import number_text

REFUSED = "refused"
"""The word where a conclusion may not be drawn."""

MORE_IS_BETTER = ("accuracy",)

ACCURACY_MARGIN = 0.005
"""Half a point: above the 0.1 to 0.2 points by which seeds of a ResNet-50 differ."""

RELATIVE_MARGIN = 0.01
"""Of the baseline's mean, for losses and perplexities."""

_PREFERRED = ("accuracy", "perplexity", "eval_loss", "train_loss")


@dataclass(frozen=True)
class Metric:
    """`at` is final or best. `margin` None: the default for the metric; `relative`: it is a share of the baseline."""

    name: str
    at: str
    margin: float | None = None
    relative: bool = False

    @property
    def more_is_better(self) -> bool:
        return self.name in MORE_IS_BETTER

    def of(self, run: Brief) -> float | None:
        return run.metric(self.name, self.at)


@dataclass(frozen=True)
class Judged:
    """What is said of one pairing. `differences`: candidate minus baseline by seed, signed so that more is better."""

    pairing: Pairing
    word: str
    sentence: str
    verdict: Verdict | None
    differences: dict[int, float]
    speed: Ratio | None
    speed_reason: str
    memory: Ratio | None


def metric_for(runs: Sequence[Brief], asked: str | None, at: str, margin: tuple[float, bool] | None) -> Metric:
    """The metric that all finished runs have, by preference. Raises: ConfigError for one that none has."""
    names = {name for run in runs for name in (get(run.data.summary, at) or {}) if run.metric(name, at) is not None}
    if asked is not None and asked not in names:
        hint = did_you_mean(asked, sorted(names))
        raise ConfigError(Problem("--metric", f"no run has `{asked}` among its {at} figures", hint))
    common = [name for name in _PREFERRED if all(run.metric(name, at) is not None for run in runs if run.done)]
    known = [*common, *(name for name in _PREFERRED if name in names)]
    name = asked or (known[0] if known else "eval_loss")
    return Metric(name, at, *(margin or (None, False)))


def margin_of(metric: Metric, baseline_mean: float) -> float:
    """The margin in the metric's unit."""
    if metric.margin is not None:
        return metric.margin * (abs(baseline_mean) if metric.relative else 1.0)
    return ACCURACY_MARGIN if metric.more_is_better else RELATIVE_MARGIN * abs(baseline_mean)


def judge(pair: Pairing, metric: Metric, *, force: bool) -> Judged:
    """The verdict on one pairing."""
    if pair.refused and not force:
        return Judged(pair, REFUSED, f"no conclusion: {'; '.join(pair.refused)}", None, {}, None, "refused", None)
    differences, base = _differences(pair, metric)
    speed, why = _speed(pair)
    memory = ratio_of(_pairs(pair, lambda run: number(run.data.summary, "memory", "peak_bytes")))
    verdict = _verdict(pair, metric, list(differences.values()), base)
    word, sentence = _told(pair, metric, verdict)
    return Judged(pair, word, sentence, verdict, differences, speed, why, memory)


def noise_floor(config: Config, metric: Metric) -> dict[str, float | int | None]:
    """Standard deviations of the metric over seeds, and over repeats of the same seed; None where there are none."""
    by_seed = [[v for run in config.of(seed) if (v := metric.of(run)) is not None] for seed in config.seeds]
    means = [math.fsum(values) / len(values) for values in by_seed if values]
    repeats = [v - math.fsum(values) / len(values) for values in by_seed if len(values) > 1 for v in values]
    freedom = len(repeats) - sum(len(values) > 1 for values in by_seed)
    return {
        "seeds": len(means),
        "sd_over_seeds": interval_of(means).sd if len(means) > 1 else None,
        "sd_of_repeats": math.sqrt(math.fsum(r * r for r in repeats) / freedom) if freedom > 0 else None,
    }


def _verdict(pair: Pairing, metric: Metric, differences: list[float], base: float) -> Verdict | None:
    margin = margin_of(metric, base)
    if not math.isfinite(margin) or margin <= 0:
        return None
    return paired(differences, margin, resolution=_resolution(pair, metric))


def _resolution(pair: Pairing, metric: Metric) -> float:
    """An accuracy's step: one evaluation sample."""
    n = number(pair.baseline.runs[0].data.plan, "data", "n_eval")
    return 1 / n if metric.more_is_better and n else 0.0


def _differences(pair: Pairing, metric: Metric) -> tuple[dict[int, float], float]:
    """By seed, and the baseline's mean."""
    sign = 1.0 if metric.more_is_better else -1.0
    seeds = [s for s in pair.candidate.seeds if s in pair.baseline.seeds]
    found, bases = {}, []
    for seed in seeds:
        here, there = _mean(pair.candidate.of(seed), metric.of), _mean(pair.baseline.of(seed), metric.of)
        if here is not None and there is not None:
            found[seed] = sign * (here - there)
            bases.append(there)
    return found, math.fsum(bases) / len(bases) if bases else math.nan


def _mean(runs: Sequence[Brief], figure: Callable[[Brief], float | None]) -> float | None:
    """Over finished runs that have the figure."""
    values = [v for run in runs if run.done and (v := figure(run)) is not None]
    return math.fsum(values) / len(values) if values else None


def _pairs(
    pair: Pairing, figure: Callable[[Brief], float | None], seeds: Sequence[int] | None = None
) -> list[tuple[float, float]]:
    """(candidate, baseline) of every seed that both have, or of those `seeds`."""
    taken = pair.candidate.seeds if seeds is None else seeds
    both = ((pair.candidate.of(s), pair.baseline.of(s)) for s in taken)
    means = ((_mean(here, figure), _mean(there, figure)) for here, there in both)
    return [(here, there) for here, there in means if here is not None and there is not None]


def _speed(pair: Pairing) -> tuple[Ratio | None, str]:
    for config in (pair.candidate, pair.baseline):
        if config.emulated:
            return None, f"no speed claim: {config.label} was emulated"
    if pair.candidate.device() != pair.baseline.device():
        return None, "no speed claim: the devices differ"
    seeds = [s for s in pair.candidate.seeds if _levels(pair.candidate, s) == _levels(pair.baseline, s)]
    common = set(pair.candidate.seeds) & set(pair.baseline.seeds)
    if common and not common & set(seeds):
        return None, "no speed claim: numerics differ, and looking at them slows steps"
    found = ratio_of(_pairs(pair, lambda run: number(run.data.summary, "speed", "samples_per_s"), seeds))
    return found, "" if found else "no speed claim: throughput was not measured in both"


def _levels(config: Config, seed: int) -> set[str]:
    """What was looked at in its finished runs of that seed."""
    return {run.numerics for run in config.of(seed) if run.done}


def _told(pair: Pairing, metric: Metric, verdict: Verdict | None) -> tuple[str, str]:
    """The word and a sentence; divergence counts as worse, whatever the others reached."""
    lost, runs = len(pair.candidate.diverged), len(pair.candidate.runs)
    if lost and not pair.baseline.diverged:
        return WORSE, f"diverged in {lost} of {runs} runs, the baseline in none"
    missing = [run.data.status for run in pair.candidate.runs if not run.done]
    tail = f" ({len(missing)} of {runs} runs left out: {', '.join(sorted(set(missing)))})" if missing else ""
    if verdict is None:
        return INCONCLUSIVE, f"{metric.name} is not known for a common seed{tail}"
    return verdict.word, sentence(verdict, metric) + tail


def sentence(verdict: Verdict, metric: Metric) -> str:
    """The evidence in words."""
    found, margin = verdict.interval, number_text(verdict.margin)
    name, better = metric.name, "more is better" if metric.more_is_better else "less is better, so the sign is turned"
    if found.n == 0:
        return f"no seed in common has {name} in both: nothing can be said"
    if not found.known:
        return (
            f"{name} differs by {found.mean:+.3g} in one seed ({better}): a single pair has no spread, so neither "
            f"equivalence within ±{margin} nor a difference can be told from chance"
        )
    bounds = f"{name} differs by {found.mean:+.3g}, 90% interval {found.low:+.3g} to {found.high:+.3g} ({better})"
    pairs = f"over {found.n} paired seeds, margin ±{margin}"
    return f"{bounds}, {pairs}" + (f", p = {verdict.p:.2g}" if verdict.word != INCONCLUSIVE else "")


def seeds_text(judged: Judged) -> str:
    """`inconclusive: 4 more seeds needed`, or the word."""
    if judged.word != INCONCLUSIVE or judged.verdict is None:
        return judged.word
    more = judged.verdict.more_seeds
    if not judged.verdict.interval.known:
        return f"{judged.word}: at least {more} more seed{'s' if more != 1 else ''} needed"
    if more is None:
        return f"{judged.word}: over 1000 more seeds needed, the difference is about the margin"
    return f"{judged.word}: {more} more seed{'s' if more != 1 else ''} needed"
