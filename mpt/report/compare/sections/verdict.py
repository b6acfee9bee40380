"""Which configuration to take, and the verdict on each against its baseline."""

from __future__ import annotations

import math
from typing import Any

from mpt.report.compare.comparison import Comparison
from mpt.report.compare.configs import Config
from mpt.report.compare.judge import REFUSED, Judged, Metric, margin_of, noise_floor, seeds_text
from mpt.report.section import Section, Table, Tone, clean
from mpt.stats.equivalence import BETTER, EQUIVALENT, INCONCLUSIVE, WORSE
from mpt.units import counted, number_text

_TONES: dict[str, Tone] = {EQUIVALENT: "good", BETTER: "good", WORSE: "bad", INCONCLUSIVE: "careful", REFUSED: "bad"}


def section(made: Comparison) -> Section:
    return Section(
        key="verdict",
        title=_title(made),
        facts=tuple(_facts(made)),
        tables=(_table(made),),
        notes=tuple(_notes(made)),
        data=_data(made),
    )


def _title(made: Comparison) -> str:
    names = [clean(config.label) for config in made.configs]
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"Compared: {shown}"


def _facts(made: Comparison) -> list[tuple[str, str]]:
    metric, choice = made.metric, made.choice
    baselines = ", ".join(clean(b.label) for b in made.plan.baselines)
    facts = [
        ("recommended", clean(choice.reason)),
        ("baseline", baselines),
        ("compared by", f"{metric.at} {metric.name}, {'more' if metric.more_is_better else 'less'} is better"),
        ("margin", _margins(made)),
        ("noise floor", "; ".join(_noise(b, metric) for b in made.plan.baselines)),
    ]
    if len(made.judged) > 1:
        facts.append(("error rate", "5% for each wrong word and each comparison, not over all of them together"))
    return facts


def _margins(made: Comparison) -> str:
    told = []
    for base in made.plan.baselines:
        mean = _mean(base, made.metric)
        name = f"{clean(base.label)}: " if len(made.plan.baselines) > 1 else ""
        told.append(f"{name}±{number_text(margin_of(made.metric, mean))}" if math.isfinite(mean) else f"{name}unknown")
    return ", ".join(told) + (" (given)" if made.metric.margin is not None else " (default; --margin sets it)")


def _noise(base: Config, metric: Metric) -> str:
    floor = noise_floor(base, metric)
    seeds, repeats = floor["sd_over_seeds"], floor["sd_of_repeats"]
    over = (
        f"{number_text(seeds)} over {counted(floor['seeds'] or 0, 'seed')}"
        if seeds is not None
        else "unknown from one seed"
    )
    same = f"{number_text(repeats)} between repeats of one seed" if repeats is not None else "no seed was run twice"
    return f"{clean(base.label)}: standard deviation {over}; {same}"


def _table(made: Comparison) -> Table:
    words = {j.pairing.candidate.label: j for j in made.judged}
    rows = [_row(made, config, words.get(config.label)) for config in made.configs]
    dim = tuple(i for i, config in enumerate(made.configs) if config.label in greyed(made))
    columns = ("configuration", "verdict", "runs", f"{made.metric.at} {made.metric.name}", "best", "difference")
    return Table(columns, tuple(rows), right=(2, 3, 4, 5), dim=dim)


def greyed(made: Comparison) -> set[str]:
    """Labels that another configuration beats, and that are not recommended all the same."""
    return set(made.choice.dominated) - {made.choice.recommended}


def _row(made: Comparison, config: Config, judged: Judged | None) -> tuple[str, ...]:
    metric = made.metric
    best = Metric(metric.name, "best")
    interval = judged.verdict.interval if judged and judged.verdict and judged.verdict.interval.n else None
    difference = "-"
    if interval is not None:
        difference = f"{interval.mean:+.3g}"
        difference += f" ({interval.low:+.3g} to {interval.high:+.3g})" if interval.known else ""
    word = seeds_text(judged) if judged else "baseline"
    word += _standing(made, config.label)
    return (
        clean(config.label), word, f"{len(config.done)}/{len(config.runs)}", _spread(config, metric),
        _spread(config, best), difference,
    )  # fmt: skip


def _standing(made: Comparison, label: str) -> str:
    """Whether it is recommended, and which other has the better means: that is said as unproven where it is."""
    ahead, recommended = made.choice.dominated.get(label), label == made.choice.recommended
    if ahead is None:
        return "; recommended" if recommended else ""
    if not recommended:
        return f"; behind {clean(ahead)} by means of quality, time and memory"
    judged = next((seeds_text(j) for j in made.judged if j.pairing.candidate.label == ahead), "not judged")
    return f"; recommended, as {clean(ahead)}, ahead by its means, is not shown to be the better choice ({judged})"


def _spread(config: Config, metric: Metric) -> str:
    """Mean ± standard deviation over finished runs."""
    values = [v for run in config.done if (v := metric.of(run)) is not None]
    if not values:
        return "-"
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return number_text(mean)
    sd = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{number_text(mean)} ± {sd:.2g}"


def _mean(config: Config, metric: Metric) -> float:
    values = [v for run in config.done if (v := metric.of(run)) is not None]
    return math.fsum(values) / len(values) if values else math.nan


def _notes(made: Comparison) -> list[tuple[Tone, str]]:
    notes = [
        (_TONES[j.word], f"{clean(j.pairing.candidate.label)}: {seeds_text(j)}. {clean(j.sentence)}")
        for j in made.judged
    ]
    for j in made.judged:
        name = clean(j.pairing.candidate.label)
        if made.options.force:
            notes += [("bad", f"{name}: concluded by --force although {clean(why)}") for why in j.pairing.refused]
        notes += [("careful", f"{name}: {clean(note)}") for note in j.pairing.notes]
    if made.refused:
        notes.append(("", "--force draws conclusions all the same; --axis KEY says that the key is what is compared"))
    return notes


def _data(made: Comparison) -> dict[str, Any]:
    return {
        "metric": made.metric.name,
        "at": made.metric.at,
        "more_is_better": made.metric.more_is_better,
        "axis": list(made.plan.axis),
        "baselines": [base.label for base in made.plan.baselines],
        "noise_floor": {base.label: noise_floor(base, made.metric) for base in made.plan.baselines},
        "forced": made.options.force,
        "recommended": made.choice.recommended,
        "reason": made.choice.reason,
        "front": list(made.choice.front),
        "dominated": made.choice.dominated,
    }
