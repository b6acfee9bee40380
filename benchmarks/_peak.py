"""One process whose memory row 9 reads: `_peak.py runner|expert NET`. Prints bytes as JSON.

The peak is VmHWM less RssFile: pages of libraries' code, which the kernel can drop at any time, count in VmHWM too.
Both processes first import the same modules and run the same few products, so that what differs is what the loops hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch
import torch._dynamo  # torch.optim imports it in its first step, mpt never does: here it is in both processes
from _peers import Expert, Table

from mpt import registry
from mpt.build import channels_last
from mpt.config.compose import compose
from mpt.config.guard import GUARDS
from mpt.config.schema import RunConfig
from mpt.precision.probe import probe
from mpt.rng import seed_all
from mpt.train.run import train
from mpt.types import DataSpec

STEPS, SAMPLES, EVAL_SAMPLES = 6, 64, 16
NETS: dict[str, tuple[str, ...]] = {
    "resnet18": (
        *("model=resnet18", "data=synthetic_images", f"data.n={SAMPLES}"),
        *("data.image_size=64", "data.batch_size=16"),
    ),
    "gpt": (
        *("model=gpt", "model.layers=4", "model.width=256", "model.heads=4", "model.context=128"),
        *("data=synthetic_tokens", f"data.n={SAMPLES}", "data.vocab=256", "data.batch_size=8"),
    ),
}
PARTS = (
    *(("data", "synthetic_images"), ("data", "synthetic_tokens"), ("models", "torchvision"), ("models", "gpt")),
    *(("tasks", "classification"), ("tasks", "language_modeling"), ("optim", "adamw"), ("schedules", "cosine")),
    *(("tasks", "auto"), ("scaling", "none")),
)
WHEN_ASKED_FOR = ("mpt.data._open", *(f"mpt.train.guards.{name}" for name in GUARDS))
"""Modules that a run of these nets imports as it is built."""


def resident_bytes(key: str) -> int:
    """VmHWM (the peak) or RssFile (pages of files, now) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def runner(cfg: RunConfig) -> None:
    """All of `mpt train`: preflight with its audit, steps, record, one evaluation, one checkpoint."""
    code = train(cfg, ["benchmark"])
    assert code == 0, f"the run ended with {code}"


def expert(cfg: RunConfig, folder: Path) -> None:
    """A hand-written loop over as many samples, which saves weights and optimizer at its end.

    It holds as many samples for an evaluation as the runner does, and makes none.
    """
    images = cfg.model.name != "gpt"
    n, size = SAMPLES, cfg.data.batch_size
    shape = (3, 64, 64) if images else (128,)
    classes = 1000 if images else 256
    spec = DataSpec("made", "images" if images else "tokens", shape, classes, n, n, (), "0", synthetic=True)
    seed_all(0)
    model = registry.load("models", cfg.model.name).build(cfg.model.options, spec)
    if channels_last(cfg):
        model = model.to(memory_format=torch.channels_last)
    inputs = torch.randn(n, 64, 64, 3) if images else torch.randint(classes, (n, 128))
    targets = torch.randint(classes, (n,) if images else (n, 128))
    rows = torch.stack([torch.randperm(n)[:size] for _ in range(STEPS)])
    loop = Expert(model, Table(inputs, targets, rows, channels_last=images), [1e-3] * STEPS, weight_decay=0.01)
    held_out = inputs[:EVAL_SAMPLES].clone()
    loop.run(STEPS)
    loop.save(folder / "last.pt")
    del held_out


def main(who: str, net: str) -> None:
    """Run, then tell the peak."""
    for kind, name in PARTS:
        registry.load(kind, name)
    for name in WHEN_ASKED_FOR:
        import_module(name)
    probe("cpu")
    with tempfile.TemporaryDirectory() as folder:
        words = (f"trainer.max_steps={STEPS}", "trainer.eval_every=0", "checkpoint.every=0", f"run_dir={folder}/run")
        cfg = compose([*NETS[net], *words, "data.eval_batch_size=8", "device=cpu", "trainer.onednn=false"])
        if who == "runner":
            runner(cfg)
        else:
            expert(cfg, Path(folder))
    print(json.dumps({"peak": resident_bytes("VmHWM") - resident_bytes("RssFile")}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
