"""CUDA graphs: what is refused, what is told, and that a step is announced to the compiler before its forward."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from mpt.build import build
from mpt.config.check import check, require
from mpt.config.compose import compose
from mpt.errors import ConfigError
from mpt.train.engine import make_engine, replayed

GRAPHS = ("trainer.cuda_graphs=true", "trainer.compile=true", "model=mlp", "model.width=8")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trainer.compile=false",), "add trainer.compile=true"),
        (("trainer.accumulate=2",), "overwrite the gradients"),
        (("device=cpu",), "only CUDA has graphs"),
        (
            ("trainer.checkpoint_activations=['[13]']",),
            "no test of both has run on a GPU yet(.|\n)*leave trainer.cuda_graphs",
        ),
    ],
)
def test_what_can_not_be_replayed_is_refused_with_the_next_move(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        require(compose([*GRAPHS, *words]))


def test_on_a_device_that_was_found_to_be_no_gpu_the_plan_says_that_it_has_no_effect() -> None:
    if torch.cuda.is_available():
        pytest.skip("device=auto finds a GPU here")
    cfg = compose([*GRAPHS, "data.limit=64"])
    assert check(cfg) == []
    assert any("trainer.cuda_graphs has no effect" in note for note in build(cfg).plan.notes)


@pytest.mark.parametrize(("device", "mode"), [("cuda", "reduce-overhead"), ("cpu", None)])
def test_the_compiler_records_graphs_on_cuda_only(
    device: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def compiled(model: object, mode: str | None = None) -> object:
        asked.append(mode)
        return model

    monkeypatch.setattr(torch, "compile", compiled)
    run = build(compose([*GRAPHS, "data.limit=64"]))
    monkeypatch.setattr(run, "device", type("Device", (), {"type": device})())
    monkeypatch.setattr("mpt.train.engine.Rates", lambda *of: None)
    make_engine(run)
    assert asked == [mode]


def test_a_cuda_compiler_without_a_gpu_is_not_told_of_by_a_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torchs = logging.getLogger("torch.utils.cpp_extension")
    monkeypatch.setattr(torchs, "filters", [])
    monkeypatch.setattr(torchs, "propagate", True)
    monkeypatch.setattr(torch, "compile", lambda model, mode=None: model)
    for _ in range(2):
        make_engine(build(compose([*GRAPHS[1:], "data.limit=64", "device=cpu"])))
    torchs.warning("No CUDA runtime is found, using CUDA_HOME='%s'", "/usr/local")
    torchs.warning("the compiler is too old")
    assert [record.getMessage() for record in caplog.records] == ["the compiler is too old"]
    assert len(torchs.filters) == 1


def test_each_forward_begins_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: order.append("step"))

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        order.append("forward")
        return inputs

    step: Callable[[torch.Tensor], torch.Tensor] = replayed(forward)
    step(torch.zeros(1))
    step(torch.zeros(1))
    assert order == ["step", "forward", "step", "forward"]
