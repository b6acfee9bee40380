"""Several predictions for people, in one table: what sets each apart, and how it compares with float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mpt.plan.notes import WITH_TORCHAO
from mpt.predict.against import Against
from mpt.predict.prediction import Prediction
from mpt.predict.sections import does_not_fit, in_ms, not_counted, ratio
from mpt.predict.timing import ATTAINABLE
from mpt.report.section import Section, Table, Tone
from mpt.types import Unmeasured
from mpt.units import bytes_text, counted, number_text, seconds_text

T = TypeVar("T")
NA = "n/a"


@dataclass(frozen=True)
class OneOf:
    """A prediction among others; `listed` is what sets it apart, by key; `against` the same without its precision."""

    listed: Mapping[str, str]
    made: Prediction
    against: Against

    @property
    def label(self) -> str:
        """Choices by their name, other keys as they are typed."""
        return " ".join(f"{key}={text}" if "." in key else text for key, text in self.listed.items())

    @property
    def more_bytes(self) -> int | None:
        """At the peak, than the same in float32."""
        peak, base = self.made.memory, self.against.peak_bytes
        return None if isinstance(peak, Unmeasured) or isinstance(base, Unmeasured) else peak.peak_bytes - base


def side_by_side(several: Sequence[OneOf], price_per_h: float | None) -> Section:
    """A row each; what each run costs where an hour has a price."""
    keys = tuple(several[0].listed)
    columns: tuple[str, ...]
    columns = (*keys, "how", "peak", "against fp32", "largest batch", "step", "samples/s", "× fp32", "× tf32")
    columns += () if price_per_h is None else ("run", "cost")
    rows = tuple((*_row(one), *_price(one.made, price_per_h)) for one in several)
    table = Table(columns, rows, right=tuple(range(len(keys) + 1, len(columns))))
    return Section("precisions", _title(several), tables=(table,), notes=tuple(_notes(several, price_per_h)))


def _title(several: Sequence[OneOf]) -> str:
    """What is the same in all."""
    plans = [one.made.plan for one in several]
    parts = ([p.model for p in plans], [f"on {p.device.name}" for p in plans], [f"in {p.precision}" for p in plans])
    common = [names[0] for names in parts if len(set(names)) == 1]
    return " ".join(common) or f"{len(plans)} plans"


def _row(one: OneOf) -> tuple[str, ...]:
    p, seconds = one.made, one.against.seconds
    return (
        *one.listed.values(),
        p.plan.mechanism.backend,
        _shown(p.memory, lambda m: bytes_text(m.peak_bytes) + _beyond(p)),
        _share(one),
        _shown(p.largest_batch, lambda n: f"{n:,}"),
        _shown(p.step_s, in_ms),
        _shown(p.step_s, lambda s: number_text(p.samples / s, 3)),
        *(_times(seconds[name], p) for name in ("fp32", "tf32")),
    )


def _beyond(p: Prediction) -> str:
    """What the device has, where that is too little."""
    return "" if isinstance(p.limit_bytes, Unmeasured) or does_not_fit(p) is None else f" > {bytes_text(p.limit_bytes)}"


def _shown(value: T | Unmeasured, text: Callable[[T], str]) -> str:
    return NA if isinstance(value, Unmeasured) else text(value)


def _share(one: OneOf) -> str:
    base = one.against.peak_bytes
    return NA if one.more_bytes is None or isinstance(base, Unmeasured) else f"{one.more_bytes / base:+.0%}"


def _times(seconds: float | Unmeasured, p: Prediction) -> str:
    return NA if isinstance(seconds, Unmeasured) or isinstance(p.busy_s, Unmeasured) else ratio(seconds, p.busy_s)


def _price(p: Prediction, price_per_h: float | None) -> tuple[str, ...]:
    """Time of the whole run and what it costs."""
    if price_per_h is None:
        return ()
    if isinstance(p.step_s, Unmeasured):
        return (NA, NA)
    run_s = p.step_s * p.plan.length.steps
    return seconds_text(run_s), f"{price_per_h * p.plan.processes * run_s / 3600:.3g}"


def _notes(several: Sequence[OneOf], price_per_h: float | None) -> list[tuple[Tone, str]]:
    """Each sentence once, though several rows have it."""
    notes: list[tuple[Tone, str]] = [("", why) for why in _why_not(several)]
    notes += [("bad", f"{one.label}: {short}") for one in several if (short := does_not_fit(one.made)) is not None]
    notes += [("", what) for one in several for what in _few_samples(one.made)]
    notes += [("careful", what) for one in several for what in _costs(one)]
    notes += [("", what) for one in several for what in _emulated(one.made)]
    notes += [("", WITH_TORCHAO) for one in several if WITH_TORCHAO in one.made.plan.notes]
    notes += [("careful", what) for one in several for what in not_counted(one.made)]
    notes += [("careful", one.made.not_told) for one in several if one.made.not_told]
    if any(one.made.how.startswith(ATTAINABLE) for one in several):
        notes.append(
            ("", f"step: at {ATTAINABLE} of each device, nothing was measured; kernels may fall short of them")
        )
    if any(key != "precision" for key in several[0].listed):
        notes.append(
            ("", "against fp32, × fp32, × tf32: each row against itself in that precision, not against other rows")
        )
    if price_per_h is not None:
        told = f"in the currency of the price, {price_per_h:g} an hour of each device"
        notes.append(("", f"run, cost: of the whole run without evaluations; {told}"))
    return list(dict.fromkeys(notes))


def _why_not(several: Sequence[OneOf]) -> list[str]:
    """Reasons with the rows that have them."""
    rows: dict[str, dict[str, None]] = {}
    for one in several:
        for value in (one.made.memory, one.made.time):
            if isinstance(value, Unmeasured):
                rows.setdefault(value.reason, {})[one.label] = None
    return [f"{', '.join(labels)}: n/a: {reason}" for reason, labels in rows.items()]


def _few_samples(p: Prediction) -> list[str]:
    data, largest = p.plan.data, p.largest_batch
    if isinstance(largest, Unmeasured) or largest <= data.n_train:
        return []
    return [f"largest batch: by memory alone, {data.name} has {counted(data.n_train, 'training sample')}"]


def _costs(one: OneOf) -> list[str]:
    """Autocast that takes memory: half copies of float32 weights weigh more than what activations save."""
    if one.more_bytes is None or one.more_bytes <= 0:
        return []
    m = one.made.plan.mechanism
    what = "operands in low bits and their scales" if m.low else "copies of the weights in half"
    if m.low and m.low_how == "emulated":
        what = "rounded operands, which emulation keeps in 16 or 32 bits,"
    more = bytes_text(one.more_bytes)
    return [f"{one.label} takes {more} more than fp32: {what} weigh more than what activations save here"]


def _emulated(p: Prediction) -> list[str]:
    """Why low-bit operands or a half format are no products of the device, and what would make them so."""
    m = p.plan.mechanism
    if m.backend != "emulated":
        return []
    return [f"{p.plan.precision} is emulated: {m.low_reason if m.low and not m.emulated else m.reason}"]
