"""Activation checkpointing changes what is kept, and no number: every precision and scaler, on two nets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mpt.build import Run, build
from mpt.config import catalog
from mpt.config.check import require
from mpt.config.compose import compose
from mpt.precision.switches import flags
from mpt.telemetry.memory import MemoryMeter
from mpt.train.engine import Engine, make_engine
from mpt.train.preflight import Preflight, preflight

PATH = f"model.path={Path(__file__).parent / '_blocks_model.py'}:make"
NETS = {
    "gpt": ("model=gpt", "data=synthetic_tokens", "data.n=64", "data.vocab=24", "model.layers=2",
            "model.heads=2", "model.width=16", "model.context=8", "model.dropout=0.1"),
    "blocks": ("model=custom", PATH, "data=digits"),
    "drawing": ("model=custom", PATH, "data=digits", "model.kwargs.kind=Drawing"),
}  # fmt: skip
COMMON = ("device=cpu", "data.batch_size=4", "data.limit=32", "trainer.onednn=false", "trainer.max_steps=64")
ON = "trainer.checkpoint_activations=true"


def made(*words: str) -> tuple[Run, Engine]:
    run = build(require(compose([*COMMON, *words])))
    return run, make_engine(run, 64)


def trained(*words: str, steps: int = 3) -> dict[str, Any]:
    """Everything that so many steps left, losses too."""
    run, engine = made(*words)
    window = run.cfg.trainer.accumulate
    with closing(run.data), flags(run.cfg.precision, run.plan.device):
        stream = run.data.train(0)
        losses = [engine.stepper(list(islice(stream, window))).loss_sum for _ in range(steps)]
    return {
        "losses": losses,
        "model": run.model.state_dict(),
        "masters": run.policy.masters,
        "policy": run.policy.state_dict(),
        "moments": run.optimizer.state_tensors(),
        "scaler": run.scaler.state_dict(),
        "average": engine.ema.average if engine.ema else [],
        "draws": torch.get_rng_state(),
    }


def tensors(tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from ((f"{key}.{name}", leaf) for name, leaf in tensors(value))
    elif isinstance(tree, (list, tuple)):
        yield from tensors(dict(enumerate(tree)))
    else:
        yield "", tree


def require_equal(*words: str, on: str = ON) -> None:
    """The same bits with and without."""
    without, within = dict(tensors(trained(*words))), dict(tensors(trained(*words, on)))
    assert without.keys() == within.keys()
    for name, value in without.items():
        same = value.equal(within[name]) if isinstance(value, Tensor) else value == within[name]
        assert same or (isinstance(value, Tensor) and value.isnan().any()), name


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", sorted(catalog.choices("precision")))
def test_every_precision_trains_to_the_same_bits(net: str, precision: str) -> None:
    require_equal(*NETS[net], f"precision={precision}")


@pytest.mark.parametrize("scaling", sorted(set(catalog.choices("scaling")) - {"auto", "none"}))
def test_every_scaler_trains_to_the_same_bits(scaling: str) -> None:
    words = ("scaling.init_scale=1024",) if scaling == "static" else ()
    require_equal(*NETS["blocks"], "precision=fp16", f"scaling={scaling}", *words)


@pytest.mark.parametrize("words", [
    ("trainer.accumulate=3",), ("trainer.ema_decay=0.9",), ("trainer.clip_norm=0.1",), ("optimizer=lbfgs",),
    ("trainer.channels_last=true",),
], ids=" ".join)  # fmt: skip
def test_the_rest_of_the_step_is_as_without(words: tuple[str, ...]) -> None:
    clip = ("trainer.clip_norm=null",) if words == ("optimizer=lbfgs",) else ()
    require_equal(*NETS["drawing"], "precision=fp32", *words, *clip)


@pytest.mark.parametrize("glob", ["1.*", "*", "[1.0.first,1.1.norm,4]"])
def test_any_choice_of_modules_gives_the_same_bits(glob: str) -> None:
    require_equal(*NETS["drawing"], "precision=bf16", on=f"trainer.checkpoint_activations={glob}")


def test_statistics_are_counted_once() -> None:
    model = trained(*NETS["blocks"], ON, steps=3)["model"]
    assert [int(v) for k, v in model.items() if k.endswith("num_batches_tracked")] == [3, 3]


def audited(*words: str) -> Preflight:
    run, engine = made(*words)
    with closing(run.data), flags(run.cfg.precision, run.plan.device):
        return preflight(run, engine.buffers, MemoryMeter("cpu"), next(run.data.train(0)))


@pytest.mark.parametrize("net", ["gpt", "blocks"])
@pytest.mark.parametrize("precision", sorted(catalog.choices("precision")))
def test_the_dry_pass_sees_the_same_formats_and_work(net: str, precision: str) -> None:
    without, within = (audited(*NETS[net], f"precision={precision}", *on) for on in ((), (ON,)))
    assert within.audit == without.audit
    assert within.audit.verdict == "match"
    assert within.work == without.work
    assert within.backward_order == without.backward_order
