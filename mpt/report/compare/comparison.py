"""Everything that is said about several runs, worked out once for terminal, HTML, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpt.errors import Problem, RecordError
from mpt.report.compare.brief import Brief, briefs
from mpt.report.compare.choice import Choice, Point, choose, point
from mpt.report.compare.configs import Config, configs
from mpt.report.compare.find import lost_jobs, run_folders
from mpt.report.compare.judge import REFUSED, Judged, Metric, judge, metric_for
from mpt.report.compare.pairing import Plan, pairing, swept_axis
from mpt.report.compare.parting import Parting, Reached, common_loss, part


@dataclass(frozen=True)
class Options:
    """What was asked of a comparison. `margin`: a number, and whether it is a share of the baseline;
    `swept`: keys that a sweep was over."""

    baseline: str | None = None
    axis: tuple[str, ...] = ()
    metric: str | None = None
    at: str = "final"
    margin: tuple[float, bool] | None = None
    force: bool = False
    price_per_h: float | None = None
    swept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """`partings` and `reached` follow the order of `judged` and `configs`; `skipped` says which folders are missing."""

    options: Options
    configs: tuple[Config, ...]
    plan: Plan
    metric: Metric
    judged: tuple[Judged, ...]
    points: tuple[Point, ...]
    choice: Choice
    partings: tuple[Parting | None, ...]
    reached: tuple[Reached, ...]
    skipped: tuple[Problem, ...]

    @property
    def runs(self) -> tuple[Brief, ...]:
        return tuple(run for config in self.configs for run in config.runs)

    @property
    def refused(self) -> bool:
        """Whether there was something to judge and no conclusion may be drawn about any of it."""
        return bool(self.judged) and all(j.word == REFUSED for j in self.judged)


def read(given: Sequence[str | Path]) -> tuple[list[Brief], list[Problem]]:
    """The runs in the folders given, and why others were skipped. Raises: RecordError when there is none."""
    runs, skipped = briefs(run_folders(given))
    skipped += lost_jobs(given)
    if not runs:
        raise RecordError(*(skipped or [Problem("mpt compare", "no run folder was given")]))
    return runs, skipped


def compare(runs: Sequence[Brief], skipped: Sequence[Problem], options: Options) -> Comparison:
    """Raises: ConfigError for a baseline, metric or axis that is not there."""
    found = configs(runs)
    plan = pairing(found, options.baseline, options.axis or swept_axis(found, options.swept))
    found.sort(key=lambda config: config not in plan.baselines)
    metric = metric_for(runs, options.metric, options.at, options.margin)
    judged = tuple(judge(pair, metric, force=options.force) for pair in plan.pairs)
    points = tuple(point(config, metric) for config in found)
    return Comparison(
        options=options,
        configs=tuple(found),
        plan=plan,
        metric=metric,
        judged=judged,
        points=points,
        choice=choose(points, judged, plan.baselines, metric),
        partings=tuple(part(pair.candidate, pair.baseline) for pair in plan.pairs),
        reached=tuple(common_loss(found)),
        skipped=tuple(skipped),
    )
