"""Every policy in conf/ on both data sets: what is planned is seen, and a few updates lower the loss."""

from __future__ import annotations

import pytest
import torch

from mpt.build import build
from mpt.config import catalog
from mpt.config.check import require
from mpt.config.compose import compose
from mpt.precision import Auditor
from mpt.precision.switches import flags
from mpt.train.engine import make_engine

NETS = {
    "digits/small_cnn": ("model=small_cnn", "model.width=32", "data=digits", "data.batch_size=8", "data.limit=64"),
    "shakespeare/gpt": (
        *("model=gpt", "model.layers=1", "model.width=32", "model.heads=2", "model.context=16"),
        *("data=shakespeare", "data.batch_size=4", "data.limit=64"),
    ),
}
STEPS = 5


@pytest.mark.parametrize("net", list(NETS))
@pytest.mark.parametrize("choice", sorted(catalog.choices("precision")))
def test_a_policy_trains_and_its_audit_matches(choice: str, net: str) -> None:
    words = (*NETS[net], f"precision={choice}", f"trainer.max_steps={STEPS}", "optimizer.lr=5e-3", "schedule=constant")
    cfg = require(compose([*words, "device=cpu", "trainer.onednn=false", "schedule.warmup=0"]))
    run = build(cfg)
    stepper, batches = make_engine(run).stepper, run.data.train(start=0)
    batch = next(batches)
    with flags(cfg.precision, run.plan.device):
        with Auditor(run.model, run.plan.rows, cfg.precision, run.plan.mechanism) as auditor:
            attempts = [stepper([batch])]
        attempts += [stepper([batch]) for _ in range(STEPS - 1)]
    run.data.close()
    audit = auditor.result()
    assert audit.verdict == "match", [row for row in audit.rows if not row.matches]
    losses = torch.stack([a.loss_sum for a in attempts]).float()
    assert losses.isfinite().all()
    assert losses[-1] < losses[0]
