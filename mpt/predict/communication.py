"""What processes send to one another in a step, and how much of it shows beyond the computing. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpt.predict.fsdp_units import units
from mpt.predict.sharding import Sharding, buckets
from mpt.predict.spans import ROOT, spans
from mpt.predict.trace import Trace
from mpt.types import Unmeasured


@dataclass(frozen=True)
class Communication:
    """Of one process in a step. `sent_bytes` by what is sent; `seconds` of all of it at the link's rate, and
    `exposed_s` of what no computing hides."""

    sent_bytes: dict[str, int]
    seconds: float | Unmeasured
    exposed_s: float | Unmeasured

    @property
    def known_s(self) -> float:
        """What it adds to the step, as far as that is known."""
        return 0.0 if isinstance(self.exposed_s, Unmeasured) else self.exposed_s


NOTHING = Communication({}, 0.0, 0.0)


@dataclass(frozen=True)
class _Pass:
    """Bytes sent in a forward or a backward, and of those what is sent before or after all of its computing."""

    sent: float
    alone: float

    def exposed_s(self, rate: float, computing_s: float) -> float:
        return max(self.sent / rate - computing_s, self.alone / rate)


@dataclass(frozen=True)
class _Traffic:
    sent: dict[str, float]
    forward: _Pass
    backward: _Pass


def communication(
    trace: Trace, asked: Sharding, phases_s: Mapping[str, float], accumulate: int, link_gb_s: float | None
) -> Communication:
    """Of a trace of one process alone; `phases_s` are its seconds of forward and backward in a step.

    Rings: each of n processes sends (n - 1) / n of what is gathered or scattered, and twice that of what is averaged.
    DDP averages after the last micro-batch, FSDP gathers and scatters in each.
    """
    if asked.name == "none" or asked.nproc == 1:
        return NOTHING
    traffic = _of_ddp(trace, asked.nproc) if asked.name == "ddp" else _of_fsdp(trace, asked.nproc)
    times = 1 if asked.name == "ddp" else accumulate
    sent = {name: round(size * times) for name, size in traffic.sent.items()}
    if link_gb_s is None:
        why = Unmeasured("communication is not counted without distributed.link_gb_s")
        return Communication(sent, why, why)
    rate = link_gb_s * 1e9
    exposed_s = sum(
        each.exposed_s(rate, phases_s.get(phase, 0.0) / accumulate)
        for phase, each in (("forward", traffic.forward), ("backward", traffic.backward))
    )
    return Communication(sent, sum(sent.values()) / rate, exposed_s * times)


def _of_ddp(trace: Trace, n: int) -> _Traffic:
    """A bucket is sent while gradients of the next are computed; after the last there is nothing to compute."""
    factor = 2 * (n - 1) / n
    sizes = [factor * sum(bucket) for bucket in buckets(trace)]
    return _Traffic({"gradients": sum(sizes)}, _Pass(0, 0), _Pass(sum(sizes), sizes[-1]))


def _of_fsdp(trace: Trace, n: int) -> _Traffic:
    """Nothing runs before the root and the first block are there, nor after the root's gradients; all but the root is
    gathered twice."""
    every = units(trace)
    weights = {block: (n - 1) * unit.shard(n) for block, unit in every.items()}
    gradients = {block: (n - 1) * unit.gradients(n) for block, unit in every.items()}
    order = [span.block for span in next(spans(trace)).forward if span.block in every]
    forward = _Pass(sum(weights.values()), sum(weights[block] for block in order[:2]))
    again = sum(size for block, size in weights.items() if block != ROOT)
    backward = _Pass(again + sum(gradients.values()), gradients.get(ROOT, 0))
    return _Traffic({"weights": forward.sent + again, "gradients": sum(gradients.values())}, forward, backward)
