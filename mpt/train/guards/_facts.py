"""What guards are told of a run."""

from __future__ import annotations

from mpt.build import Run
from mpt.telemetry.history import Totals, read
from mpt.train.guards._base import Facts


def facts(run: Run, totals: Totals) -> Facts:
    """The strategy's limits, and questions that are asked only where something is wrong."""
    cfg, scaler = run.cfg.scaling, run.scaler
    return Facts(
        strategy=scaler.strategy,
        changes=scaler.changes,
        limit=cfg.max_consecutive_skips,
        floor=cfg.min_scale,
        ceiling=cfg.max_scale,
        grows_by_interval=cfg.growth_interval is not None,
        float16=run.cfg.precision.compute == "float16",
        exhausted=lambda: scaler.exhausted is not None and bool(read(scaler.exhausted)[0]),
        undone=lambda: totals.undone,
    )
