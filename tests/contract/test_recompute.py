"""Activation checkpointing changes what is kept, and no number: every precision and scaler, on two nets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
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
from mpt.train.preflight import preflight

PATH = f"model.path={Path(__file__).parent / '_blocks_model.py'}:make"
NETS = {
    "gpt": ("model=gpt", "data=synthetic_tokens", "data.n=64", "data.vocab=24", "model.layers=2",
            "model.heads=2", "model.width=16", "model.context=8", "model.dropout=0.1"),
    "blocks": ("model=custom", PATH, "data=digits"),
    "drawing": ("model=custom", PATH, "data=digits", "model.kwargs.kind=Drawing"),
}  # fmt: skip
COMMON = ("device=cpu", "data.batch_size=4", "data.limit=32", "trainer.onednn=false", "trainer.max_steps=64")
POLICIES = sorted(name for name in catalog.choices("precision") if not name.startswith(("mixed_", "apex_")))
"""Without those that are other tools' names of these."""
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
        seen = preflight(run, engine.buffers, MemoryMeter("cpu"), next(run.data.train(0)))
        losses = [engine.stepper(list(islice(stream, window))).loss_sum for _ in range(steps)]
    return {
        "losses": losses,
        "seen": [seen.audit, seen.work, seen.backward_order],
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
    assert without["seen.0."].verdict == "match"
    assert without.keys() == within.keys()
    for name, value in without.items():
        same = value.equal(within[name]) if isinstance(value, Tensor) else value == within[name]
        assert same or (isinstance(value, Tensor) and value.isnan().any()), name


@pytest.mark.parametrize("net", ["gpt", "drawing"])
@pytest.mark.parametrize("precision", POLICIES)
def test_every_precision_trains_to_the_same_bits(net: str, precision: str) -> None:
    """And the dry pass sees the same formats, products and order of gradients."""
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


def test_a_compiled_model_keeps_less_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph is cut into forward and backward as for kernels, which are not generated here."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    losses, kept = [], []
    for on in ((), (ON,)):
        run, engine = made(*NETS["blocks"], "trainer.compile=true", *on)
        nbytes: list[int] = []
        with closing(run.data), torch.autograd.graph.saved_tensors_hooks(noting(nbytes), lambda x: x):
            stream = run.data.train(0)
            losses.append([float(engine.stepper([next(stream)]).loss_sum) for _ in range(2)])
        kept.append(sum(nbytes))
        state = run.model.state_dict()
        assert [int(v) for k, v in state.items() if k.endswith("num_batches_tracked")] == [2, 2]
    torch._dynamo.reset()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # other ops, which round elsewhere
    assert kept[1] < kept[0]


def noting(nbytes: list[int]) -> Callable[[Tensor], Tensor]:
    """Notes the size of each tensor that is kept for the backward pass."""

    def pack(x: Tensor) -> Tensor:
        nbytes.append(x.nbytes)
        return x

    return pack
