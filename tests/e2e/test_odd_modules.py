"""Skips, scales and faults in models of odd parts: empty tensors, modules that share, modules that nothing trains."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from torch import Tensor, nn

from mpt.config.check import require
from mpt.config.compose import compose
from mpt.errors import ConfigError
from mpt.train.run import train
from tests.e2e._run import Done


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat, self.inner = nn.Flatten(), nn.Linear(64, 8)
        self.alias = self.inner
        self.head = nn.Linear(8, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the tensor without elements
            self.empty = nn.Linear(0, 10)
        self.nothing = Nothing()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(self.flat(x))
        out: Tensor = self.head(hidden) + self.empty(self.nothing(hidden))
        return out


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :0]


def build() -> nn.Module:
    return Odd()


WORDS = (
    *("device=cpu", "data.limit=64", "data.batch_size=16", "trainer.max_steps=4", "trainer.eval_every=0"),
    *("model=custom", "model.path=tests.e2e.test_odd_modules:build"),
)


@pytest.mark.parametrize("scaling", ["dynamic", "logmax", "per_layer"])
def test_a_weight_without_elements_stands_in_the_way_of_no_strategy(scaling: str, tmp_path: Path) -> None:
    fault = "debug.inject=[{step: 3, module: inner, kind: inf}]"
    run = Done(tmp_path / "run", *WORDS, "precision=fp16", f"scaling={scaling}", "numerics=full", fault)
    (skip,) = run.events("skip")
    assert (skip["step"], skip["module"], skip["tensors"]) == (3, "inner", 6)
    assert skip["largest_finite"] > 0


def test_a_second_name_of_a_module_names_it_too(tmp_path: Path) -> None:
    run = Done(tmp_path / "run", *WORDS, "precision=bf16", "debug.inject=[{step: 2, module: alias, kind: nan}]")
    (skip,) = run.events("skip")
    assert (skip["step"], skip["module"]) == (2, "inner")


@pytest.mark.parametrize(
    ("fault", "where", "text"),
    [
        ("{step: 2, module: flat, kind: nan}", "debug.inject[0].where", "no gradient comes back to `flat`"),
        ("{step: 2, module: nothing, kind: nan}", "debug.inject[0].module", "gives no floating tensor"),
    ],
)
def test_a_fault_that_nothing_would_see_is_refused(fault: str, where: str, text: str, tmp_path: Path) -> None:
    typed = [*WORDS, f"debug.inject=[{fault}]", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError) as refused:
        train(require(compose(typed)), ["mpt", "train"])
    (problem,) = refused.value.problems
    assert problem.where == where
    assert text in problem.what
    assert not (tmp_path / "run").exists()
    Done(tmp_path / "ahead", *WORDS, "debug.inject=[{step: 2, module: flat, kind: nan, where: forward}]")
