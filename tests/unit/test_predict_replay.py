"""A step's ops on real tensors: all of them run again, in their order, on operands of their kind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mpt.build import make_plan
from mpt.config.compose import compose
from mpt.predict import calibrate, rnn
from mpt.predict.fake import trace
from mpt.predict.replay import Replay
from mpt.predict.trace import Op, Trace

CPU = torch.device("cpu")
NETS = {
    "small_cnn": ["model=small_cnn", "data=digits"],
    "mlp with sgd, clipped, in parts": [
        *("model=mlp", "data=digits", "optimizer=sgd", "trainer.clip_norm=1", "trainer.accumulate=3"),
    ],
    "gpt": ["model=gpt", "model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "data=shakespeare"],
    "resnet18": ["model=resnet18", "data=synthetic_images", "data.n=8", "data.image_size=32", "data.batch_size=2"],
}


def traced(words: list[str]) -> Trace:
    cfg = compose([*words, "device=cpu"])
    return trace(cfg, make_plan(cfg))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("net", NETS)
def test_each_op_of_a_step_runs_again(net: str, precision: str) -> None:
    step = traced([*NETS[net], f"precision={precision}"])
    spent = Replay(step, CPU)._round()
    assert len(step.flow) == len(step.ops)
    assert [seconds is not None for seconds in spent] == [op.kernel for op in step.ops]
    assert all(seconds is None or 0 < seconds < math.inf for seconds in spent)


def test_numbers_flow_from_op_to_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a token is near that of a guess, log 256, and not it, as it were if layers gave nothing."""
    step = traced([*NETS["gpt"], "precision=fp32", "data.batch_size=4"])
    losses: list[float] = []
    run = Replay._run

    def noted(self: Replay, at: int, op: Op, held: dict[int, torch.Tensor]) -> float | None:
        seconds = run(self, at, op, held)
        if op.name == "nll_loss_forward":
            losses.append(float(held[step.flow[at].made[0].storage]))
        return seconds

    monkeypatch.setattr(Replay, "_run", noted)
    Replay(step, CPU)._round()
    (loss,) = losses
    assert 1e-2 < abs(loss / (4 * 16) - math.log(256)) < 2


def test_what_cannot_be_called_again_is_not_timed_and_the_rest_goes_on() -> None:
    step = traced(NETS["mlp with sgd, clipped, in parts"])
    at = next(op.signature for op in step.ops if op.name == "addmm")

    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("not here")

    calls = [call._replace(func=refuses) if i == at else call for i, call in enumerate(step.calls)]
    broken = replace(step, calls=tuple(calls))
    found = Replay(broken, CPU).seconds(time.perf_counter())
    assert at not in found
    assert {op.signature for op in step.ops if op.kernel} - set(found) == {at}


@pytest.mark.parametrize(("budget_s", "in_order"), [(1000.0, True), (0.0, False)])
def test_a_step_longer_than_the_budget_is_timed_op_by_op(
    budget_s: float, in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def noted(name: str) -> Callable[..., dict[int, float]]:
        return lambda *_: taken.append(name) or {}  # type: ignore[func-returns-value]

    monkeypatch.setattr(Replay, "seconds", noted("in order"))
    monkeypatch.setattr(calibrate, "_apart", noted("apart"))
    monkeypatch.setattr(calibrate, "ceiling_tflops", lambda *_: 1.0)
    cfg = compose([*NETS["small_cnn"], "device=cpu"])
    plan = make_plan(cfg)
    calibrate.calibrate(trace(cfg, plan), plan.device, 1, budget_s)
    assert taken == ["in order" if in_order else "apart"]


class Recurrent(nn.Module):
    """Its kernel on a CPU keeps a workspace for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 4, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return out


RECURRENT = ["model=custom", f"model.path={__file__}:Recurrent", "data=digits", "data.batch_size=8"]


@pytest.mark.parametrize("budget_s", [1000.0, 0.0])
def test_a_kernel_gets_its_own_workspace_or_is_not_called(budget_s: float) -> None:
    step = traced(RECURRENT)
    assert any(op.name == "mkldnn_rnn_layer_backward" for op in step.ops), "else nothing is tested"
    if budget_s:
        spent = Replay(step, CPU)._round()
        assert [seconds is not None for seconds in spent] == [op.kernel for op in step.ops]
    else:
        wanted = [(op.signature, 1.0) for op in step.ops if op.kernel]
        found = calibrate._apart(step, wanted, CPU, math.inf)
        assert not any(
            "backward" in op.name and op.name.startswith("mkldnn_rnn") for op in step.ops if op.signature in found
        )


@pytest.mark.parametrize("steps", [3, 100])
def test_an_lstms_workspace_is_as_large_as_its_kernel_makes_it(steps: int) -> None:
    """Of many steps of time within the pages that its sections end on."""
    x_TNI, state_NH = torch.zeros(steps, 7, 33), torch.zeros(7, 50)
    weights = [torch.zeros(s) for s in ((200, 33), (200, 50), (200,), (200,))]
    args = (x_TNI, *weights, state_NH, state_NH, False, [], 2, 50, 1, True, False, False, True)
    real = rnn.FORWARD(*args)[3]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
        told = rnn.with_workspace(tuple(fake), rnn.FORWARD(*fake))[3]
    assert abs(told.nbytes - real.nbytes) <= (0 if steps <= 32 else 0.02 * real.nbytes)
    assert told.dtype is real.dtype


def test_what_reads_integers_of_an_op_that_failed_is_not_called() -> None:
    """They may be a workspace or places in a table, which no zeros stand for."""
    step = traced(RECURRENT)

    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("not here")

    failing = {op.signature for op in step.ops if op.name == "mkldnn_rnn_layer"}
    readers = {op.signature for op in step.ops if op.name == "mkldnn_rnn_layer_backward"}
    calls = [call._replace(func=refuses) if i in failing else call for i, call in enumerate(step.calls)]
    found = Replay(replace(step, calls=tuple(calls)), CPU).seconds(time.perf_counter())
    assert failing
    assert readers
    assert {op.signature for op in step.ops if op.kernel} - set(found) == failing | readers


def test_measuring_leaves_random_states_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "ceiling_tflops", lambda *_: 1.0)
    cfg = compose([*RECURRENT, "device=cpu"])
    plan = make_plan(cfg)
    step = trace(cfg, plan)
    before = torch.get_rng_state()
    calibrate.calibrate(step, plan.device, 1, 0.01)
    assert torch.get_rng_state().equal(before)


def test_a_replayed_step_is_not_skipped() -> None:
    step = traced(NETS["small_cnn"])
    replay = Replay(step, CPU)
    at = next(i for i, op in enumerate(step.ops) if op.name == "_fused_adamw_")
    held = replay._outside[step.flow[at].given[0].storage]
    before = held.clone()
    replay._round()
    assert not torch.equal(held, before)
