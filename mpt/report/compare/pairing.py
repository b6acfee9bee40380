"""Who is compared with whom, and what forbids a conclusion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpt.errors import ConfigError, Problem
from mpt.registry import did_you_mean
from mpt.report.compare.brief import Brief
from mpt.report.compare.configs import Config
from mpt.report.section import get, mapping

AXIS = ("precision.", "scaling.")
"""What is compared where it differs, and nothing else was asked for."""

CONFOUNDING = ("data.", "trainer.accumulate")
"""Keys that alter what a step is: a difference here is never compared unless it was asked for."""

BASELINE = "fp32"


@dataclass(frozen=True)
class Pairing:
    """A candidate and its baseline. `refused`: why no conclusion may be drawn; `notes`: differences that are told."""

    candidate: Config
    baseline: Config
    refused: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """`axis`: the keys compared. `pairs`: one for each configuration that is no baseline."""

    axis: tuple[str, ...]
    baselines: tuple[Config, ...]
    pairs: tuple[Pairing, ...]


def pairing(configs: Sequence[Config], baseline: str | None = None, axis: Sequence[str] = ()) -> Plan:
    """Each configuration with the baseline that equals it in every key but those of the axis.

    Raises: ConfigError for a baseline or an axis that is not there.
    """
    differing = list(configs[0].key)
    keys = _axis(differing, axis)
    first = _baseline(configs, baseline)
    own = {config.label: _same_stratum(config, configs, first, keys) if keys else first for config in configs}
    baselines = list({id(b): b for b in own.values() if b is not None}.values())
    pairs = []
    for config in configs:
        if config in baselines:
            continue
        base = own[config.label] or first
        pairs.append(Pairing(config, base, tuple(refusals(config, base, keys)), tuple(_notes(config, base))))
    return Plan(tuple(keys), tuple(baselines or [first]), tuple(pairs))


def swept_axis(configs: Sequence[Config], swept: Sequence[str]) -> tuple[str, ...]:
    """The keys of a sweep that was not over precision, as far as they differ: then they are what was asked about."""
    if any(key.startswith(AXIS) for key in configs[0].key):
        return ()
    return tuple(word for word in swept if any(_covers(word, key) for key in configs[0].key))


def _axis(differing: list[str], asked: Sequence[str]) -> list[str]:
    if asked:
        found = [key for key in differing if any(_covers(word, key) for word in asked)]
        lost = [word for word in asked if not any(_covers(word, key) for key in differing)]
        if lost:
            hint = did_you_mean(lost[0], differing)
            raise ConfigError(Problem("--axis", f"`{lost[0]}` does not differ between these runs", hint))
        return found
    usual = [key for key in differing if key.startswith(AXIS)]
    return usual or [key for key in differing if not key.startswith(CONFOUNDING)]


def _covers(word: str, key: str) -> bool:
    return key == word or key.startswith(f"{word}.")


def _baseline(configs: Sequence[Config], asked: str | None) -> Config:
    if asked is not None:
        for config in configs:
            if asked in (config.label, config.precision, *(str(run.data.path) for run in config.runs)):
                return config
        hint = did_you_mean(asked, [c.label for c in configs])
        raise ConfigError(Problem("--baseline", f"`{asked}` is none of the configurations compared", hint))
    return next((config for config in configs if config.precision == BASELINE), configs[0])


def _same_stratum(config: Config, configs: Sequence[Config], first: Config, axis: list[str]) -> Config | None:
    """The configuration that equals `config` off the axis and `first` on it."""
    for other in configs:
        off = all(other.key[k] == config.key[k] for k in config.key if k not in axis)
        on = all(other.key[k] == first.key[k] for k in axis)
        if off and on:
            return other
    return None


def refusals(config: Config, base: Config, axis: Sequence[str]) -> Iterator[str]:
    """Differences beyond the axis."""
    if unknown := [str(run.data.path) for run in (*config.runs, *base.runs) if not run.data.config]:
        yield f"config.yaml of {', '.join(unknown)} is missing or can't be read: nobody knows what was run"
        return
    for key in config.key:
        if key not in axis and config.key[key] != base.key[key]:
            yield f"{key}: {_typed(config.key[key])} here, {_typed(base.key[key])} in the baseline"
    if config.seeds != base.seeds:
        yield f"seeds: {_listed(config.seeds)} here, {_listed(base.seeds)} in the baseline"
    if config.device() != base.device():
        yield f"device: {', '.join(config.device())} here, {', '.join(base.device())} in the baseline"
    if "tf32" not in (config.precision, base.precision) and (found := _tf32(config, base)):
        yield found
    for seed in sorted(set(config.seeds) & set(base.seeds)):
        marks = {_fingerprint(run) for run in (*config.of(seed), *base.of(seed))} - {None}
        if len(marks) > 1 and not any(key.startswith("data.") for key in config.key):
            yield f"data: content, split or order differ for seed {seed}"
            break


def _typed(value: object) -> str:
    """As it is typed on a command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _notes(config: Config, base: Config) -> Iterator[str]:
    versions = [{str(get(run.data.env, "versions", "torch")) for run in c.runs} for c in (config, base)]
    if versions[0] != versions[1]:
        yield f"torch: {', '.join(sorted(versions[0]))} here, {', '.join(sorted(versions[1]))} in the baseline"
    flags = [_flags(c.runs) for c in (config, base)]
    other = sorted(k for k in flags[0].keys() | flags[1].keys() if flags[0].get(k) != flags[1].get(k))
    if other:
        yield f"flags that the policies set differ: {', '.join(other)}"


def _tf32(config: Config, base: Config) -> str | None:
    """TF32 was on in one and off in the other, and neither was asked to use it."""
    here, there = ({k: v for k, v in _flags(c.runs).items() if _is_tf32(k)} for c in (config, base))
    wrong = sorted(k for k in here.keys() & there.keys() if here[k] != there[k])
    told = ", ".join(f"{k}={here[k]} here, {there[k]} in the baseline" for k in wrong)
    return f"TF32: {told}" if wrong else None


def _is_tf32(flag: str) -> bool:
    return "tf32" in flag or ("fp32_precision" in flag and not flag.startswith("mkldnn"))


def _flags(runs: Sequence[Brief]) -> dict[str, str]:
    """Flags by name; runs of one configuration that disagree have both values."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, value in mapping(run.data.env, "flags").items():
            found.setdefault(str(name), set()).add(str(value))
    return {name: "|".join(sorted(values)) for name, values in found.items()}


def _fingerprint(run: Brief) -> str | None:
    value = get(run.data.summary, "data_fingerprint") or get(run.data.plan, "data", "fingerprint")
    return None if value is None else str(value)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "none"
