"""Rules about CUDA graphs: whose kernels are replayed, and when that can't be."""

from __future__ import annotations

from collections.abc import Iterator

from mpt.config.schema import RunConfig
from mpt.errors import Problem


def cuda_graphs(cfg: RunConfig) -> Iterator[Problem]:
    """Graphs are recorded by the compiler; a replay overwrites what the one before it returned."""
    t = cfg.trainer
    if not t.cuda_graphs:
        return
    if not t.compile:
        what = "got `true`, but it is the compiler that records the graphs"
        yield Problem("trainer.cuda_graphs", what, "add trainer.compile=true")
    if t.accumulate > 1:
        what = f"got `true` with trainer.accumulate={t.accumulate}: a replay would overwrite the gradients before it"
        yield Problem("trainer.cuda_graphs", what, "use a larger data.batch_size instead, or leave it away")
    if t.checkpoint_activations:
        what = "got `true` with trainer.checkpoint_activations: no test of both has run on a GPU yet"
        hint = "leave trainer.cuda_graphs away: steps that need recomputation are long, and launches are little of them"
        yield Problem("trainer.cuda_graphs", what, hint)
    if cfg.device in ("cpu", "mps"):
        yield Problem("trainer.cuda_graphs", f"got `true` with device={cfg.device}", "only CUDA has graphs of kernels")


GRAPHS = (cuda_graphs,)
