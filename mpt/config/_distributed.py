"""Rules about several processes: they are planned, and not trained with."""

from __future__ import annotations

from collections.abc import Iterator

from mpt.config.schema import RunConfig
from mpt.errors import Problem


def one_process(cfg: RunConfig) -> Iterator[Problem]:
    """Runs, of which there is nothing left undone in silence."""
    d = cfg.distributed
    if d.name != "none":
        what = f"got `{d.name}`, but this version trains with one process"
        yield Problem(
            "distributed", what, f"`mpt plan … {_planned(cfg)}` predicts memory and time; to train leave it away"
        )
    elif d.nproc not in (None, 1):
        yield Problem(
            "distributed.nproc", f"got {d.nproc} with distributed=none", "this version trains with one process"
        )


def _planned(cfg: RunConfig) -> str:
    return f"distributed={cfg.distributed.name} distributed.nproc={cfg.distributed.nproc or 8}"


def number_of_processes(cfg: RunConfig) -> Iterator[Problem]:
    """Plans are of a given number of them."""
    d = cfg.distributed
    if d.name == "none" and d.nproc not in (None, 1):
        yield Problem("distributed.nproc", f"got {d.nproc} with distributed=none", "say distributed=ddp or fsdp")
    if d.name != "none" and d.nproc is None:
        yield Problem(
            "distributed.nproc", f"got null with distributed={d.name}", "say how many, e.g. distributed.nproc=8"
        )


def link(cfg: RunConfig) -> Iterator[Problem]:
    """One process sends nothing."""
    d = cfg.distributed
    if d.name == "none" and d.link_gb_s is not None:
        yield Problem("distributed.link_gb_s", f"got {d.link_gb_s:g} with distributed=none", "leave it away")


def layout(cfg: RunConfig) -> Iterator[Problem]:
    """torch's fully_shard: "does not support non-contiguous parameters"."""
    if cfg.distributed.name == "fsdp" and cfg.trainer.channels_last == "true":
        what = "got `true` with distributed=fsdp, which cuts contiguous weights only"
        yield Problem("trainer.channels_last", what, "leave it away, or use distributed=ddp")


RULES = (link, layout)
OF_RUNS = (one_process,)
OF_PLANS = (number_of_processes,)
