"""Where two runs part, and when each reaches a loss that all reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpt.report.compare.brief import Brief
from mpt.report.compare.configs import Config
from mpt.report.compare.layers import LayerParting, layers_apart
from mpt.report.curves import Array

_BINS = 200
_BAND_SDS = 2.0
"""Standard deviations of the noise that a difference has to leave, in `_STAYS` bins in a row."""

_STAYS = 3


@dataclass(frozen=True)
class Parting:
    """`first_bit`: first step whose losses are not the same number, over all seeds (None: never).
    `first_step`: first step of the first stretch outside the noise band (None: never), `noise`: what the band is.
    `layers`: those whose numbers part (None: the tensors of both were not looked at)."""

    first_bit: int | None
    first_step: int | None
    noise: str
    layers: tuple[LayerParting, ...] | None = None


@dataclass(frozen=True)
class Reached:
    """Mean steps and seconds in steps until the smoothed training loss is at most `loss`; None: never, or unknown."""

    loss: float
    steps: float | None
    seconds: float | None
    n: int


def part(candidate: Config, baseline: Config) -> Parting | None:
    """Where the candidate's loss leaves the baseline's; None without a seed in common."""
    seeds = [s for s in candidate.seeds if s in baseline.seeds]
    pairs = [(candidate.of(s)[0], baseline.of(s)[0]) for s in seeds]
    if not pairs:
        return None
    bits = [step for here, there in pairs if (step := _first_bit(here, there)) is not None]
    length = min(min(len(a.loss), len(b.loss)) for a, b in pairs)
    edges = np.unique(np.linspace(0, length, min(_BINS, length) + 1).astype(np.int64))
    here = np.stack([_binned(a.loss[:length], edges) for a, _ in pairs])
    there = np.stack([_binned(b.loss[:length], edges) for _, b in pairs])
    band, noise = _band(there, pairs[0][1].loss[:length], edges)
    outside = ~(np.abs((here - there).mean(axis=0)) <= band)  # a NaN on one side is outside
    at = _stretch(outside)
    first = None if at is None else int(pairs[0][1].at[edges[at]])
    layers = layers_apart([(a.data.numerics, b.data.numerics) for a, b in pairs])
    return Parting(min(bits) if bits else None, first, noise, layers)


def common_loss(configs: Sequence[Config]) -> list[Reached]:
    """For each configuration, when it reached the lowest loss that every finished one reaches."""
    smooth = {id(run): smoothed(run.loss) for config in configs for run in config.done}
    floors = [np.nanmin(s) for s in smooth.values() if np.isfinite(s).any()]
    if not floors:
        return [Reached(float("nan"), None, None, 0) for _ in configs]
    target = float(max(floors))
    return [_reached(config, smooth, target) for config in configs]


def smoothed(loss: Array) -> Array:
    """Running mean over a hundredth of the run (at least one step); steps that were NaN or infinite are left out."""
    width = max(1, len(loss) // 100)
    finite = np.isfinite(loss)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, loss, 0.0))])
    count = np.concatenate([[0], np.cumsum(finite)])
    start = np.maximum(np.arange(len(loss)) + 1 - width, 0)
    known = count[1:] - count[start]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Array = np.where(known > 0, (total[1:] - total[start]) / known, np.nan)
    mean[: width - 1] = np.nan  # a window that is not full would make the first steps look smooth
    return mean


def _reached(config: Config, smooth: dict[int, Array], target: float) -> Reached:
    steps, seconds = [], []
    for run in config.done:
        below = np.flatnonzero(smooth[id(run)] <= target)
        if len(below):
            steps.append(float(run.at[below[0]]))
            seconds.append(float(run.elapsed_s[below[0]]))
    if not steps:
        return Reached(target, None, None, 0)
    return Reached(target, float(np.mean(steps)), float(np.mean(seconds)), len(steps))


def _first_bit(here: Brief, there: Brief) -> int | None:
    length = min(len(here.loss), len(there.loss))
    a, b = here.loss[:length], there.loss[:length]
    differ = np.flatnonzero((a != b) & ~(np.isnan(a) & np.isnan(b)))
    return int(there.at[differ[0]]) if len(differ) else None


def _binned(loss: Array, edges: NDArray[np.int64]) -> Array:
    with np.errstate(invalid="ignore"):
        sums: Array = np.add.reduceat(loss, edges[:-1])
        return sums / np.diff(edges)


def _band(there: Array, loss: Array, edges: NDArray[np.int64]) -> tuple[Array, str]:
    """How far two equal configurations may lie apart in each bin."""
    if len(there) > 1:
        sd: Array = np.sqrt(2 / len(there)) * there.std(axis=0, ddof=1)
        return _BAND_SDS * sd, f"{_BAND_SDS:g} standard deviations over the baseline's {len(there)} seeds"
    jumps = np.diff(loss, prepend=loss[:1]) / np.sqrt(2)  # neighbours share their trend: what is left is noise
    sizes = np.diff(edges)
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(np.add.reduceat(jumps**2, edges[:-1]) / sizes)
    what = f"{_BAND_SDS:g} standard deviations of the step-to-step noise of one seed, which says less than several"
    band: Array = _BAND_SDS * np.sqrt(2 / sizes) * spread
    return band, what


def _stretch(outside: Array) -> int | None:
    """The first of `_STAYS` bins in a row (or all that are left) that lie outside."""
    run = 0
    for i, out in enumerate(outside):
        run = run + 1 if out else 0
        if run == min(_STAYS, len(outside)):
            return i - run + 1
    return None
